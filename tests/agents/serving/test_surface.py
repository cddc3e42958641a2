"""The table of fields: every documented field is honored, mapped or ignored, and it is said."""

import json
import logging
from collections.abc import Iterator
from typing import Any

import httpx
import openai
import pytest
from openai.types.chat.completion_create_params import CompletionCreateParamsBase
from openai.types.responses.response_create_params import ResponseCreateParamsBase
from policies import Replies
from served import Served, serving

from flowzoo.agents.policy_map import PolicyMap
from flowzoo.envs import make_workflow
from flowzoo.envs.door.fields import FIELDS, Surface, check_fields, fields_of, outcome
from flowzoo.envs.door.replies import ReplyChoice, reply_writer
from flowzoo.envs.door.wire import read_request
from flowzoo.envs.tools import ToolCall
from flowzoo.front.refusal import RefusalError

VALUES: dict[str, Any] = {
    "temperature": 0.3, "top_p": 0.5, "max_tokens": 10**9, "max_completion_tokens": 10**9,
    "max_output_tokens": 10**9, "seed": 1, "n": 1, "stop": ["never"], "stream": False,
    "stream_options": {"include_usage": True}, "parallel_tool_calls": False,
    "response_format": {"type": "json_object"}, "text": {"format": {"type": "json_object"}},
    "frequency_penalty": 1.0, "presence_penalty": 1, "logit_bias": {"1": 5}, "logprobs": True,
    "top_logprobs": 5, "reasoning_effort": "low", "reasoning": {"effort": "low"},
    "verbosity": "low", "functions": [{"name": "f"}], "function_call": {"name": "f"},
    "modalities": ["text", "audio"], "user": "me", "store": True, "service_tier": "flex",
    "tool_choice": "auto", "tools": [], "truncation": "auto", "background": True,
    "instructions": "Be brief.",
}  # fmt: skip
KINDS: dict[type | None, Any] = {str: "x", dict: {"x": 1}, list: ["x"], int: 3, bool: True}


def value_of(name: str, kind: type | None) -> Any:
    """A value that asks for something."""
    return VALUES.get(name, KINDS.get(kind, "x"))


@pytest.fixture(scope="module")
def team() -> Iterator[Served]:
    workflow = make_workflow("voting")
    policy = Replies(lambda request: "\\boxed{1}")
    with serving(workflow, PolicyMap.shared(policy, workflow.role_counts())) as served:
        yield served


def test_the_table_has_the_fields_of_the_official_client():
    for api, params in (
        ("chat", CompletionCreateParamsBase),
        ("responses", ResponseCreateParamsBase),
    ):
        names = {field.name for field in fields_of(api)}  # type: ignore[arg-type]
        assert names == {*params.__annotations__, "stream", "flowzoo"}
    words = {word.partition(":")[0].partition(";")[0].partition(",")[0]
             for field in FIELDS for word in (field.door, outcome(field, "serve"))}  # fmt: skip
    assert words == {"honored", "mapped", "ignored", "refused"}


def body_of(api: str, **fields: Any) -> dict[str, Any]:
    """A request to a role."""
    question = [{"role": "user", "content": "Compute 3*4+5."}]
    messages = {"messages": question} if api == "chat" else {"input": "Compute 3*4+5."}
    return {"model": "generator", **messages, **fields}


def asked(url: str, api: str, **fields: Any) -> httpx.Response:
    path = "chat/completions" if api == "chat" else "responses"
    return httpx.post(f"{url}/{path}", json=body_of(api, **fields), timeout=60)


