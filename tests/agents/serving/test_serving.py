"""A workflow that is served: answers, limits, failures, as a tool."""

import asyncio
import socket
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import httpx
import openai
import pytest
from processes import wait_for
from served import Gate, Served, serving

from flowzoo.agents.policy import Completion, Sampling
from flowzoo.agents.policy_map import PolicyMap
from flowzoo.agents.rollout.episodes import EpisodeJob, Rollout
from flowzoo.agents.serving.service import ServingLimits, TeamService
from flowzoo.agents.specs import make_policy
from flowzoo.envs import (
    Ask,
    EpisodeRecord,
    Grade,
    OpenAIProgram,
    Outcome,
    Problem,
    Workflow,
    make_workflow,
)
from flowzoo.envs.tasks import make_task
from flowzoo.envs.tools import ToolCall
from flowzoo.envs.workflow import Roles
from flowzoo.errors import RetrieverError, UsageError


def pocket_map(workflow: Workflow, temperature: float) -> PolicyMap:
    sampling = Sampling(temperature=temperature, max_tokens=64)
    policy = make_policy("pocket", oracle=workflow, sampling=sampling)
    return PolicyMap.shared(policy, workflow.role_counts())


@pytest.fixture(scope="module", params=["voting", "eval_opt"])
def team(request: pytest.FixtureRequest) -> Iterator[Served]:
    workflow = make_workflow(request.param)
    with serving(workflow, pocket_map(workflow, 0.0), temperature=0.0) as served:
        yield served


@pytest.fixture(scope="module")
def sampled() -> Iterator[Served]:
    workflow = make_workflow("voting")
    with serving(workflow, pocket_map(workflow, 1.0)) as served:
        yield served


def client(served: Served, **options: Any) -> openai.OpenAI:
    values = {"api_key": "any", "max_retries": 0, "timeout": 30, **options}
    return openai.OpenAI(base_url=served.url, **values)


def async_client(served: Served) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=served.url, api_key="any", max_retries=0)


def ask(served: Served, model: str = "single_v0", messages: Any = None, **fields: Any) -> Any:
    """The reply, or the stream, of a request by OpenAI's client."""
    create = client(served).chat.completions.create
    return create(model=model, messages=messages or QUESTION, **fields)


TOLD = {"flowzoo": {"transcript": True}}


def post(served: Served, **fields: Any) -> httpx.Response:
    body = {"model": "single_v0", "messages": QUESTION, **fields}
    return httpx.post(f"{served.url}/chat/completions", json=body, timeout=30)


def text_of(reply: Any) -> str:
    return reply.choices[0].message.content


def user(text: str) -> list[Any]:
    return [{"role": "user", "content": text}]


QUESTION = user("Compute 3*4+5.")


def with_policy(policy: Gate, workflow: Workflow | None = None, **settings: Any) -> Any:
    """A server of a workflow whose roles all have this policy."""
    workflow = workflow or make_workflow("single")
    return serving(workflow, PolicyMap.shared(policy, workflow.role_counts()), **settings)


def open_gate(**settings: Any) -> Gate:
    policy = Gate(**settings)
    policy.open.set()
    return policy


def played(workflow: Workflow, policy_map: PolicyMap, count: int) -> list[EpisodeRecord]:
    problems = [workflow.task.problem(index, "validation") for index in range(count)]
    return Rollout(workflow, policy_map).run(map(EpisodeJob, problems))


