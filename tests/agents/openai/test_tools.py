"""Tools at an endpoint: sent as they are, calls read into the notation of replies."""

import json

import pytest
from endpoint import Endpoint, chat, generate

from flowzoo.agents.openai.policy import OpenAIPolicy
from flowzoo.agents.policy import Request
from flowzoo.envs.tools import ToolCall, read_calls
from flowzoo.envs.workflows.reasoner_python import PYTHON


def calling(*calls):
    status, headers, body = chat(None)
    body["choices"][0]["message"]["tool_calls"] = list(calls)
    return status, headers, body


def call(arguments, name="python"):
    return {"id": "x", "type": "function", "function": {"name": name, "arguments": arguments}}


async def ask(endpoint: Endpoint, messages, tools=(PYTHON,)):
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
    await ask(endpoint, chats)
    body = endpoint.seen[0]
    assert body["tools"] == [PYTHON.schema()]
    sent = body["messages"][1]["tool_calls"][0]["function"]
    assert sent == {"name": "python", "arguments": '{"code": "print(1)"}'}
    assert body["messages"][2] == made.result("1")


async def test_nothing_is_sent_without_tools(endpoint):
    endpoint.answer = lambda body, count: calling(call("{}"))
    assert await ask(endpoint, [{"role": "user", "content": "hi"}], ()) == ""
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
    reading = read_calls(await ask(endpoint, [{"role": "user", "content": "hi"}]), (PYTHON,))
    assert reading.fault.startswith(fault)
    assert bool(reading.calls) == (not fault)
    if reading.calls:
        assert dict(reading.calls[0].arguments) == json.loads('{"code": "a </tool_call> b"}')
