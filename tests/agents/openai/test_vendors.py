"""Answers as vendors' servers send them, limits, and a server that is away for a while."""

import json
import random
import threading
from types import SimpleNamespace
from typing import Any

import pytest
from endpoint import Answer, chat, generate

from flowzoo.agents.answers import AnswerCache
from flowzoo.agents.openai import policy as openai
from flowzoo.agents.openai.endpoint import Endpoint as Server
from flowzoo.agents.openai.endpoint import read_endpoints
from flowzoo.agents.openai.policy import EndpointError, OpenAIPolicy, Pace
from flowzoo.agents.policy import Request, Sampling
from flowzoo.errors import DataError, UsageError


def ask(number: int, text: str = "hi") -> Request:
    return Request((number,), "a_0", "a", [{"role": "user", "content": text}])


def message(**fields: Any) -> Answer:
    status, headers, body = chat(None)
    body["choices"][0]["message"].update(fields)
    return status, headers, body


def parts(*pairs: tuple[str, Any]) -> list[dict[str, Any]]:
    return [{"type": kind, kind: value} for kind, value in pairs]


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        (message(content=None, reasoning_content="hm"), "<think>hm</think>"),
        (message(content="4", reasoning="hm", reasoning_content=None), "<think>hm</think>4"),
        (message(content=None, refusal="I cannot"), "I cannot"),
        (message(content=None, tool_calls=[{"id": "x"}]), ""),
        (message(content=parts(("text", "a"), ("text", "b"))), "ab"),
        (
            message(content=parts(("thinking", parts(("text", "hm"))), ("text", "4"))),
            "<think>hm</think>4",
        ),
        (message(content=[]), ""),
        (chat("4", finish_reason="tool_calls", logprobs={"content": None}), "4"),
        (chat("4", finish_reason=None), "4"),
    ],
)
async def test_odd_messages_are_read(endpoint, answer, text):
    endpoint.answer = lambda body, count: answer
    (done,) = await generate(OpenAIPolicy("m", endpoint.url), ask(1))
    assert (done.text, done.prompt_tokens, done.output_tokens) == (text, 7, 3)


@pytest.mark.parametrize(
    ("answer", "wait"),
    [
        ((429, {}, "busy"), 0),
        ((500, {}, "busy"), 0),
        ((503, {}, "busy"), 0),
        ((429, {"Retry-After": "1.2"}, "slow"), 1.2),
        ((529, {}, "overloaded"), 0),
        ((524, {}, "<html>"), 0),
        ((200, {}, {"error": {"code": 502, "message": "upstream"}}), 0),
        ((200, {}, {"error": {"code": 429, "message": "slow"}, "choices": []}), 0),
        ((200, {"Retry-After": "3"}, {"error": "upstream"}), 3),
        ((429, {"retry-after-ms": "2500", "Retry-After": "9"}, "slow"), 2.5),
        ((429, {"retry-after-ms": "soon", "Retry-After": "9"}, "slow"), 9),
    ],
)
async def test_overload_in_any_form_is_tried_again(endpoint, answer, wait, pauses):
    endpoint.answer = lambda body, count: answer if count < 2 else chat("fine")
    policy = OpenAIPolicy("m", endpoint.url)
    (done,) = await generate(policy, ask(1))
    assert (done.text, policy.stats.retries, len(pauses)) == ("fine", 1, 1)
    assert pauses == [wait] if wait else 0.25 <= pauses[0] <= 0.5


@pytest.mark.parametrize(
    "answer",
    [(501, {}, "no"), (200, {}, {"error": {"code": 402, "message": "no credit"}}), (307, {}, "")],
)
async def test_what_will_not_pass_is_not_tried_again(endpoint, answer):
    endpoint.answer = lambda body, count: answer
    with pytest.raises(EndpointError, match="failed: status"):
        await generate(OpenAIPolicy("m", endpoint.url), ask(1))
    assert len(endpoint.seen) == 1


def only_its_own(field: str) -> Any:
    text = f"Unsupported value: '{field}' does not support this. Only the default is supported."

    def answer(body: dict[str, Any], count: int) -> Answer:
        return (400, {}, {"error": {"message": text}}) if field in body else chat("fine")

    return answer


