"""Calls of Hermes, Llama 3 and Mistral become one notation; faults stay faults."""

import re

import pytest

from flowzoo.agents.chat.template import find_family, one_notation
from flowzoo.envs.tools import Tool, read_calls
from flowzoo.errors import UsageError

TOOLS = (
    Tool("run", "Run.", {"type": "object", "properties": {"code": {"type": "string"}}}),
)  # fmt: skip


def read(text, family, most=1):
    reading = read_calls(one_notation(text, family), TOOLS, most)
    return [dict(call.arguments) for call in reading.calls], reading.fault


@pytest.mark.parametrize(
    ("family", "text"),
    [
        ("hermes", '<tool_call>\n{"name": "run", "arguments": {"code": "1"}}\n</tool_call>'),
        ("llama", '{"name": "run", "parameters": {"code": "1"}}'),
        ("llama", '{"name": "run", "arguments": {"code": "1"}}'),  # vLLM's parser reads it, too
        ("llama", '<|python_tag|>{"parameters": {"code": "1"}, "name": "run"}'),
        ("llama", ' {"name": "run",\n "parameters" : {"code": "1"}} '),
        ("mistral", '[TOOL_CALLS][{"name": "run", "arguments": {"code": "1"}}]'),
        ("mistral", 'I run it. [TOOL_CALLS] [ {"name": "run", "arguments": {"code": "1"}} ] '),
        ("mistral", '[TOOL_CALLS] [{"name": "run", "arguments": {"code": "1"}, "id": "a1"}]'),
        ("mistral", '[TOOL_CALLS]run[ARGS]{"code": "1"}'),
    ],
)
def test_a_call_is_read(family, text):
    assert read(text, family) == ([{"code": "1"}], "")


QUOTES = '{"code": "\\"parameters\\": </tool_call>"}'


@pytest.mark.parametrize(
    ("family", "text"),
    [
        ("llama", f'{{"name": "run", "parameters": {QUOTES}}}'),
        ("mistral", f'[TOOL_CALLS][{{"name": "run", "arguments": {QUOTES}}}]'),
    ],
)
def test_arguments_may_quote_anything_but_the_tags_of_others(family, text):
    calls, fault = read(text, family)
    assert (fault, calls) == ("", [{"code": '"parameters": <\u200b/tool_call>'}])


@pytest.mark.parametrize(
    ("family", "text", "reason"),
    [
        ("llama", '{"name": "run", "parameters": {"code": 1}}', "must be of type string"),
        ("llama", '{"name": "run", "parameters": {"code": "1"}', "no JSON"),
        (
            "llama",
            '{"name": "run", "parameters": {}, "parameters": {}}',
            "got arguments, name, par",
        ),
        ("llama", '{"name": "run", "parameters": {}} and so on', "text after a call"),
        (
            "llama",
            '{"name": "run", "parameters": {}}; {"name": "run", "parameters": {}}',
            "2 calls",
        ),
        ("llama", '{"name": "run", "parameters": {}};', "no JSON"),
        ("llama", "<|python_tag|>print(1)", "no JSON"),
        ("llama", "{" * 5000, "no JSON"),
        ("mistral", "[TOOL_CALLS]", "no JSON"),
        ("mistral", "[TOOL_CALLS][]", "got list"),
        ("mistral", '[TOOL_CALLS][{"name": "run", "arguments": {}}', "must be an object|no JSON"),
        ("mistral", '[TOOL_CALLS][{"name": "run", "arguments": {}},]', "no JSON"),
        ("mistral", '[TOOL_CALLS][{"name": "run", "arguments": {}}] done', "text after a call"),
        ("mistral", '[TOOL_CALLS][{"name": "run", "arguments": {}}] [1]', "text after a call"),
        ("mistral", '[TOOL_CALLS][{"name": "run", "parameters": {}}]', "got name, parameters"),
        ("mistral", "[TOOL_CALLS]run[ARGS]{", "no JSON"),
        ("mistral", "[TOOL_CALLS]walk[ARGS]{}", "no tool 'walk'"),
        ("mistral", "[TOOL_CALLS]run[ARGS]{}[TOOL_CALLS]run[ARGS]{}", "2 calls"),
        ("mistral", "[TOOL_CALLS]" + "[" * 100_000, "no JSON|nested"),
    ],
)
def test_a_fault_stays_a_fault(family, text, reason):
    calls, fault = read(text, family)
    assert not calls
    assert re.search(reason, fault), fault


@pytest.mark.parametrize("family", ["llama", "mistral"])
def test_the_tags_of_hermes_are_no_call_of_another_family(family):
    text = '<tool_call>{"name": "run", "arguments": {}}</tool_call>'
    assert read(text, family) == ([], "")


def test_the_family_is_found_from_the_template():
    tools = "{% for tool in tools %}"
    assert find_family(tools + "<tool_call>") == "hermes"
    assert find_family(tools + "[TOOL_CALLS]") == "mistral"
    assert find_family(tools + '<|start_header_id|> "parameters": ') == "llama"
    with pytest.raises(UsageError, match="knows no tools"):
        find_family("{% for message in messages %}")
    for other in ("<tool_call><function=", "<tool_call><arg_key>", "<|tool|>"):
        with pytest.raises(UsageError, match="a notation that is not read"):
            find_family(tools + other)
