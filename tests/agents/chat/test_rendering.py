"""Chat templates of strangers: what each may cost, and prompts equal to those of transformers."""

import pytest

from flowzoo.agents.chat import rendering
from flowzoo.agents.chat.rendering import render
from flowzoo.agents.chat.template import ChatTokenizer
from flowzoo.agents.chat.thoughts import thinks_unasked
from flowzoo.errors import ChatError, UsageError
from tests.agents.chat.test_template import ALWAYS, SWITCHED, TEMPLATE

CHAT = [{"role": "user", "content": "Hi é \U0001f600 <b>'\"&"}]
DOUBLED = "{% set n = namespace(x=START) %}{% for i in range(99) %}{% set n.x = STEP %}{% endfor %}"
SHARED = DOUBLED.replace("START", "[1]").replace("STEP", "[n.x, n.x]")
TIME, MEMORY = r"takes more than 5 s", r"takes more than 1 GiB"
EITHER = f"{TIME}|{MEMORY}|ends the process|makes a prompt of|does not take"

LOOPS = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"
MACRO = "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}"

HOSTILE = {
    "loops": (LOOPS, TIME),
    "product": ("{{ 'a' * 10**10 }}", MEMORY),
    "power": ("{{ 10 ** (10 ** 10) }}", TIME),
    "center": ("{{ 'a' | center(10**10) }}", MEMORY),
    "format": ("{{ '%9999999999d' % 1 }}", EITHER),
    "new format": ("{{ '{:>9999999999}'.format(1) }}", EITHER),
    "indent": ("{{ 'a\nb' | indent(10**10) }}", MEMORY),
    "json": ("{{ [1] | tojson(indent=10**10) }}", MEMORY),
    "batch": ("{{ [1] | batch(10**10, 'x') | list }}", MEMORY),
    "slice": ("{{ [1] | slice(10**10) | list }}", EITHER),
    "zeros": ("{{ 'a'.zfill(10**10) }}", MEMORY),
    "tabs": ("{{ '\t'.expandtabs(2000000000) }}", MEMORY),
    "bytes": ("{{ (1).to_bytes(10**10, 'big') }}", MEMORY),
    "lorem": ("{{ lipsum(n=10**9) }}", EITHER),
    "join": ("{{ (range(99999) | join('x' * 99999)) | length }}", MEMORY),
    "doubling": (DOUBLED.replace("START", "'a'").replace("STEP", "n.x ~ n.x"), EITHER),
    "shared": (SHARED + "{{ n.x }}", EITHER),
    "compared": (SHARED + "{% set a = n.x %}" + SHARED + "{{ a == n.x }}", TIME),
    "macro": (MACRO + "{{ f(60) }}", TIME),
    "recursion": ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "does not take"),
    "parentheses": ("{{ " + "(" * 10**5 + "1" + ")" * 10**5 + " }}", EITHER),
    "long": ("{{ 'a' * 2**21 }}", "makes a prompt of 2,097,152 characters"),
    "class": ("{{ ''.__class__.__mro__ }}", "does not take these messages: access to attribute"),
    "change": ("{{ messages.append(1) }}", "does not take"),
    "message": ("{{ raise_exception('two\nlines') }}", "does not take these messages: two lines$"),
    "sum": ("{% set x = [1] * 99999 %}{{ ([x] * 99999) | sum(start=[]) | length }}", EITHER),
    "certain chats": ("x{% if messages[-1].content == 'now' %}" + LOOPS + "{% endif %}", TIME),
}  # fmt: skip