@pytest.mark.parametrize("field", ["temperature", "top_p"])
async def test_a_refused_default_is_left_out_and_another_value_is_an_error(endpoint, field):
    endpoint.answer = only_its_own(field)
    assert (await generate(OpenAIPolicy("m", endpoint.url), ask(1)))[0].text == "fine"
    sampling = Sampling(**{field: 0.5})  # type: ignore[arg-type]
    with pytest.raises(EndpointError, match=rf"{field} is left out if it is 1: use --{field[:3]}"):
        await generate(OpenAIPolicy("m", endpoint.url, sampling=sampling), ask(1))
    with pytest.raises(UsageError, match=f"is sent no {field} "):
        OpenAIPolicy("m", Server(endpoint.url, without=(field,)), sampling=sampling)


def test_a_top_k_that_is_never_sent_is_an_error():
    server = Server("http://host/v1", without=("top_k",))
    assert OpenAIPolicy("m", server).name == "m"
    with pytest.raises(UsageError, match=r"is sent no top_k .* must be 0, got 5"):
        OpenAIPolicy("m", server, sampling=Sampling(top_k=5))


async def test_headers_key_and_body_are_what_the_endpoint_wants(endpoint, monkeypatch):
    monkeypatch.setenv("ZOO_KEY", "sk-zoo")
    server = Server(
        endpoint.url, api_key_env="ZOO_KEY", key_header="api-key", headers={"X-Org": "zoo"},
        extra_body={"reasoning_effort": "low"}, without=("seed", "logprobs", "top_p"),
    )  # fmt: skip
    await generate(OpenAIPolicy("m", server), ask(1))
    (headers,), (body,) = endpoint.headers, endpoint.seen
    assert (headers["api-key"], headers["X-Org"]) == ("sk-zoo", "zoo")
    assert "Authorization" not in headers
    assert body["reasoning_effort"] == "low"
    assert not {"seed", "logprobs", "top_p"} & body.keys()


async def test_others_that_get_through_cost_a_waiting_request_no_attempt(endpoint, pauses):
    """Ten requests, of which the server lets one in three through."""
    endpoint.answer = lambda body, count: chat("fine") if count % 3 == 0 else (429, {}, "slow")
    policy = OpenAIPolicy("m", Server(endpoint.url, concurrency=1, retries=2))
    done = await generate(policy, *[ask(number) for number in range(10)])
    assert [item.text for item in done] == ["fine"] * 10
    assert (policy.stats.requests, policy.stats.retries) == (10, 20)
    endpoint.answer = lambda body, count: (429, {}, "slow")
    with pytest.raises(EndpointError, match="failed after 3 attempts: status 429"):
        await generate(policy, ask(11))


async def test_a_minute_without_a_server_is_waited_out(endpoint, pauses):
    endpoint.answer = lambda body, count: (503, {}, "down") if sum(pauses) < 60 else chat("back")
    (done,) = await generate(OpenAIPolicy("m", endpoint.url), ask(1))
    assert done.text == "back"


def test_no_minute_has_more_than_the_limits():
    rng = random.Random(0)
    pace, now, sent = Pace(10, 1000), 100.0, list[tuple[float, int]]()
    for _ in range(200):
        tokens = rng.choice([10, 90, 400, 1500])
        while (wait := pace.delay(now, tokens)) > 0:
            now += wait
        pace.send(now, tokens)
        sent.append((now, tokens))
        now += rng.random()
    for start, _ in sent:
        minute = [tokens for time, tokens in sent if start <= time < start + 59.999]
        assert len(minute) <= 10
        assert sum(minute) <= 1000 or minute == [1500]
    assert now > 100 + 60 * (sum(tokens for _, tokens in sent) - 1500 * 60) / 1000
    assert Pace(0, 0).delay(now, 10**9) == 0


async def test_a_policy_keeps_its_limit_of_requests(endpoint, pauses, monkeypatch):
    monkeypatch.setattr(
        openai, "time", SimpleNamespace(monotonic=lambda: sum(pauses), perf_counter=lambda: 0.0,
                                        time=lambda: 0.0)
    )  # fmt: skip
    policy = OpenAIPolicy("m", Server(endpoint.url, concurrency=1, requests_per_minute=4))
    await generate(policy, *[ask(number) for number in range(9)])
    assert pauses == [60.0, 60.0]
    tokens = OpenAIPolicy("m", Server(endpoint.url, concurrency=1, tokens_per_minute=300))
    del pauses[:]
    await generate(tokens, *[ask(number) for number in range(30)])
    # 256 are reserved, and 10 turn out to be used: five fit at a time.
    assert len(pauses) == 5