def test_answers_are_those_of_a_rollout_many_at_once(team):
    workflow = team.service.workflow
    records = played(workflow, pocket_map(workflow, 0.0), 24)
    assert len({record.answer for record in records}) > 8

    async def ask_all() -> list[Any]:
        async with async_client(team) as asker:
            create = partial(asker.chat.completions.create, model=workflow.name, extra_body=TOLD)
            return await asyncio.gather(*(create(messages=user(item.text)) for item in records))

    for record, reply in zip(records, asyncio.run(ask_all()), strict=True):
        (choice,) = reply.choices
        assert choice.message.content == (record.answer or "")
        assert (choice.message.refusal is None) == (record.answer is not None)
        assert choice.finish_reason == "stop"
        turns = choice.flowzoo["transcript"]
        assert [turn["reply"] for turn in turns] == [call.reply for call in record.calls]
        assert [turn["messages"] for turn in turns] == [
            list(call.messages) for call in record.calls
        ]
        assert reply.usage.completion_tokens == sum(len(call.output_ids) for call in record.calls)
        assert reply.usage.prompt_tokens == sum(len(call.prompt_ids) for call in record.calls)


def test_no_score_of_a_question_reaches_a_client(team):
    reply = post(team, model=team.service.workflow.name, **TOLD)
    for word in ("score", "reward", "correct", "grade"):
        assert f'"{word}' not in reply.text


def test_models_are_the_workflow_and_its_roles(team):
    workflow = team.service.workflow
    names = [workflow.name, *workflow.role_counts()]
    assert [model.id for model in client(team).models.list()] == names
    assert client(team).models.retrieve(names[1]).id == names[1]
    with pytest.raises(openai.NotFoundError):
        client(team).models.retrieve("gpt-4o")


def test_a_role_gets_the_messages_as_they_are(team):
    workflow = team.service.workflow
    (record,) = played(workflow, pocket_map(workflow, 0.0), 1)
    reply = ask(team, "generator", list(record.calls[0].messages), extra_body=TOLD)
    assert text_of(reply) == record.calls[0].reply
    (turn,) = reply.choices[0].flowzoo["transcript"]
    assert turn["messages"] == list(record.calls[0].messages)
    assert reply.usage.total_tokens > 0


@pytest.mark.parametrize("name", ["math", "code", "search"])
def test_an_instruction_that_a_question_brings_is_not_given_twice(name):
    workflow, policy = make_workflow("single", name), Versatile()
    with with_policy(policy, workflow) as served:
        create = client(served).chat.completions.create
        texts: list[str] = []
        prompted = workflow.task.prompt(workflow.task.question("Compute 3*4+5."))
        instruction = prompted.removeprefix("Compute 3*4+5.").strip()
        for text in ("Compute 3*4+5.", prompted, f"Compute 3*4+5. {instruction}\n"):
            create(model="single_v0", messages=user(text), seed=1)
            texts += policy.prompts
        assert set(texts) == {prompted}
        for model, text in (("single_v0", instruction), ("single_v0", f"{instruction} 1+1?"),
                            ("generator", prompted)):  # fmt: skip
            create(model=model, messages=user(text))
            expected = text if model == "generator" else f"{text}\n{instruction}"
            assert policy.prompts == [expected]


def test_messages_that_a_chat_template_does_not_take_are_the_client_s_mistake():
    workflow = make_workflow("single")
    policy = make_policy("pocket", oracle=workflow, sampling=Sampling(max_tokens=8))
    refuses = "{% if messages[0].role == 'system' %}{{ raise_exception('No system!') }}{% endif %}"
    broken = "{% if 'break' in messages[0].content %}{{ messages[0].content + 1 }}{% endif %}"
    policy.tokenizer.chat_template = refuses + broken + policy.tokenizer.chat_template
    with with_policy(policy, workflow) as served:
        create = client(served).chat.completions.create
        chats = [{"role": "system", "content": "Be brief."}, *QUESTION], user("break it")
        for chat, reason in zip(chats, ("No system!", "concatenate"), strict=True):
            with pytest.raises(
                openai.BadRequestError, match="does not take these messages"
            ) as error:
                create(model="generator", messages=chat)
            assert (error.value.code, error.value.param) == ("unsupported_messages", "messages")
            assert reason in error.value.message
            assert create(model="generator", messages=QUESTION)
        # Of a workflow the prompts are its own.
        with pytest.raises(openai.InternalServerError, match="does not take these messages"):
            create(model="single_v0", messages=user("break it"))