EVERYTHING = """{{- bos_token }}
{% set ns = namespace(system='', n=0) %}
{% macro show(text, upper=false) -%}
  {{ (text | upper if upper else text) | trim }}
{%- endmacro %}
{% for message in messages %}
    {% if message.role == 'system' %}{% set ns.system = message.content %}{% continue %}{% endif %}
    {% set ns.n = ns.n + 1 %}
    {% if ns.n > 2 %}{% break %}{% endif %}
<|{{ message['role'] }}|>{{ show(message.content, upper=loop.first) }} {{ message | tojson }}
    {% generation %}{% set seen = 1 %}{{ message.content.split('>')[0] | replace('é', 'e') }}
    {% endgeneration %}{{ seen is defined }}
{% endfor %}
{{ tools | tojson(indent=2) if tools else 'no tools' }} {{ documents }} {{ strftime_now('%Y') }}
{{ {'b': [1.5, none, true], 'a': 'é'} | tojson(sort_keys=true, separators=(',', ':')) }}
{{ unknown is defined }}{{ enable_thinking | default('unset') }} {{ (1, 'x') }} {{ eos_token }}
{%- if add_generation_prompt %}<|assistant|>{% endif %}"""


@pytest.mark.parametrize("kind", HOSTILE)
def test_no_template_takes_more_than_its_limits(kind, tokenizer, monkeypatch):
    monkeypatch.setattr(rendering, "MOST_SECONDS", 0.4)
    tokenizer.chat_template, fault = HOSTILE[kind]
    chat = [{"role": "user", "content": "now"}]
    with pytest.raises(UsageError, match=fault) as caught:
        render(tokenizer, [(chat, {})])
    assert "\n" not in str(caught.value)
    if not isinstance(caught.value, ChatError):
        assert repr(tokenizer.name_or_path) in str(caught.value)
        assert str(caught.value).endswith("to a template that you know")
    tokenizer.chat_template = "{{ messages[0].content }}"
    assert render(tokenizer, [(chat, {})] * 40) == ["now"] * 40


@pytest.mark.parametrize("template", ["", "{# nothing #}", "{% if messages[1] %}x{% endif %}"])
def test_an_empty_prompt_is_refused(template, tokenizer):
    tokenizer.chat_template = template or "{{ '' }}"
    with pytest.raises(UsageError, match="makes an empty prompt: use another model"):
        ChatTokenizer(tokenizer).encode([CHAT])
    with pytest.raises(UsageError, match="makes an empty prompt: use another model"):
        ChatTokenizer(tokenizer).measure(CHAT)


@pytest.mark.parametrize("template", [None, SWITCHED, ALWAYS, TEMPLATE, EVERYTHING])
def test_prompts_are_those_of_transformers(template, tokenizer):
    tokenizer.chat_template = template or tokenizer.chat_template
    chats = [
        CHAT,
        [{"role": "system", "content": " Be <brief>.\n"}, *CHAT, *CHAT],
        [*CHAT, {"role": "assistant", "content": "\ud7ff\n x"}, *CHAT, *CHAT],
    ]
    tool = {"type": "function", "function": {"name": "f", "parameters": {"é": ["x"]}}}
    for opened in (True, False):
        for given in ({}, {"tools": [tool]}, {"enable_thinking": False, "bos_token": "<é>"}):
            wanted = [
                tokenizer.apply_chat_template(
                    chat, add_generation_prompt=opened, tokenize=False, **given
                )
                for chat in chats
            ]
            assert render(tokenizer, [(chat, given) for chat in chats], opened) == wanted


def test_a_template_by_name_is_chosen_as_transformers_does(tokenizer):
    tokenizer.chat_template = {"default": "plain", "tool_use": "with {{ tools[0].name }}"}
    chats = [(CHAT, {}), (CHAT, {"tools": [{"name": "f"}]}), (CHAT, {"chat_template": "own"})]
    assert render(tokenizer, chats) == ["plain", "with f", "own"]


def test_thoughts_are_looked_for_within_the_limits(tokenizer, monkeypatch):
    monkeypatch.setattr(rendering, "MOST_SECONDS", 0.4)
    tokenizer.chat_template = "<think>" + LOOPS
    with pytest.raises(UsageError, match=TIME):
        thinks_unasked(tokenizer)