async def test_an_answer_is_asked_for_once(endpoint, tmp_path):
    server = Server(endpoint.url, cache=str(tmp_path / "deep" / "answers.sqlite"))
    first = await generate(OpenAIPolicy("m", server), ask(1), ask(2, "ho"))
    policy = OpenAIPolicy("m", server)
    assert await generate(policy, ask(2, "ho"), ask(1)) == first[::-1]
    assert len(endpoint.seen) == policy.stats.cached == 2
    assert policy.stats.requests == 0
    await generate(OpenAIPolicy("m", server), ask(3), ask(1, "ho"))
    await generate(OpenAIPolicy("m", server, sampling=Sampling(temperature=0)), ask(1))
    await generate(OpenAIPolicy("other", server), ask(1))
    assert len(endpoint.seen) == 6
    (tmp_path / "text").write_text("no database, and long enough to be taken for one" * 9)
    with pytest.raises(DataError, match="is no cache of answers"):
        AnswerCache(tmp_path / "text")


def test_a_killed_process_leaves_its_answers(tmp_path):
    caches = [AnswerCache(tmp_path / "answers.sqlite") for _ in range(2)]
    threads = [
        threading.Thread(
            target=lambda cache=cache, at=at: [cache.put([at, n], n) for n in range(50)]
        )
        for at, cache in enumerate(caches)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    again = AnswerCache(tmp_path / "answers.sqlite")  # the others were never closed
    assert [again.get([at, n]) for at in (0, 1) for n in range(50)] == [*range(50), *range(50)]
    assert again.get([2, 0]) is None


FILE = """
[fast]
url = "https://host/v1"
timeout = 5
headers = { X-Org = "zoo" }
without = ["seed"]
"""


def test_a_file_gives_endpoints_their_names(tmp_path):
    path = tmp_path / "endpoints.toml"
    path.write_text(FILE)
    expected = Server("https://host/v1", timeout=5, headers={"X-Org": "zoo"}, without=("seed",))
    assert read_endpoints(path) == {"fast": expected}


@pytest.mark.parametrize(
    ("before", "after", "error"),
    [
        ("url", "ulr", "endpoint fast in .* has no `url`"),
        ("timeout", "time_out", "unknown field of endpoint fast .* Did you mean 'timeout'"),
        ("5", '"5"', "endpoint fast in .*: `timeout` must be a number, got '5'"),
        ("5", "true", "must be a number, got True"),
        ("5", "0", "endpoint fast in .*: `timeout` must be greater than 0, got 0"),
        ('"zoo"', '"zoö"', "header 'X-Org': .* a value printable ASCII, got 'zoö'"),
        ("X-Org", '"X Org"', "header 'X Org': a name has letters, digits and - alone"),
        ("timeout", "extra_body = { day = 2026-01-01 }\ntimeout", "`extra_body` is no JSON"),
        ('"zoo"', "3", "endpoint fast in .*: `headers` of 'X-Org' must be text, got 3"),
        ('["seed"]', '"seed"', r"`without` must be a list \(text each\), got 'seed'"),
        ("https", "ftp", "endpoint fast in .*: expected an endpoint URL"),
        ("[fast]", '["f@st"]', "letters, digits and . _ - alone; got 'f@st'"),
    ],
)
def test_mistakes_in_the_file_are_explained(before, after, error, tmp_path):
    path = tmp_path / "endpoints.toml"
    path.write_text(FILE.replace(before, after))
    with pytest.raises(UsageError, match=error):
        read_endpoints(path)


def test_the_cache_holds_json_alone(tmp_path):
    cache = AnswerCache(tmp_path / "a")
    cache.put(["q", "\ud800"], {"x": ["ä", None]})
    assert cache.get(["q", "\ud800"]) == {"x": ["ä", None]}
    assert json.dumps("ä")[1:-1].encode() in (tmp_path / "a").read_bytes()
