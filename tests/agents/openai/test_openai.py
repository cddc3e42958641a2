"""The policy behind an endpoint: requests, retries, limits, vendors, tools."""

import asyncio
import email.utils
import json
import random
import socket
import threading
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from endpoint import Answer, Endpoint, chat, generate, serving

from flowzoo.agents.answers import AnswerCache
from flowzoo.agents.openai import policy as openai
from flowzoo.agents.openai.endpoint import Endpoint as Server
from flowzoo.agents.openai.endpoint import read_endpoints
from flowzoo.agents.openai.policy import EndpointError, OpenAIPolicy, Pace, retry_after
from flowzoo.agents.policy import Policy, Request, Sampling
from flowzoo.envs.tools import ToolCall, read_calls
from flowzoo.envs.workflows.reasoner_python import PYTHON
from flowzoo.errors import DataError, UsageError

KEY = "sk-secret-1234567890"
PATIENCE = 60.0
"""Seconds after which what a test waits for will not come."""


@pytest.fixture
def endpoint(monkeypatch: pytest.MonkeyPatch) -> Iterator[Endpoint]:
    """An endpoint on the loopback, whose client has a key."""
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    with serving() as server:
        yield server


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Pauses that a policy makes, which let others run and take no time."""
    lengths: list[float] = []

    async def pause(seconds: float) -> None:
        lengths.append(seconds)
        await asyncio.sleep(0)

    monkeypatch.setattr(openai, "asyncio", SimpleNamespace(**{**vars(asyncio), "sleep": pause}))
    return lengths


async def until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end, "it did not happen"
        await asyncio.sleep(0.005)


def ask(*key: str | int, text: str = "hi", **fields: Any) -> Request:
    messages = [{"role": "system", "content": "s"}, {"role": "user", "content": text}]
    return Request(key=key, agent="a_0", role="a", messages=messages, **fields)


def test_batches_that_are_played_beside_each_other_keep_their_connections():
    policy = OpenAIPolicy("m", endpoint=Server("http://127.0.0.1:9/v1"))

    async def client() -> Any:
        return policy._connect()[0]

    with asyncio.Runner() as first, asyncio.Runner() as second:
        one, other, again, still = (
            runner.run(client()) for runner in (first, second, first, second)
        )
        first.run(policy.close())
    assert (one, other) == (again, still)
    assert one is not other
    assert (one.is_closed, other.is_closed) == (True, False)
    with asyncio.Runner() as third:
        third.run(client())
        assert len(policy._clients) == 1, "those of ended loops are forgotten"
        third.run(policy.close())


async def test_answers_come_in_request_order_whatever_the_server_does(endpoint):
    others = threading.Semaphore(0)

    def first_comes_last(body: dict[str, Any], count: int) -> Answer:
        text = body["messages"][-1]["content"]
        if text != "t0":
            others.release()
        else:
            assert all(others.acquire(timeout=PATIENCE) for _ in range(9))
        return chat(f"re {text}")

    endpoint.answer = first_comes_last
    policy = OpenAIPolicy("m", endpoint.url)
    assert isinstance(policy, Policy)
    done = await generate(policy, *[ask(i, text=f"t{i}") for i in range(10)])
    assert [item.text for item in done] == [f"re t{i}" for i in range(10)]
    assert (policy.stats.requests, policy.stats.prompt_tokens) == (10, 70)
    assert policy.stats.output_tokens == 30


async def test_the_request_says_what_the_policy_was_told(endpoint):
    sampling = Sampling(temperature=0.7, top_p=0.9, top_k=5, max_tokens=30)
    server = Server(endpoint.url, extra_body={"chat_template_kwargs": {"x": 1}})
    policy = OpenAIPolicy("m", server, sampling=sampling)
    await generate(policy, ask("k", 1, text="π \ud800"), ask("k", 1, max_tokens=4), ask("k", 2))
    first, second, third = by_request(endpoint.seen)
    assert first["path"] == "/v1/chat/completions"
    assert first["messages"][1] == {"role": "user", "content": "π \ufffd"}
    assert first["messages"][0] == {"role": "system", "content": "s"}
    expected = {"model": "m", "temperature": 0.7, "top_p": 0.9, "top_k": 5, "max_tokens": 30}
    assert expected.items() <= first.items()
    assert first["chat_template_kwargs"] == {"x": 1}
    assert first["logprobs"] is True
    assert second["max_tokens"] == 4
    assert first["seed"] == second["seed"] != third["seed"]
    assert endpoint.headers[0]["Authorization"] == f"Bearer {KEY}"


def by_request(seen: list[dict[str, Any]]) -> list[dict[str, Any]]:
    unicode = next(body for body in seen if "π" in body["messages"][1]["content"])
    capped = next(body for body in seen if body["max_tokens"] == 4)
    return [unicode, capped, next(body for body in seen if body not in (unicode, capped))]


async def test_a_final_error_names_url_and_status_but_not_the_key(endpoint):
    endpoint.answer = lambda body, count: (500, {}, "x" * 495 + f" your key {KEY} failed")
    policy = OpenAIPolicy("m", Server(endpoint.url, retries=1))
    with pytest.raises(EndpointError) as caught:
        await generate(policy, ask("f"))
    text = str(caught.value)
    assert f"{endpoint.url}/chat/completions failed after 2 attempts: status 500" in text
    assert "sk-" not in text
    assert len(endpoint.seen) == 2
    assert KEY not in repr(policy)
    assert KEY not in repr(vars(policy))


async def test_a_refusal_is_not_retried_and_names_the_key_variable(endpoint, monkeypatch):
    endpoint.answer = lambda body, count: (401, {}, f"bad key {KEY}")
    with pytest.raises(EndpointError, match=r"status 401: bad key \[redacted\] .*which is set"):
        await generate(OpenAIPolicy("m", endpoint.url), ask("f"))
    monkeypatch.delenv("OPENAI_API_KEY")
    with pytest.raises(EndpointError, match="OPENAI_API_KEY, which is not set"):
        await generate(OpenAIPolicy("m", endpoint.url), ask("f"))
    assert len(endpoint.seen) == 2
    assert "Authorization" not in endpoint.headers[-1]


async def test_slow_and_absent_servers_end_in_a_clear_error(endpoint):
    over = threading.Event()

    def never(body: dict[str, Any], count: int) -> Answer:
        over.wait(PATIENCE)
        return chat("late")

    endpoint.answer = never
    try:
        with pytest.raises(EndpointError, match=r"failed: (no answer within|\w+Timeout)"):
            await generate(
                OpenAIPolicy("m", Server(endpoint.url, timeout=0.1, retries=0)), ask("slow")
            )
    finally:
        over.set()
    with socket.socket() as silent:  # keeps its port from others, and does not listen
        silent.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{silent.getsockname()[1]}/v1"
        with pytest.raises(EndpointError, match=f"{url}/chat/completions failed: Connect"):
            await generate(OpenAIPolicy("m", Server(url, retries=0)), ask("gone"))


async def test_an_answer_that_trickles_in_has_the_same_time_limit(endpoint):
    """Every byte comes in time, the answer does not."""
    endpoint.pause = 0.01
    with pytest.raises(EndpointError, match=r"failed: (no answer within|\w+Timeout)"):
        await generate(OpenAIPolicy("m", Server(endpoint.url, timeout=0.2, retries=0)), ask("slow"))


async def test_an_unbearable_retry_after_ends_at_once(endpoint, pauses):
    endpoint.answer = lambda body, count: (429, {"Retry-After": "7200"}, "come back later")
    with pytest.raises(EndpointError, match="status 429: come back later"):
        await generate(OpenAIPolicy("m", endpoint.url), ask("r"))
    assert len(endpoint.seen) == 1
    assert pauses == []


async def test_one_failure_cancels_the_other_requests(endpoint, monkeypatch):
    waits, cancelled = threading.Event(), threading.Event()

    async def endless(seconds: float) -> None:
        waits.set()
        try:
            await asyncio.wait_for(asyncio.Event().wait(), PATIENCE)
        except asyncio.CancelledError:
            cancelled.set()
            raise

    def mixed(body: dict[str, Any], count: int) -> Answer:
        if body["messages"][-1]["content"] == "bad":
            assert waits.wait(PATIENCE)
            return 404, {}, "no such model"
        return 503, {"Retry-After": "60"}, "busy"

    endpoint.answer = mixed
    monkeypatch.setattr(openai, "asyncio", SimpleNamespace(**{**vars(asyncio), "sleep": endless}))
    with pytest.raises(EndpointError, match="status 404: no such model"):
        await generate(OpenAIPolicy("m", endpoint.url), ask("a"), ask("b", text="bad"))
    assert cancelled.is_set()
    assert len(endpoint.seen) == 2


async def test_cancelling_leaves_a_usable_policy(endpoint):
    over = threading.Event()

    def slow(body: dict[str, Any], count: int) -> Answer:
        if body["messages"][-1]["content"] != "quick":
            over.wait(PATIENCE)
        return chat("done")

    endpoint.answer = slow
    policy = OpenAIPolicy("m", Server(endpoint.url, concurrency=2))
    task = asyncio.create_task(policy.generate([ask(i) for i in range(6)]))
    await until(lambda: len(endpoint.seen) == 2)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert len(endpoint.seen) == 2
    assert (await generate(policy, ask("q", text="quick")))[0].text == "done"
    assert len(endpoint.seen) == 3
    over.set()


async def test_concurrency_has_a_limit_that_is_reached(endpoint):
    together = threading.Barrier(3)

    def slow(body: dict[str, Any], count: int) -> Answer:
        together.wait(PATIENCE)  # breaks where fewer are under way at a time
        return chat("done")

    endpoint.answer = slow
    await generate(
        OpenAIPolicy("m", Server(endpoint.url, concurrency=3)), *[ask(i) for i in range(12)]
    )
    assert endpoint.peak == 3


async def test_logps_ids_and_finish_reasons_are_read(endpoint):
    answers = {
        "full": chat(
            "ab",
            logprobs={"content": [{"token": "a", "logprob": -0.5}, {"token": "b", "logprob": 0}]},
            token_ids=[5, 6],
        ),
        "cut": chat("a", finish_reason="length"),
        "filtered": chat(None, finish_reason="content_filter", logprobs=None),
    }
    endpoint.answer = lambda body, count: answers[body["messages"][-1]["content"]]
    policy = OpenAIPolicy("m", endpoint.url)
    full, cut, filtered = await generate(policy, *[ask(text, text=text) for text in answers])
    assert (full.logps, full.output_ids, full.finish) == ((-0.5, 0.0), (5, 6), "stop")
    assert (cut.text, cut.logps, cut.finish) == ("a", (), "length")
    assert filtered.text == ""
    assert policy.stats.filtered == 1


async def test_refused_optional_parameters_are_dropped_and_said(endpoint, caplog):
    def picky(body: dict[str, Any], count: int) -> Answer:
        if "logprobs" in body:
            return 403, {}, {"error": {"message": "You are not allowed to request logprobs"}}
        if "max_tokens" in body:
            return 400, {}, {"error": {"message": "use max_completion_tokens instead"}}
        return chat(str(body["max_completion_tokens"]))

    endpoint.answer = picky
    policy = OpenAIPolicy("m", endpoint.url, sampling=Sampling(max_tokens=9))
    assert [item.text for item in await generate(policy, ask(1), ask(2))] == ["9", "9"]
    texts = [record.getMessage() for record in caplog.records if "refuses" in record.message]
    assert len(texts) == 1
    assert "refuses the parameter logprobs" in texts[0]
    count = len(endpoint.seen)
    await generate(policy, ask(3))
    assert len(endpoint.seen) == count + 1


@pytest.mark.parametrize(
    "reply",
    ["<html>hello</html>", {"choices": []}, {"choices": [{"message": {"content": 3}}]}, [], "3"],
)
async def test_an_answer_of_another_layout_is_an_error(endpoint, reply):
    endpoint.answer = lambda body, count: (200, {}, reply)
    with pytest.raises(EndpointError, match="not a chat completion"):
        await generate(OpenAIPolicy("m", endpoint.url), ask("x"))


def test_a_policy_works_in_one_event_loop_after_another(endpoint):
    policy = OpenAIPolicy("m", Server(endpoint.url, concurrency=1))
    for _ in range(2):
        assert [d.text for d in asyncio.run(policy.generate([ask(1), ask(2)]))] == ["HI", "HI"]


def test_retry_after_reads_numbers_and_dates():
    date = email.utils.formatdate(1000.0, usegmt=True)
    assert retry_after(date, now=970.0) == 30.0
    assert retry_after("2.5", now=0.0) == 2.5
    for useless in (None, "soon", "-3", "nan", "inf", date):
        assert retry_after(useless, now=2000.0) == 0.0


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("localhost:8000", "expected an endpoint URL"),
        ("ftp://host/v1", "expected an endpoint URL"),
        ("http://host:port/v1", "expected an endpoint URL"),
        ("http://user:word@host/v1", "no user, password or query"),
        ("http://host/v1?key=1", "no user, password or query"),
        ("http://host/#/v1", "no server gets what follows #"),
        ("http://☃.invalid/v1", "is no URL: "),
        ("http://host/v1\x01", "is no URL: "),
    ],
)
def test_wrong_urls_are_explained(url, message):
    with pytest.raises(UsageError, match=message):
        OpenAIPolicy("m", url)


async def test_wrong_numbers_and_keys_are_explained(endpoint, monkeypatch):
    with pytest.raises(UsageError, match="`concurrency` must be greater than 0, got 0"):
        OpenAIPolicy("m", Server(endpoint.url, concurrency=0))
    monkeypatch.setenv("OPENAI_API_KEY", "sk-\u00e9")
    with pytest.raises(UsageError, match="OPENAI_API_KEY holds characters"):
        await generate(OpenAIPolicy("m", endpoint.url), ask("x"))


async def test_a_prompt_that_the_server_finds_too_long_is_shortened_until_it_fits(endpoint):
    def small(body: dict[str, Any], count: int) -> Answer:
        text = body["messages"][-1]["content"]
        if len(text) > 150:
            texts = "This model's maximum context length is 40 tokens. However, you requested 99."
            return 400, {}, {"error": {"message": texts, "code": "context_length_exceeded"}}
        return chat(text)

    endpoint.answer = small
    policy = OpenAIPolicy("m", endpoint.url)
    quote = "a long candidate " * 20
    text = f"What is 6 times 7?\n{quote}\nIs it right?"
    messages = [{"role": "user", "content": text}]
    request = Request(("k",), "a_0", "a", messages, keep="What is 6 times 7?", quotes=(quote,))
    long, short = await generate(policy, request, ask(1))
    assert "What is 6 times 7?" in long.text
    assert "[...]" in long.text
    assert long.text.endswith("Is it right?")
    assert long.shortened == len(text) - len(long.text)
    assert (short.shortened, policy.stats.shortened, policy.stats.retries) == (0, 1, 0)


async def test_a_server_that_refuses_every_length_is_an_error(endpoint):
    endpoint.answer = lambda body, count: (400, {}, "maximum context length is 0")
    messages = [{"role": "user", "content": "xy" * 9} for _ in range(60)]
    request = Request(("k",), "a_0", "a", messages)
    with pytest.raises(EndpointError, match="maximum context length"):
        await generate(OpenAIPolicy("m", endpoint.url), request)
    assert len(endpoint.seen) < 30


async def test_a_prompt_budget_needs_an_engine_that_counts_tokens(endpoint):
    request = Request(("k",), "a_0", "a", [{"role": "user", "content": "x"}], max_prompt=9)
    with pytest.raises(UsageError, match="vllm:PATH@URL"):
        await generate(OpenAIPolicy("m", endpoint.url), request)


async def test_the_switch_for_thoughts_goes_to_the_servers_template(endpoint):
    endpoint.answer = lambda body, count: chat("maybe", finish_reason="length")
    server = Server(endpoint.url, extra_body={"chat_template_kwargs": {"style": "x"}})
    policy = OpenAIPolicy("m", server, thinking=True)
    (done,) = await generate(policy, ask(1))
    assert done.text == "<think>maybe"
    assert endpoint.seen[0]["chat_template_kwargs"] == {"style": "x", "enable_thinking": True}
    await generate(OpenAIPolicy("m", endpoint.url), ask(1))
    assert "chat_template_kwargs" not in endpoint.seen[1]


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
    first = await generate(OpenAIPolicy("m", server), ask(1), ask(2, text="ho"))
    policy = OpenAIPolicy("m", server)
    assert await generate(policy, ask(2, text="ho"), ask(1)) == first[::-1]
    assert len(endpoint.seen) == policy.stats.cached == 2
    assert policy.stats.requests == 0
    await generate(OpenAIPolicy("m", server), ask(3), ask(1, text="ho"))
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


def calling(*calls):
    status, headers, body = chat(None)
    body["choices"][0]["message"]["tool_calls"] = list(calls)
    return status, headers, body


def call(arguments, name="python"):
    return {"id": "x", "type": "function", "function": {"name": name, "arguments": arguments}}


async def text_of(endpoint: Endpoint, messages, tools=(PYTHON,)):
    request = Request((1,), "a_0", "a", messages, tools=tools)
    (done,) = await generate(OpenAIPolicy("m", endpoint.url), request)
    return done.text


async def test_tools_and_results_are_sent_as_endpoints_take_them(endpoint):
    made = ToolCall("000000000", "python", {"code": "print(1)"})
    chats = [
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": "", "tool_calls": [made.plain()]},
        made.result("1"),
    ]
    await text_of(endpoint, chats)
    body = endpoint.seen[0]
    assert body["tools"] == [PYTHON.schema()]
    sent = body["messages"][1]["tool_calls"][0]["function"]
    assert sent == {"name": "python", "arguments": '{"code": "print(1)"}'}
    assert body["messages"][2] == made.result("1")


async def test_nothing_is_sent_without_tools(endpoint):
    endpoint.answer = lambda body, count: calling(call("{}"))
    assert await text_of(endpoint, [{"role": "user", "content": "hi"}], ()) == ""
    assert "tools" not in endpoint.seen[0]


@pytest.mark.parametrize(
    ("calls", "fault"),
    [
        ([call('{"code": "a </tool_call> b"}')], ""),
        ([call("{}")], "python: arguments lacks 'code'"),
        ([call("")], "python: arguments lacks 'code'"),
        ([call('{"code": ')], "a call that is no JSON"),
        ([call('{"code": "1"}, "more": {}')], "a call has the names"),
        ([call('{"code": "1"}', "run")], "no tool 'run'"),
        ([call('{"code": "1"}')] * 2, "2 calls where 1 may be made"),
        ([{"id": "x"}], "a call has the names"),
        ([call({"code": "1"})], "a call has the names"),
        (["python"], "a call must be an object"),
    ],
)
async def test_calls_are_read_or_refused(endpoint, calls, fault):
    endpoint.answer = lambda body, count: calling(*calls)
    reading = read_calls(await text_of(endpoint, [{"role": "user", "content": "hi"}]), (PYTHON,))
    assert reading.fault.startswith(fault)
    assert bool(reading.calls) == (not fault)
    if reading.calls:
        assert dict(reading.calls[0].arguments) == json.loads('{"code": "a </tool_call> b"}')