def test_a_stream_tells_the_turns_and_then_the_answer(team):
    model = team.service.workflow.name
    whole = ask(team, model)
    chunks = list(ask(team, model, stream=True, stream_options={"include_usage": True}))
    turns = [
        chunk.choices[0].delta.reasoning_content
        for chunk in chunks
        if chunk.choices and hasattr(chunk.choices[0].delta, "reasoning_content")
    ]
    assert len(turns) == whole.choices[0].flowzoo["calls"] > 1
    assert turns[0].startswith("[generator_0] ")
    texts = [chunk.choices[0].delta.content for chunk in chunks if chunk.choices]
    assert "".join(filter(None, texts)) == whole.choices[0].message.content
    ends = [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices]
    assert ends == [None] * (len(ends) - 1) + ["stop"]
    assert chunks[-1].usage == whole.usage
    assert len({chunk.id for chunk in chunks}) == 1


def test_a_workflow_sees_the_last_message_and_says_how_many_it_did_not_see(team):
    model = team.service.workflow.name
    alone = ask(team, model)
    earlier = [{"role": "system", "content": "Be brief."}, *user("Hi."),
               {"role": "assistant", "content": "Hi."}]  # fmt: skip
    after = ask(team, model, [*earlier, *QUESTION])
    assert text_of(after) == text_of(alone)
    assert alone.choices[0].flowzoo["unseen_messages"] == 0
    assert after.choices[0].flowzoo["unseen_messages"] == 3


def test_a_seed_repeats_a_request_and_samples_differ(sampled):
    def replies(**more: Any) -> list[list[str]]:
        done = ask(sampled, "voting_v0", user("Compute 37*4+58."), extra_body=TOLD, **more)
        return [[turn["reply"] for turn in item.flowzoo["transcript"]] for item in done.choices]

    four = replies(n=4, seed=1)
    assert replies(n=4, seed=1) == four
    assert replies(seed=1) == four[:1]
    assert len({str(item) for item in four}) > 1
    assert len({str(replies()) for _ in range(6)}) > 1
    assert len({str(replies(seed=seed)) for seed in range(6)}) > 1


def test_samples_are_streamed_with_their_numbers(sampled):
    whole = ask(sampled, "voting_v0", n=3, seed=5)
    texts = ["", "", ""]
    for chunk in ask(sampled, "voting_v0", n=3, seed=5, stream=True):
        texts[chunk.choices[0].index] += chunk.choices[0].delta.content or ""
    assert texts == [choice.message.content for choice in whole.choices]


def test_replies_are_capped_and_end_before_a_stop(sampled):
    short = ask(sampled, "generator", max_tokens=2)
    assert short.choices[0].finish_reason == "length"
    assert short.usage.completion_tokens == 2
    assert ask(sampled, "generator", max_completion_tokens=1).usage.completion_tokens == 1
    team = ask(sampled, "voting_v0", max_tokens=2)
    assert (team.choices[0].message.content, team.choices[0].finish_reason) == ("", "length")
    assert team.choices[0].message.refusal
    assert team.usage.completion_tokens == 8
    assert "\\box" not in text_of(ask(sampled, "generator", stop="\\box"))