@pytest.mark.parametrize("api", ["chat", "responses"])
def test_what_every_field_comes_to_is_what_the_table_says(api, team, caplog):
    caplog.set_level(logging.WARNING, "flowzoo")
    for field in fields_of(api):
        if field.name in ("model", "messages", "input"):
            continue
        done = outcome(field, "serve")
        for _ in range(2):
            reply = asked(team.url, api, **{field.name: value_of(field.name, field.kind)})
            body = reply.json()
            if done.startswith("refused"):
                error = body["error"]
                assert (reply.status_code, error["param"]) == (400, field.name), body
                continue
            assert reply.status_code == 200, (field, body)
            ignored = body.get("flowzoo", {}).get("ignored", [])
            parts = [f"{field.name}.x"] if field.name == "flowzoo" else []
            assert ignored == ([field.name] if done.startswith("ignored") else parts)
    said = [record.args[0] for record in caplog.records if "no effect" in record.msg]
    assert len(said) == len(set(said))


def test_fields_that_nobody_knows_are_ignored_and_named(team):
    for api in ("chat", "responses"):
        body = asked(team.url, api, guided_json={}, top_k=5, absent=None).json()
        assert sorted(body["flowzoo"]["ignored"]) == ["guided_json", "top_k"]


def test_ignored_fields_are_named_once_and_not_without_end():
    fields = {f"x{number}": 1 for number in range(1000)}
    raw = json.dumps(body_of("chat", n=3, **fields)).encode()
    request = read_request(raw, "chat", Surface("serve", ("generator",)))
    assert len(request.ignored) == 32
    chunks = reply_writer(request, "1").start()
    assert [b"flowzoo" in chunk for chunk in chunks] == [True, False, False]


def test_the_server_s_own_sampling_is_not_ignored():
    surface = Surface("serve", ("m",), sampling={"temperature": 1.0, "top_p": 1.0})
    same = {"temperature": 1, "top_p": 1.0}
    assert check_fields({"model": "m", **same}, "chat", surface) == []
    other = check_fields({"model": "m", **same, "top_p": 0.5}, "chat", surface)
    assert other == ["top_p"]


def test_a_strict_server_refuses_what_it_would_ignore():
    workflow = make_workflow("single")
    policies = PolicyMap.shared(Replies(lambda request: "7"), workflow.role_counts())
    with serving(workflow, policies, strict=True) as served:
        for api in ("chat", "responses"):
            error = asked(served.url, api, user="me").json()["error"]
            assert (error["code"], error["param"]) == ("unsupported_parameter", "user")
            assert asked(served.url, api, temperature=1.0).status_code == 200


def test_a_format_is_asked_for_and_its_fence_removed():
    workflow, prompts = make_workflow("single"), list[str]()

    def answer(request: Any) -> str:
        prompts.append(request.messages[0]["content"])
        return '```json\n{"x": 1}\n```'

    policies = PolicyMap.shared(Replies(answer), workflow.role_counts())
    schema = {"name": "s", "schema": {"type": "object", "properties": {"x": {"type": "integer"}}}}
    forms: dict[str, Any] = {
        "chat": {"response_format": {"type": "json_schema", "json_schema": schema}},
        "responses": {"text": {"format": {"type": "json_schema", **schema}}},
    }
    with serving(workflow, policies) as served:
        for api, form in forms.items():
            body = asked(served.url, api, **form).json()
            message = body["choices"][0]["message"] if api == "chat" else body["output"][0]
            text = message["content"] if api == "chat" else message["content"][0]["text"]
            assert json.loads(text) == {"x": 1}
        whole = asked(served.url, "chat", model="single_v0", **forms["chat"]).json()
    assert len(set(prompts[:2])) == 1
    assert json.dumps(schema["schema"]) in prompts[0]
    assert whole["flowzoo"]["ignored"] == ["response_format"]
    assert "schema" not in prompts[2]


def texts_of(events: Any) -> list[str]:
    return [event.type for event in events]


