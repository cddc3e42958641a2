"""Calls of tools: readable ones are read, every planted fault is refused with its reason."""

import json
import re

import pytest

from flowzoo.envs.tools import Tool, before_calls, call_text, read_calls
from flowzoo.errors import UsageError

TOOLS = (
    Tool(
        "add",
        "Add.",
        {
            "type": "object",
            "properties": {
                "a": {"type": "number"},
                "b": {"type": ["integer", "null"]},
                "how": {"enum": ["fast", "slow"]},
                "tags": {"type": "array", "items": {"type": "string"}},
                "place": {
                    "type": "object",
                    "properties": {"x": {"type": "boolean"}},
                    "required": ["x"],
                },
                "either": {"anyOf": [{"type": "string"}, {"const": 1}]},
            },
            "required": ["a"],
        },
    ),
    Tool("look", "Look.", {"type": "object", "properties": {}}),
)


def call(**arguments):
    return json.dumps({"name": "add", "arguments": arguments})


def tagged(body):
    return f"<tool_call>{body}</tool_call>"


NO_JSON = "no JSON"
FAULTS = [
    # Tags.
    ("<tool_call>", "without a closing tag"),
    ("</tool_call>", "closing tag without a call"),
    ("<tool_call>" + call(a=1), "without a closing tag"),
    (tagged(call(a=1)) + "</tool_call>", "text after a call"),
    (tagged(call(a=1)) + "The answer is 3.", "text after a call"),
    (tagged(call(a=1)) + "\n```\nThe answer is 3.", "text after a call"),
    ("```xml\n" + tagged(call(a=1)) + "\n``` \\boxed{3}", "text after a call"),
    (tagged(call(a=1)) + "\n```json\n" + call(a=2) + "\n```", "text after a call"),
    ("```\n" + tagged(call(a=1)) + "\n```\n```\n" + tagged(call(a=2)), "2 calls where 1"),
    (tagged(call(a=1)) + "<tool_call>", "without a closing tag"),
    (tagged(tagged(call(a=1))), "call inside a call"),
    (tagged(call(a=1)[:-1] + "<tool_call>" + "}"), "call inside a call"),
    (tagged(call(a=1)) + tagged(call(a=2)), "2 calls where 1 may be made"),
    # JSON.
    (tagged(""), NO_JSON),
    (tagged("add(1, 2)"), NO_JSON),
    (tagged(call(a=1).replace('"', "'")), NO_JSON),
    (tagged(call(a=1)[:-1]), NO_JSON),
    (tagged(call(a=1) + "}"), NO_JSON),
    (tagged('{"name": "add", "arguments": {"a": 1,}}'), NO_JSON),
    (tagged('{"name": "add", "arguments": {"a": 01}}'), NO_JSON),
    (tagged('{"name": "add", "arguments": {"how": "fa\nst"}}'), NO_JSON),
    (tagged('{"name": "add", "arguments": {"a": ' + "9" * 5000 + "}}"), NO_JSON),
    (tagged("```json\n" + call(a=1) + "\n```"), NO_JSON),
    (tagged("<function=add><parameter=a>1</parameter></function>"), NO_JSON),
    (tagged('{"name": "add", "arguments": {"a": NaN}}'), "NaN is no number"),
    (tagged('{"name": "add", "arguments": {"a": -Infinity}}'), "-Infinity is no number"),
    (tagged("[" * 100_000), "nested too deep"),
    (tagged('{"name": "add", "name": "look", "arguments": {}}'), "'name' is given twice"),
    (tagged('{"name": "add", "arguments": {"a": 1, "a": 2}}'), "'a' is given twice"),
    # The call.
    (tagged("[" + call(a=1) + "]"), "must be an object, got list"),
    (tagged("null"), "must be an object, got NoneType"),
    (tagged('"add"'), "must be an object, got str"),
    (tagged("{}"), "names name and arguments, got none"),
    (tagged('{"name": "add"}'), "got name"),
    (tagged('{"arguments": {"a": 1}}'), "got arguments"),
    (tagged('{"name": "add", "parameters": {"a": 1}}'), "got name, parameters"),
    (tagged('{"name": "add", "arguments": {"a": 1}, "id": 1}'), "got arguments, id, name"),
    (tagged('{"function": ' + call(a=1) + "}"), "got function"),
    (tagged('{"name": "sub", "arguments": {}}'), "no tool 'sub'; there is add, look"),
    (tagged('{"name": "Add", "arguments": {}}'), "no tool 'Add'"),
    (tagged('{"name": null, "arguments": {}}'), "no tool None"),
    (tagged('{"name": ["add"], "arguments": {}}'), "no tool \\['add'\\]"),
    (tagged('{"name": "add", "arguments": "{\\"a\\": 1}"}'), "arguments must be an object"),
    (tagged('{"name": "add", "arguments": [1, 2]}'), "arguments must be an object, got list"),
    (tagged('{"name": "add", "arguments": null}'), "arguments must be an object"),
    # The arguments.
    (tagged(call()), "arguments lacks 'a'"),
    (tagged(call(a=1, c=1)), "the unknown name 'c'"),
    (tagged(call(a=1, A=1)), "the unknown name 'A'"),
    (tagged('{"name": "look", "arguments": {"at": 1}}'), "the unknown name 'at'"),
    (tagged(call(a="1")), "arguments.a must be of type number, got str"),
    (tagged(call(a=True)), "arguments.a must be of type number, got bool"),
    (tagged(call(a=1, b=1.5)), "arguments.b must be of type integer or null"),
    (tagged(call(a=1, how="quick")), "arguments.how must be one of"),
    (tagged(call(a=1, how=["fast"])), "arguments.how must be one of"),
    (tagged(call(a=1, tags=["x", 1])), r"arguments.tags\[1\] must be of type string"),
    (tagged(call(a=1, place={})), "arguments.place lacks 'x'"),
    (tagged(call(a=1, place={"x": 1})), "arguments.place.x must be of type boolean"),
    (tagged(call(a=1, place={"x": True, "y": 1})), "arguments.place has the unknown name 'y'"),
    (tagged(call(a=1, either=2)), "arguments.either fits none of its 2 descriptions"),
    (tagged(call(a=1, either=True)), "arguments.either fits none of its 2 descriptions"),
]