LARGE = {
    "id": "1", "type": "function",
    "function": {"name": "f", "arguments": f'{{"a": [{",".join(["[]"] * 9000)}]}}'},
}  # fmt: skip
WRONG: dict[str, tuple[Any, int, str, str | None]] = {
    "no body": (b"", 400, "invalid_json", None),
    "no JSON": (b"{'model': 1}", 400, "invalid_json", None),
    "half a JSON": (b'{"model": "voting', 400, "invalid_json", None),
    "no UTF-8": (b'{"model": "\xff"}', 400, "invalid_json", None),
    "a deep JSON": (b"[" * 10_000, 400, "invalid_json", None),
    "not a number": (b'{"temperature": NaN}', 400, "invalid_json", None),
    "UTF-16": ('{"model": "writer"}'.encode("utf-16"), 400, "invalid_json", None),
    "a long number": (b'{"n": ' + b"9" * 9000 + b"}", 400, "invalid_json", None),
    "a list": ([], 400, "invalid_type", None),
    "a model that is a list": ({"model": ["voting_v0"]}, 400, "invalid_type", "model"),
    "no model": ({"model": None}, 400, "invalid_type", "model"),
    "another model": ({"model": "gpt-4o"}, 404, "model_not_found", "model"),
    "another agent": ({"model": "generator_7"}, 404, "model_not_found", "model"),
    "no messages": ({"messages": None}, 400, "invalid_type", "messages"),
    "an empty chat": ({"messages": []}, 400, "invalid_type", "messages"),
    "a text for a chat": ({"messages": "hi"}, 400, "invalid_type", "messages"),
    "a message that is a text": ({"messages": ["x"]}, 400, "invalid_type", "messages[0]"),
    "no role": ({"messages": [{"content": "x"}]}, 400, "invalid_value", "messages[0].role"),
    "a role that is a dict": (
        {"messages": [{"role": {}, "content": "x"}]}, 400, "invalid_value", "messages[0].role",
    ),
    "an unknown role": (
        {"messages": [{"role": "function", "content": "x"}]},
        400, "invalid_value", "messages[0].role",
    ),
    "no content": ({"messages": [{"role": "user"}]}, 400, "invalid_type", "messages[0].content"),
    "content that is a number": (
        {"messages": user(3)},  # type: ignore[arg-type]
        400, "invalid_type", "messages[0].content",
    ),
    "a part that is a text": (
        {"messages": user(["x"])},  # type: ignore[arg-type]
        400, "unsupported_content", "messages[0].content",
    ),
    "large arguments of calls": (
        {"messages": [{"role": "assistant", "tool_calls": [LARGE, LARGE]}]},
        413, "request_too_large", None,
    ),
    "an empty question": ({"messages": user(" \n")}, 400, "invalid_value", "messages[0]"),
    "the last word is not the user's": (
        {"messages": [*QUESTION, {"role": "assistant", "content": "17"}]},
        400, "invalid_value", "messages[1]",
    ),
    "half a surrogate pair": (
        b'{"model": "voting_v0", "messages": [{"role": "user", "content": "\\ud800"}]}',
        400, "invalid_value", "messages[0].content",
    ),
    "a picture": (
        {"messages": user([{"type": "image_url", "image_url": {"url": "x"}}])},  # type: ignore[arg-type]
        400, "unsupported_content", "messages[0].content",
    ),
    "a tool's result": (
        {"messages": [{"role": "tool", "content": "x"}]},
        400, "invalid_value", "messages[0].tool_call_id",
    ),
    "a tool without a function": (
        {"tools": [{"type": "function"}]}, 400, "unsupported_tool", "tools[0]",
    ),
    "a forced tool of none": ({"tool_choice": "required"}, 400, "invalid_value", "tool_choice"),
    "a warm temperature": ({"temperature": "warm"}, 400, "invalid_type", "temperature"),
    "no samples": ({"n": 0}, 400, "invalid_value", "n"),
    "many samples": ({"n": 257}, 400, "invalid_value", "n"),
    "half a sample": ({"n": 1.5}, 400, "invalid_type", "n"),
    "no tokens": ({"max_tokens": 0}, 400, "invalid_value", "max_tokens"),
    "a seed that is a text": ({"seed": "1"}, 400, "invalid_type", "seed"),
    "a seed of 65 bits": ({"seed": 2**64}, 400, "invalid_value", "seed"),
    "five stops": ({"stop": ["a"] * 5}, 400, "invalid_type", "stop"),
    "an empty stop": ({"stop": ""}, 400, "invalid_type", "stop"),
    "a stop that is none": ({"stop": [""]}, 400, "invalid_type", "stop"),
    "a note that is a text": ({"metadata": "x"}, 400, "invalid_type", "metadata"),
    "a format": (
        {"model": "generator", "response_format": {"type": "grammar"}},
        400, "unsupported_value", "response_format",
    ),
    "tokens that are a truth value": ({"max_tokens": True}, 400, "invalid_type", "max_tokens"),
    "stream options that are a list": (
        {"stream_options": []}, 400, "invalid_type", "stream_options",
    ),
    "a stream that is a text": ({"stream": "yes"}, 400, "invalid_type", "stream"),
    "a transcript that is a text": (
        {"flowzoo": {"transcript": "yes"}}, 400, "invalid_type", "flowzoo.transcript",
    ),
    "fields that ask for nothing": (
        {"n": 1, "logprobs": False, "tools": [], "temperature": 1, "top_p": 1.0,
         "frequency_penalty": 0, "response_format": {"type": "text"}, "stop": None},
        200, "", None,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_request_is_refused_by_name(name, sampled):
    body, status, code, param = WRONG[name]
    if isinstance(body, dict):
        body = {"model": "voting_v0", "messages": QUESTION, **body}
    sent = {"content": body} if isinstance(body, bytes) else {"json": body}
    reply = httpx.post(f"{sampled.url}/chat/completions", timeout=30, **sent)
    assert reply.status_code == status, reply.text
    assert "flowzoo" not in reply.json()
    if status != 200:
        error = reply.json()["error"]
        assert (error["code"], error["param"]) == (code, param)
        assert error["type"] == "invalid_request_error"
        assert error["message"]
    assert not sampled.service.open


def test_a_key_is_needed_where_there_is_one():
    policy = open_gate()
    with with_policy(policy, api_key="s3cret") as served:
        keys = ("Bearer S3cret", "Bearer s3cret2", "Basic s3cret", "s3cret", "Bearer \u00e9")
        for headers in ({}, *({"Authorization": key.encode("latin-1")} for key in keys)):
            for path in ("models", "models/single_v0"):
                reply = httpx.get(f"{served.url}/{path}", headers=headers)
                code = reply.json()["error"]["code"]
                assert (reply.status_code, code) == (401, "invalid_api_key")
        with pytest.raises(openai.AuthenticationError):
            ask(served)
        reply = client(served, api_key="s3cret").chat.completions.create(
            model="single_v0", messages=QUESTION
        )
        assert reply.choices[0].message.content == "7"
        assert policy.asked == 1


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_leaves_drops_its_play_alone(stream):
    policy = Gate(batching="static")
    with with_policy(policy) as served:

        async def leave_and_stay() -> Any:
            async with async_client(served) as asker:
                settings: Any = {"model": "single_v0", "messages": QUESTION}
                create = asker.chat.completions.create
                first = asyncio.create_task(create(**settings))
                await asyncio.to_thread(wait_for, lambda: policy.asked == 1)
                leaving = asyncio.create_task(create(**settings, n=2, stream=stream))
                await asyncio.to_thread(wait_for, lambda: len(served.service.engine.futures) == 3)
                if stream:
                    await (await leaving).close()
                else:
                    leaving.cancel()
                await asyncio.to_thread(wait_for, lambda: len(served.service.engine.futures) == 1)
                policy.open.set()
                return await first

        assert asyncio.run(leave_and_stay()).choices[0].message.content == "7"
    assert policy.asked == 1  # what was dropped was never asked
    assert served.service.answered == 1


def test_more_than_may_be_open_wait_and_more_than_may_wait_are_told_when_to_come_again():
    policy = Gate()
    with with_policy(policy, limits=ServingLimits(max_open=2, max_waiting=1)) as served:
        line = served.service.line
        body = {"model": "single_v0", "messages": QUESTION}
        with ThreadPoolExecutor(2) as pool, httpx.Client(timeout=20) as client:

            def ask(count: int) -> httpx.Response:
                return client.post(f"{served.url}/chat/completions", json={**body, "n": count})

            first = pool.submit(ask, 2)
            wait_for(lambda: policy.asked == 2)
            second = pool.submit(ask, 1)
            wait_for(lambda: len(line.waiting) == 1)
            refused = ask(1)
            assert (refused.status_code, refused.headers["retry-after"]) == (429, "1")
            assert refused.json()["error"]["code"] == "too_many_requests"

            policy.open.set()
            assert len(first.result().json()["choices"]) == 2
            assert len(second.result().json()["choices"]) == 1
            assert (line.used, len(line.waiting)) == (0, 0)
            line.leave(-1, 1e9)  # one is under way, and the last took very long
            assert (line.used, line.retry_s) == (1, 600)
            line.leave(1, 0.0)


@pytest.mark.parametrize("end", ["leaves", "is stopped"])
def test_who_waits_in_the_line_and_gets_no_slot_leaves_its_place(end):
    policy = Gate()
    with (
        with_policy(policy, limits=ServingLimits(max_open=1), grace=0.2) as served,
        ThreadPoolExecutor(2) as pool,
    ):
        body = {"model": "single_v0", "messages": QUESTION}
        ask = partial(httpx.post, f"{served.url}/chat/completions", json=body)
        first = pool.submit(ask, timeout=20)
        wait_for(lambda: policy.asked == 1)
        line = served.service.line
        if end == "leaves":
            with pytest.raises(httpx.ReadTimeout):
                ask(timeout=0.3)
            wait_for(lambda: not line.waiting)
            policy.open.set()
            assert first.result().status_code == 200
        else:
            second = pool.submit(ask, timeout=20)
            wait_for(lambda: len(line.waiting) == 1)
            served.server.stop()
            assert second.result().json()["error"]["code"] == "server_ending"
        wait_for(lambda: (line.used, len(line.waiting)) == (0, 0))


@pytest.mark.parametrize("stream", [False, True])
def test_an_answer_that_takes_too_long_is_an_error(stream):
    with with_policy(Gate(), limits=ServingLimits(seconds=0.2)) as served:
        if stream:
            with pytest.raises(openai.APIError, match=r"longer than 0\.2 s"):
                list(ask(served, stream=True))
        else:
            reply = post(served)
            assert (reply.status_code, reply.json()["error"]["code"]) == (504, "timeout")
        wait_for(lambda: not served.service.engine.futures)


def test_a_body_that_does_not_come_is_an_error():
    with with_policy(Gate(), limits=ServingLimits(seconds=0.2)) as served:
        port = int(served.url.rpartition(":")[2].removesuffix("/v1"))
        head = "POST /v1/chat/completions HTTP/1.1\r\nHost: [::1]\r\nContent-Length: 100\r\n\r\n{"
        with socket.create_connection(("127.0.0.1", port), timeout=20) as sent:
            sent.sendall(head.encode())
            assert sent.recv(4096).startswith(b"HTTP/1.1 408 ")


def test_a_stream_without_news_has_comments(monkeypatch):
    monkeypatch.setattr("flowzoo.agents.serving.service.PULSE_S", 0.02)
    policy = Gate()
    with with_policy(policy) as served:
        body: Any = {"model": "single_v0", "messages": QUESTION, "stream": True}
        with httpx.stream("POST", f"{served.url}/chat/completions", json=body, timeout=20) as reply:
            raw = ""
            for part in reply.iter_text():
                raw += part
                if raw.count(": the workflow is playing\n\n") > 2:
                    policy.open.set()
        policy.open.clear()
        threading.Timer(0.3, policy.open.set).start()
        texts = [chunk.choices[0].delta.content or "" for chunk in ask(served, stream=True)]
        assert "".join(texts) == "7"


@pytest.mark.parametrize(
    ("error", "code", "text"),
    [
        (RetrieverError("the endpoint is down"), "policy_failed", "the endpoint is down"),
        (ValueError("secret"), "server_error", "The request failed by ValueError."),
    ],
)
def test_a_policy_that_fails_fails_its_requests_alone(error, code, text, caplog):
    policy = open_gate(batching="static", error=error)
    with with_policy(policy) as served:
        reply = post(served)
        assert reply.status_code == 500
        assert (reply.json()["error"]["code"], reply.json()["error"]["message"]) == (code, text)
        policy.error = None
        assert ask(served)
    assert caplog.records


class Choosy(Gate):
    """Cannot take some chats."""

    async def generate(self, requests: Any) -> Any:
        """Fail for all if one cannot be taken."""
        if any("bad" in request.messages[-1]["content"] for request in requests):
            raise ValueError("no template")
        return await super().generate(requests)


def test_a_chat_that_a_policy_cannot_take_fails_alone():
    policy = Choosy(batching="static")
    policy.open.set()
    with with_policy(policy) as served:

        async def ask_all() -> list[Any]:
            async with async_client(served) as asker:
                create = asker.chat.completions.create
                texts = ["one", "bad", "two", "bad", "three"]
                asks = [create(model="generator", messages=user(text)) for text in texts]
                return await asyncio.gather(*asks, return_exceptions=True)

        for _ in range(3):
            kinds = [type(reply).__name__ for reply in asyncio.run(ask_all())]
            good, bad = "ChatCompletion", "InternalServerError"
            assert kinds == [good, bad, good, bad, good]


def test_a_shortened_prompt_is_reported(sampled):
    for model in ("voting_v0", "generator"):
        reply = ask(sampled, model, user("Compute 3*4+5. " * 2000), max_tokens=8)
        assert reply.choices[0].flowzoo["shortened"] > 0
    assert ask(sampled, "voting_v0").choices[0].flowzoo["shortened"] == 0


@dataclass(frozen=True)
class Steered(Workflow):
    """Asks again where the grade says that the answer is wrong."""

    name: ClassVar[str] = "steered_v0"
    roles: ClassVar[Roles] = {"solver": 1}  # type: ignore[assignment]

    def play(self, problem: Problem) -> Any:
        reply = yield Ask("solver_0", self.task.prompt(problem), self.task.answer)
        grade = yield Grade(reply.strict, of=reply)
        if problem.text.endswith("?") and grade.score < 1:
            reply = yield Ask("solver_0", "Again.", self.task.answer)
        return Outcome(reply.strict, grade.score)


def test_a_script_that_is_steered_by_grades_has_no_answer():
    with with_policy(open_gate(), Steered(make_task("math"))) as served:
        assert text_of(ask(served, "steered_v0")) == "7"
        with pytest.raises(openai.InternalServerError, match="by the grades of its answers"):
            ask(served, "steered_v0", user("What is 3*4+5?"))


@pytest.mark.parametrize(
    ("workflow", "task", "message"),
    [
        ("voting", "sudoku", "is a world, not a text"),
        ("code_pair", "code", "needs problems that ask for a function"),
    ],
)
def test_what_cannot_play_a_question_is_refused_at_the_start(workflow, task, message):
    made = make_workflow(workflow, task)
    with pytest.raises(UsageError, match=message):
        TeamService(made, PolicyMap.shared(Gate(), made.role_counts()))


class Versatile(Gate):
    """Answers everything with the same text."""

    async def generate(self, requests: Any) -> Any:
        """Answer."""
        text = "\\boxed{7}\n```python\nprint(3 + 4)\n```\n<answer>Rome</answer>"
        self.asked += len(requests)
        self.prompts = [request.messages[-1]["content"] for request in requests]
        self.tools = [tool.name for request in requests for tool in request.tools]
        return [Completion(text) for _ in requests]


@pytest.mark.parametrize(
    ("name", "task", "answer"),
    [
        ("single", "code", "print(3 + 4)"),
        ("voting", "code", None),  # no candidate has the number 7
        ("eval_opt", "code", "print(3 + 4)"),
        ("coder_tester", "code", "print(3 + 4)"),
        ("orch_workers", "math", "7"),
        ("reasoner_tool", "math", "7"),
        ("search_team", "search", "Rome"),
    ],
)
def test_workflows_play_questions_of_their_tasks(name, task, answer):
    settings = {"tools": "tests"} if name == "eval_opt" else {}
    workflow, policy = make_workflow(name, task, **settings), Versatile()
    with with_policy(policy, workflow) as served:
        reply = ask(served, workflow.name)
        assert text_of(reply) == (answer or "")
        assert (reply.choices[0].message.refusal is None) == (answer is not None)
        assert reply.choices[0].flowzoo["calls"] == policy.asked
        assert reply.usage is None  # this policy counts no tokens
    assert "public tests" not in policy.prompts[0] or "no public tests" in policy.prompts[0]


@pytest.mark.parametrize("cap", [None, 32])
def test_agents_have_their_tools_in_a_request_with_a_cap(cap):
    workflow, policy = make_workflow("reasoner_python"), Versatile()
    with with_policy(policy, workflow) as served:
        ask(served, workflow.name, max_tokens=cap)
    assert policy.tools == ["python"]


def test_a_program_is_served_too():

    def solve(problem: str, base_url: str, api_key: str) -> str:
        asker = openai.OpenAI(base_url=base_url, api_key=api_key)
        messages: Any = user(problem)
        return asker.chat.completions.create(
            model="solver", messages=messages
        ).choices[0].message.content or ""  # fmt: skip

    workflow = OpenAIProgram(solve, roles="solver", at_once=1)
    with with_policy(open_gate(), workflow) as served:
        assert text_of(ask(served, workflow.name)) == "7"


@pytest.mark.parametrize("grace", [5.0, 0.2])
def test_open_requests_have_some_seconds_at_the_end(grace):
    policy = Gate()
    with with_policy(policy, grace=grace) as served:

        async def ask() -> Any:
            async with async_client(served) as asker:
                create = asker.chat.completions.create
                opened = asyncio.create_task(create(model="single_v0", messages=QUESTION))
                await asyncio.to_thread(wait_for, lambda: policy.asked == 1)
                served.server.stop()
                await asyncio.to_thread(wait_for, lambda: served.service.ending)
                with pytest.raises(openai.APIError):  # refused, or no longer connected
                    await create(model="single_v0", messages=QUESTION)
                if grace > 1:
                    policy.open.set()
                return await opened

        if grace > 1:
            assert asyncio.run(ask()).choices[0].message.content == "7"
        else:
            with pytest.raises(openai.InternalServerError, match="The server is ending"):
                asyncio.run(ask())
        served.thread.join(60)
        assert not served.thread.is_alive()


def test_a_workflow_is_a_tool_that_answers_questions(monkeypatch):
    tools = pytest.importorskip("flowzoo.adapters.mcp_tools", reason="needs flowzoo[mcp]")
    monkeypatch.setattr(tools, "_START_S", 300.0)  # it loads a model
    words = "-m", "flowzoo.cli", "serve", "voting", "--mcp", "--temperature", "0"
    source = tools.McpTools((sys.executable, *words), 300.0)
    try:
        (tool,) = source.tools()
        assert tool.name == "voting_v0"
        arguments = {"question": "Compute 50-4*8."}, {"question": ""}, {"question": 3}, {}
        calls = [ToolCall("1", name, row) for name in ("voting_v0", "x") for row in arguments]
        answers = source.use(calls)
    finally:
        tools.close_servers()
    assert answers[0] == "18"
    assert answers[1].startswith("Error: The last message must be the user's")
    assert all(answer.startswith("Error: `messages[0].content`") for answer in answers[2:4])
    assert all("does not exist" in answer for answer in answers[4:])