def test_responses_of_the_official_client_in_one_piece_and_streamed(team):
    client = openai.OpenAI(base_url=team.url, api_key="any", max_retries=0)
    for model, text in (("voting_v0", "1"), ("generator", "\\boxed{1}")):
        done = client.responses.create(model=model, input="Compute 3*4+5.", metadata={"a": "b"})
        assert (done.output_text, done.status, done.metadata) == (text, "completed", {"a": "b"})
        with client.responses.stream(model=model, input="Compute 3*4+5.") as stream:
            events = list(stream)
            final = stream.get_final_response()
        kinds = texts_of(events)
        assert (kinds[0], kinds[-1]) == ("response.created", "response.completed")
        numbers = [event.sequence_number for event in events]
        assert numbers == list(range(len(numbers)))
        assert final.output_text == text
    question: list[Any] = [
        {"role": "developer", "content": "Be brief."},
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "1+1?"}]},
        {"type": "message", "role": "assistant", "id": "msg_1", "status": "completed",
         "content": [{"type": "output_text", "text": "2", "annotations": []}]},
        {"type": "reasoning", "id": "rs_1", "summary": []},
        {"role": "user", "content": "2+2?"},
    ]  # fmt: skip
    assert client.responses.create(model="generator", input=question).output_text == "\\boxed{1}"


def rows_of(events: list[bytes]) -> list[dict[str, Any]]:
    return [json.loads(event.partition(b"data: ")[2]) for event in events]


def test_an_item_of_streamed_responses_ends_before_the_next_one_begins():
    raw = json.dumps(body_of("responses")).encode()
    writer = reply_writer(read_request(raw, "responses", Surface("serve", ("generator",))), "1")
    calls = [ToolCall(name, name, {}) for name in "fg"]
    choice = ReplyChoice(0, "I look.", "tool_calls", calls)
    rows = rows_of([*writer.start(), *writer.parts(choice), *writer.finish(choice)])[2:]
    assert [row["output_index"] for row in rows] == [0] * 6 + [1] * 4 + [2] * 4
    assert [row["type"].rpartition(".")[2] for row in rows[6:10]] == [
        "added", "delta", "done", "done",
    ]  # fmt: skip
    named = [row["type"] for row in rows if "name" in row]
    assert named == ["response.function_call_arguments.done"] * 2
    assert {row["type"].rpartition(".")[0] for row in rows if "logprobs" in row} == {
        "response.output_text"
    }


@pytest.mark.parametrize("api", ["chat", "responses"])
def test_a_stream_that_fails_ends_with_an_event_of_its_api(api):
    raw = json.dumps(body_of(api)).encode()
    writer = reply_writer(read_request(raw, api, Surface("serve", ("generator",))), "1")
    *_, row = rows_of([*writer.start(), writer.fail(RefusalError(504, "timeout", "Too late."))])
    fault = {"code": "timeout", "message": "Too late."}
    if api == "chat":
        assert row == {"error": {**fault, "type": "server_error", "param": None}}
        return
    assert (row["type"], row["sequence_number"]) == ("response.failed", 2)
    assert (row["response"]["status"], row["response"]["error"]) == ("failed", fault)


def test_a_role_with_tools_is_sampled_anew_as_one_without():
    seeds: list[Any] = []
    workflow = make_workflow("single")
    policy = Replies(lambda request: seeds.append(request.key[0]) or "\\boxed{1}")
    tool: Any = {"type": "function", "function": {"name": "look", "parameters": ADD}}
    with serving(workflow, PolicyMap.shared(policy, workflow.role_counts())) as served:
        for model in ("generator", "generator", "single_v0", "single_v0"):
            asked(served.url, "chat", model=model, tools=[tool])
    assert [len(set(seeds[:2])), len(set(seeds[2:]))] == [2, 1]


ADD = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
CALL = '<tool_call>\n{"name": "look", "arguments": {"a": 1}}\n</tool_call>'


def calling(request: Any) -> str:
    """Calls the tool once, and then answers by its result."""
    if not request.tools:
        return "\\boxed{7}"
    last = request.messages[-1]
    return f"\\boxed{{{last['content']}}}" if last["role"] == "tool" else f"I look.{CALL}"


