"""Tools in chat templates, with the tokenizer of a pocket model and a template of Hermes' kind."""

import pytest

from flowzoo.agents.chat.template import ChatTokenizer
from flowzoo.envs.tools import ToolCall
from flowzoo.envs.workflows.reasoner_python import PYTHON
from flowzoo.errors import UsageError

TEMPLATE = (
    "{% if tools %}{{ tools | tojson }} <tool_call>{% endif %}{% for m in messages %}"
    "{{ m.role }}: {{ m.content }}{% for c in m.tool_calls or [] %}"
    "<tool_call>{{ c.function | tojson }}</tool_call>{% endfor %};{% endfor %}assistant:"
)
CHAT = [{"role": "user", "content": "hi"}]


def shown(chat, messages, tools=()):
    return chat.tokenizer.decode(chat.measure(messages, tools).ids)


def test_a_template_without_tools_is_an_error(tokenizer):
    chat = ChatTokenizer(tokenizer, {})
    assert chat.encode([CHAT])
    with pytest.raises(UsageError, match="the chat template knows no tools"):
        chat.encode([CHAT], [(PYTHON,)])


def test_tools_are_rendered_and_change_nothing_where_there_are_none(tokenizer):
    tokenizer.chat_template = TEMPLATE
    chat = ChatTokenizer(tokenizer, {})
    call = ToolCall("000000000", "python", {"code": "print(1)"})
    said = {"role": "assistant", "content": "", "tool_calls": [call.plain()]}
    rendered = shown(chat, [*CHAT, said, call.result("1")], (PYTHON,))
    assert '"name": "python", "description"' in rendered
    assert '<tool_call>{"name": "python", "arguments": {"code": "print(1)"}}' in rendered
    assert rendered.endswith("tool: 1;assistant:")
    assert shown(chat, CHAT) == "user: hi;assistant:"
    plain, offered = chat.encode([CHAT, CHAT], [(), (PYTHON,)])
    assert len(plain.ids) < len(offered.ids)
    assert chat.encode([CHAT])[0] == plain == chat.measure(CHAT)
    assert chat.measure(CHAT, (PYTHON,)) == offered


def test_special_tokens_in_calls_are_inert(tokenizer):
    tokenizer.chat_template = TEMPLATE
    chat = ChatTokenizer(tokenizer, {})
    end = tokenizer.eos_token
    call = ToolCall("000000000", "python", {"code": f"print('{end}')"})
    said = {"role": "assistant", "content": "", "tool_calls": [call.plain()]}
    assert end not in shown(chat, [*CHAT, said, call.result(end)], (PYTHON,))
