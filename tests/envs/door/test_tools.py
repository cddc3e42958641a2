"""Tools of agent programs: what a request may offer, the turn it is, and the reply it gets."""

import json
from typing import Any

import pytest
from agent_programs import Client, chat, play_together, start
from policies import Replies

from flowzoo.agents import PolicyMap
from flowzoo.agents.rollout.episodes import EpisodeJob, Rollout
from flowzoo.envs import Episode, make_env
from flowzoo.envs.external.program import OpenAIProgram
from flowzoo.envs.testing import advance, check_workflow
from flowzoo.envs.testing.workflow_checks import check_forks
from tests.envs.playing import opened

ADD = {
    "type": "object",
    "properties": {"a": {"type": "integer"}, "b": {"type": "integer", "minimum": 0}},
    "required": ["a", "b"],
}
CALL = '<tool_call>\n{"name": "add", "arguments": {"a": 1, "b": "\\ud800"}}\n</tool_call>'


def tool(name: str = "add", parameters: Any = ADD, **fields: Any) -> dict[str, Any]:
    function = {"name": name, "description": "Add.", "parameters": parameters, **fields}
    return {"type": "function", "function": function}


def using(problem: str, base_url: str, key: str) -> str:
    """Offers a tool, sends the result of a call of it to another agent, and shows all answers."""
    client = Client(base_url, key)
    client.send(chat("writer", problem, tools=[tool()]))
    _, body = client.receive()
    (choice,) = body["choices"]
    message = choice["message"]
    if choice["finish_reason"] != "tool_calls":
        return message["content"]
    (call,) = message["tool_calls"]
    result = {
        "role": "tool",
        "tool_call_id": call["id"],
        "content": [{"type": "text", "text": "3"}],
    }
    client.send(
        {"model": "reader", "messages": [{"role": "user", "content": "x"}, message, result]}
    )
    return json.dumps([message["content"], call, client.reply()])


USING = OpenAIProgram(using, roles="writer,reader", at_once=1)


def replied(solve: Any, *replies: str, **settings: Any) -> Episode:
    """An episode with these replies."""
    episode = start(OpenAIProgram(solve, roles="writer,reader", at_once=1, **settings))
    for reply in replies:
        (turn,) = episode.waiting
        episode.reply(turn.agent, reply)
        advance(episode)
    return episode


def test_a_call_goes_to_the_program_and_its_result_to_an_agent():
    episode = replied(using, f"<think>{CALL}</think>I add.{CALL}", "four")
    content, call, last = json.loads(episode.finished().answer or "")
    assert (content, last) == ("I add.", "four")
    assert call["function"] == {"name": "add", "arguments": '{"a": 1, "b": "\ufffd"}'}
    first, second = episode.turns
    assert [offer.schema() for offer in first.tools] == [tool()]
    assert second.tools == ()
    _, calling, result = second.messages
    assert calling["content"] == "I add."
    assert calling["tool_calls"][0]["function"]["arguments"] == {"a": 1, "b": "\ufffd"}
    assert result == {
        "role": "tool", "content": "3", "tool_call_id": call["id"], "name": "add",
    }  # fmt: skip


@pytest.mark.parametrize("broken", [CALL[:-12], f"{CALL} So 3.", CALL.replace("add", "sub")])
def test_a_call_that_cannot_be_read_is_text_and_a_fault(broken):
    episode = replied(using, broken)
    assert episode.finished().answer == broken.strip()
    (turn,) = episode.turns
    assert turn.reply is not None
    assert turn.reply.fault
    assert turn.reply.strict is None


def test_arguments_are_checked_where_the_program_asks_for_it():
    def solve(problem: str, base_url: str, key: str) -> str:
        client = Client(base_url, key)
        strict = {"type": "object", "properties": {"a": {"type": "integer"}}}
        client.send(chat("writer", problem, tools=[tool(parameters=strict, strict=True)]))
        return str(client.receive()[1]["choices"][0]["finish_reason"])

    for arguments, finish in (('{"a": 1}', "tool_calls"), ('{"a": "1"}', "stop")):
        call = f'<tool_call>{{"name": "add", "arguments": {arguments}}}</tool_call>'
        assert replied(solve, call).finished().answer == finish