def test_there_are_many():
    assert len({text for text, _ in FAULTS}) >= 60


@pytest.mark.parametrize(("text", "reason"), FAULTS)
def test_a_faulty_call_is_refused_with_its_reason(text, reason):
    reading = read_calls(text, TOOLS)
    assert reading.calls == ()
    assert re.search(reason, reading.fault), reading.fault


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"a": 1}, tagged(call(a=1))),
        ({"a": 1.5, "b": None}, "I add.\n" + tagged("\n" + call(a=1.5, b=None) + "\n") + "\n"),
        ({"a": 2, "either": 1}, tagged(call(a=2, either=1))),
        ({"a": 2, "either": "</tool_call>"}, call_text(call(a=2, either="</tool_call>"))),
        (
            {"a": 2, "tags": [], "place": {"x": False}},
            tagged(call(a=2, tags=[], place={"x": False})),
        ),
    ],
)
def test_a_call_is_read(arguments, text):
    reading = read_calls(text, TOOLS, number=12)
    assert reading.fault == ""
    assert [(c.id, c.name, dict(c.arguments)) for c in reading.calls] == [
        ("000012000", "add", arguments)
    ]


def test_more_calls_where_they_are_allowed():
    reading = read_calls(tagged(call(a=1)) + "\n" + tagged(call(a=2)), TOOLS, most=2)
    assert [dict(c.arguments) for c in reading.calls] == [{"a": 1}, {"a": 2}]
    assert reading.calls[0].id != reading.calls[1].id


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("", "\n```"),
        ("", "```\n\n"),
        ("```xml\n", "\n```"),
        ("```\n", "\n```\n"),
        ("````json\n", "\n````"),
        ("", "\n```\n```python"),
    ],
)
def test_code_fences_around_a_call_say_nothing(before, after):
    for head in ("", "I add.\n", "```python\n1 + 2\n```\n"):
        text = head + before + tagged(call(a=1)) + after
        reading = read_calls(text, TOOLS)
        assert ([dict(c.arguments) for c in reading.calls], reading.fault) == ([{"a": 1}], "")
        assert before_calls(text) == head.strip()
    both = (before + tagged(call(a=1)) + after + "\n") * 2
    assert len(read_calls(both, TOOLS, most=2).calls) == 2