@pytest.mark.parametrize("model", ["eval_opt_v0", "single_v0", "generator"])
@pytest.mark.parametrize("stream", [False, True])
def test_the_last_speaker_calls_the_client_s_tools(model, stream):
    workflow = make_workflow("eval_opt" if model.startswith("eval") else "single")
    policies = PolicyMap.shared(Replies(calling), workflow.role_counts())
    tool: Any = {"type": "function", "function": {"name": "look", "parameters": ADD}}
    with serving(workflow, policies) as served:
        client = openai.OpenAI(base_url=served.url, api_key="any", max_retries=0)
        chat: list[Any] = [{"role": "user", "content": "Compute 3*4+5."}]
        create = client.chat.completions.create
        if stream:
            with client.chat.completions.stream(model=model, messages=chat, tools=[tool]) as events:
                list(events)
                (choice,) = events.get_final_completion().choices
        else:
            (choice,) = create(model=model, messages=chat, tools=[tool]).choices
        assert choice.finish_reason == "tool_calls"
        (call,) = list[Any](choice.message.tool_calls or ())
        assert (call.function.name, json.loads(call.function.arguments)) == ("look", {"a": 1})
        assert choice.message.content == "I look."
        chat += [choice.message.model_dump(exclude_none=True),
                 {"role": "tool", "tool_call_id": call.id, "content": "9"}]  # fmt: skip
        (last,) = create(model=model, messages=chat, tools=[tool]).choices
        assert last.finish_reason == "stop"
        if model != "eval_opt_v0":  # whose last speaker judges the answer
            assert "9" in (last.message.content or "")
        flat: Any = {"type": "function", "name": "look", "parameters": ADD, "strict": False}
        done = client.responses.create(model=model, input="Compute 3*4+5.", tools=[flat])
        (item,) = [item for item in done.output if item.type == "function_call"]
        output: Any = {"type": "function_call_output", "call_id": item.call_id, "output": "9"}
        items: Any = [{"role": "user", "content": "Compute 3*4+5."}, *done.output, output]
        again = client.responses.create(model=model, input=items, tools=[flat])
        assert again.status == "completed"
        assert not [item for item in again.output if item.type == "function_call"]


WRONG: dict[str, tuple[dict[str, Any], str, str]] = {
    "no input": ({"input": None}, "invalid_type", "input"),
    "an empty input": ({"input": []}, "invalid_type", "input"),
    "an item that is a number": ({"input": [3]}, "unsupported_content", "input[0]"),
    "an item of elsewhere": (
        {"input": [{"type": "item_reference", "id": "x"}]}, "unsupported_content", "input[0]",
    ),
    "a picture": (
        {"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]},
        "unsupported_content", "input[0].content",
    ),
    "an output of no call": (
        {"input": [{"type": "function_call_output", "call_id": "x", "output": "1"}]},
        "invalid_value", "input[0].tool_call_id",
    ),
    "a call that cannot be read": (
        {"input": [{"type": "function_call", "call_id": "x", "name": "f", "arguments": "{"}]},
        "invalid_value", "input[0].tool_calls[0]",
    ),
    "a built-in tool": ({"tools": [{"type": "web_search"}]}, "unsupported_tool", "tools[0]"),
    "an earlier response": (
        {"previous_response_id": "resp_1"}, "unsupported_parameter", "previous_response_id",
    ),
    "instructions that are a list": ({"instructions": []}, "invalid_type", "instructions"),
    "an unknown format": (
        {"text": {"format": {"type": "grammar"}}}, "unsupported_value", "response_format",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_request_to_responses_is_refused_by_name(name, team):
    fields, code, param = WRONG[name]
    reply = asked(team.url, "responses", **fields)
    error = reply.json()["error"]
    assert (reply.status_code, error["code"], error["param"]) == (400, code, param), error


@pytest.mark.parametrize("path", ["embeddings", "completions", "audio/speech"])
def test_other_addresses_of_the_client_are_refused_by_name(path, team):
    reply = httpx.post(f"{team.url}/{path}", json={"model": "voting_v0", "input": "x"})
    assert reply.status_code == 404
    assert f"There is no POST /v1/{path}" in reply.json()["error"]["message"]