@pytest.mark.parametrize(
    ("fields", "reply", "finish", "uncalled"),
    [
        ({}, CALL + CALL, "tool_calls", 0),
        ({"parallel_tool_calls": False}, CALL + CALL, "stop", 0),
        ({"parallel_tool_calls": False}, CALL, "tool_calls", 0),
        ({"tool_choice": "auto"}, "3", "stop", 0),
        ({"tool_choice": "none"}, CALL, "stop", 0),
        ({"tool_choice": "required"}, "3", "stop", 1),
        ({"tool_choice": "required"}, CALL, "tool_calls", 0),
        ({"tool_choice": {"type": "function", "function": {"name": "add"}}}, CALL, "tool_calls", 0),
        ({"tool_choice": {"type": "function", "function": {"name": "look"}}}, CALL, "stop", 1),
        ({"stop": ["I "]}, f"I add.{CALL}", "stop", 0),
        ({"stop": ["1"]}, CALL, "tool_calls", 0),
    ],
)
def test_choices_of_a_request(fields, reply, finish, uncalled):
    def solve(problem: str, base_url: str, key: str) -> str:
        client = Client(base_url, key)
        client.send(chat("writer", problem, tools=[tool(), tool("look")], **fields))
        (choice,) = client.receive()[1]["choices"]
        return f"{choice['finish_reason']} {len(choice['message'].get('tool_calls', ()))}"

    outcome = replied(solve, reply).finished()
    count = reply.count("<tool_call>") if finish == "tool_calls" else 0
    assert outcome.answer == f"{finish} {count}"
    assert outcome.facts["uncalled"] == uncalled


TURNS = [{"role": "user", "content": "x"}]
CALLING = {"id": "1", "type": "function", "function": {"name": "add", "arguments": "{}"}}
REFUSED: dict[str, tuple[dict[str, Any], str, str]] = {
    "tools that are no list": ({"tools": {}}, "invalid_type", "tools"),
    "too many tools": ({"tools": [tool(f"t{n}") for n in range(129)]}, "invalid_type", "tools"),
    "two of a name": ({"tools": [tool(), tool()]}, "invalid_value", "tools"),
    "a custom tool": ({"tools": [{"type": "custom"}]}, "unsupported_tool", "tools[0]"),
    "no function": ({"tools": [{"type": "function"}]}, "unsupported_tool", "tools[0]"),
    "a tool without a name": (
        {"tools": [tool("")]}, "unsupported_schema", "tools[0].function",
    ),
    "parameters that are a list": (
        {"tools": [tool(parameters=[1])]}, "invalid_type", "tools[0].function.parameters",
    ),
    "a strict schema that cannot be checked": (
        {"tools": [tool(strict=True)]}, "unsupported_schema", "tools[0].function",
    ),
    "a strict schema that is none": (
        {"tools": [tool(parameters={"type": "object", "properties": 3}, strict=True)]},
        "unsupported_schema", "tools[0].function",
    ),
    "a choice of an unknown tool": (
        {"tools": [tool()], "tool_choice": {"type": "function", "function": {"name": "x"}}},
        "invalid_value", "tool_choice",
    ),
    "a required call without tools": ({"tool_choice": "required"}, "invalid_value", "tool_choice"),
    "an unknown choice": (
        {"tools": [tool()], "tool_choice": "any"}, "unsupported_value", "tool_choice",
    ),
    "parallel calls that are a text": (
        {"parallel_tool_calls": "no"}, "invalid_type", "parallel_tool_calls",
    ),
    "calls that are a text": (
        {"messages": [{"role": "assistant", "content": "", "tool_calls": "x"}]},
        "invalid_type", "messages[0].tool_calls",
    ),
    "a call without a name": (
        {"messages": [{"role": "assistant", "content": "", "tool_calls": [{"id": "1"}]}]},
        "invalid_value", "messages[0].tool_calls[0]",
    ),
    "a call of the user": (
        {"messages": [{"role": "user", "content": "", "tool_calls": [CALLING]}]},
        "invalid_value", "messages[0].tool_calls",
    ),
    "arguments that are no JSON": (
        {"messages": [{
            "role": "assistant", "content": None,
            "tool_calls": [{**CALLING, "function": {"name": "add", "arguments": "{"}}],
        }]},
        "invalid_value", "messages[0].tool_calls[0]",
    ),
    "a result of no call": (
        {"messages": [{"role": "tool", "tool_call_id": "1", "content": "x"}]},
        "invalid_value", "messages[0].tool_call_id",
    ),
    "a message without content and calls": (
        {"messages": [{"role": "assistant", "content": None}]},
        "invalid_type", "messages[0].content",
    ),
}  # fmt: skip