def test_thoughts_before_a_call_are_whole():
    head = "<think>Shall I write <tool_call>?\n```\nYes.</think>I add."
    for fence in ("", "```\n"):
        assert before_calls(f"{head}\n{fence}{tagged(call(a=1))}") == head


def test_a_long_fence_takes_no_time():
    text = tagged(call(a=1)) + "`" * 1_000_000 + "!"
    assert read_calls(text, TOOLS).fault == "text after a call"


def test_required_counts_without_properties_too():
    text = {"type": "string"}
    one = Tool(
        "one",
        "One of two.",
        {
            "type": "object",
            "properties": {"a": text, "b": text},
            "anyOf": [{"required": ["a"]}, {"required": ["b"]}],
        },
    )
    assert one.fault({}) == "arguments fits none of its 2 descriptions"
    assert one.fault({"a": ""}) == one.fault({"a": "", "b": ""}) == ""


def test_a_reply_without_a_call_has_none_and_no_fault():
    for text in ("", "4", call(a=1), "<tool_call", "[TOOL_CALLS]"):
        assert read_calls(text, TOOLS) == ((), "")


@pytest.mark.parametrize(
    ("name", "parameters", "message"),
    [
        ("a b", {"type": "object"}, "1 to 64 ASCII letters"),
        ("", {"type": "object"}, "1 to 64 ASCII letters"),
        ("a", [], "expected a JSON schema"),
        ("a", {}, '"type": "object"'),
        ("a", {"type": "string"}, '"type": "object"'),
        ("a", {"type": "object", "properties": {"b": {"pattern": "x"}}}, "a.b: pattern cannot be"),
        ("a", {"type": "object", "properties": {"b": {"type": "text"}}}, "type must be one of"),
        ("a", {"type": "object", "properties": {"b": {"type": [[]]}}}, "type must be one of"),
        ("a", {"type": "object", "properties": 3}, "properties must be a dict"),
        ("a", {"type": "object", "required": "b"}, "required must be a list"),
        ("a", {"type": "object", "properties": {"b": {"anyOf": 1}}}, "a.b: anyOf must be a list"),
        ("a", {"type": "object", "properties": {"b": {"enum": 1}}}, "a.b: enum must be a list"),
    ],
)
def test_a_tool_that_cannot_be_checked_is_an_error(name, parameters, message):
    with pytest.raises(UsageError, match=message):
        Tool(name, "text", parameters)


def test_arguments_of_an_unchecked_tool_may_be_any():
    schema = {"type": "object", "properties": {"b": {"pattern": "x"}}}
    checked = Tool("a", "text", {"type": "object", "properties": {}})
    shown = {"type": "function", "function": {**checked.schema()["function"], "parameters": schema}}
    unchecked = Tool.of_schema(shown)
    assert unchecked.schema() == shown
    text = tagged('{"name": "a", "arguments": {"b": 1}}')
    assert read_calls(text, (unchecked,)).calls[0].arguments == {"b": 1}
    assert "unknown name 'b'" in read_calls(text, (checked,)).fault