def test_what_cannot_be_honored_is_refused_by_name():
    def solve(problem: str, base_url: str, key: str) -> str:
        client = Client(base_url, key)
        for name, (fields, code, param) in REFUSED.items():
            client.send({"model": "writer", "messages": TURNS, **fields})
            status, body = client.receive()
            error = body["error"]
            assert (status, error["code"], error["param"]) == (400, code, param), (name, body)
        return "7"

    outcome = replied(solve).finished()
    assert (outcome.answer, outcome.facts["refused"]) == ("7", len(REFUSED)), outcome.facts


def test_the_official_client_reads_calls_and_streams_of_them():
    openai = pytest.importorskip("openai")

    def solve(problem: str, base_url: str, key: str) -> str:
        request: dict[str, Any] = {
            "model": "writer", "messages": TURNS, "tools": [tool(), tool("look")],
        }  # fmt: skip
        with openai.OpenAI(base_url=base_url, api_key=key) as client:
            whole = client.chat.completions.create(**request).choices[0].message
            calls: dict[int, list[str]] = {}
            text = finish = ""
            for chunk in client.chat.completions.create(**request, stream=True):
                delta, finish = chunk.choices[0].delta, chunk.choices[0].finish_reason
                text += delta.content or ""
                for call in delta.tool_calls or ():
                    parts = call.id, call.function.name, call.function.arguments
                    calls.setdefault(call.index, []).extend(parts)
        return json.dumps([whole.content, [call.function.name for call in whole.tool_calls],
                           text, finish, calls])  # fmt: skip

    look = '<tool_call>{"name": "look", "arguments": {}}</tool_call>'
    outcome = replied(solve, look, f"Two.{look}{look}").finished()
    content, names, text, finish, calls = json.loads(outcome.answer or "")
    assert (content, names, text, finish) == (None, ["look"], "Two.", "tool_calls")
    assert calls == {str(n): [f"00000100{n}", "look", "{}"] for n in range(2)}


def test_rollouts_show_tools_to_policies_and_record_them():
    policy = Replies(lambda request: CALL if request.tools else "\\boxed{3}")
    policy_map = PolicyMap.shared(policy, USING.role_counts())
    (record,) = Rollout(USING, policy_map).run([EpisodeJob(USING.task.problem(0))])
    assert [(call.agent, bool(call.tools), call.strict) for call in record.calls] == [
        ("writer_0", True, True),
        ("reader_0", False, True),
    ]
    assert record.to_json()["calls"][0]["tools"] == (tool(),)


def test_it_is_an_environment_with_tools_in_its_observations():
    env = opened(make_env(USING))
    assert env.observation_space("writer_0").contains(env.observe("writer_0"))
    assert env.observe("writer_0")["tools"] == [tool()]
    env.step(CALL)
    assert env.observe("reader_0")["tools"] == []
    assert env.observe("reader_0")["messages"][2]["role"] == "tool"
    assert env.observation_space("reader_0").contains(env.observe("reader_0"))


def test_a_fork_asks_the_same_after_calls():
    check_forks(USING)
    episode = start(USING)
    twin = episode.fork()
    for copy in (episode, twin):
        copy.reply("writer_0", CALL)
        advance(copy)
        copy.reply("reader_0", "four")
        advance(copy)
    assert episode.finished() == twin.finished()
    (whole,) = play_together(USING, reply="7")
    assert whole.finished().answer == "7"


@pytest.mark.full
def test_all_checks_of_a_workflow():
    check_workflow(USING)
