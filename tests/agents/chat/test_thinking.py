"""The switch for thoughts, and thoughts in the text of a reply, with every kind of engine."""

from typing import Any

import pytest
from transformers import AutoTokenizer

from flowzoo.agents.chat.template import ChatTokenizer, read_thinking
from flowzoo.agents.chat.thoughts import thinking_kwargs
from flowzoo.agents.openai.policy import read_completion
from flowzoo.agents.pocket import pocket_path
from flowzoo.errors import UsageError

CHATML = (
    "{%- for message in messages -%}<|im_start|>{{ message.role }}\n{{ message.content }}"
    "<|im_end|>\n{%- endfor -%}<|im_start|>assistant\n"
)
SWITCHED = CHATML + "{% if not (enable_thinking | default(true)) %}<think>\n\n</think>{% endif %}"
ALWAYS = CHATML + "<think>\n"


def with_template(template: str, special: bool = False) -> Any:
    tokenizer = AutoTokenizer.from_pretrained(pocket_path())
    tokenizer.chat_template = template
    tokenizer.add_tokens(["<think>", "</think>"], special_tokens=special)
    return tokenizer


def chat(template: str, special: bool = False, thinking: bool | None = None) -> ChatTokenizer:
    return ChatTokenizer(with_template(template, special), {}, thinking)


def test_the_switch_reaches_templates_that_have_one():
    asked = [{"role": "user", "content": "1+1"}]
    default, on, off = (
        chat(SWITCHED, thinking=thinking).measure(asked).ids for thinking in (None, True, False)
    )
    assert default == on != off
    assert off[: len(on)] == on


def test_templates_without_a_switch_are_taken_at_their_word():
    assert thinking_kwargs(with_template(CHATML), {}, False) == {}
    assert thinking_kwargs(with_template(ALWAYS), {}, True) == {}
    switched = with_template(CHATML + "{% if thinking %}Think.{% endif %}")
    assert thinking_kwargs(switched, {}, True) == {"thinking": True}
    thought = with_template("{{ messages[0].content }}{{ messages[0].thinking }}")
    assert thinking_kwargs(thought, {}, False) == {}
    with pytest.raises(UsageError, match="does not think"):
        chat(CHATML, thinking=True)
    with pytest.raises(UsageError, match="always thinks"):
        chat(ALWAYS, thinking=False)


@pytest.mark.parametrize("special", [False, True])
def test_tags_survive_decoding_even_if_they_are_special_tokens(special):
    model = chat(SWITCHED, special)
    ids = model.tokenizer("<think>no</think>5<|im_end|>", add_special_tokens=False)["input_ids"]
    assert model.decode(ids) == "<think>no</think>5"


def test_a_thought_that_the_template_opened_is_part_of_the_text():
    model = chat(ALWAYS)
    ids = model.tokenizer("so it is 7", add_special_tokens=False)["input_ids"]
    assert model.decode(ids) == "<think>so it is 7"
    assert chat(SWITCHED).decode(ids) == "so it is 7"


def text_of(finish: str = "stop", thinking: bool | None = None, **message: Any) -> str:
    body = {"choices": [{"message": message, "finish_reason": finish}]}
    return read_completion(body, thinking).text


def test_endpoints_that_part_thoughts_from_the_rest_give_the_same_text():
    assert text_of(content="5", reasoning="hm") == "<think>hm</think>5"
    assert text_of(content="5", reasoning_content="hm") == "<think>hm</think>5"
    assert text_of(content=None, reasoning="hm", finish="length") == "<think>hm"
    assert text_of(content="5", reasoning=None) == "5"
    assert text_of(content="<think>hm</think>5") == "<think>hm</think>5"


def test_a_cut_off_reply_that_was_to_think_and_has_no_tag_is_a_thought():
    assert text_of(content="maybe 5", finish="length", thinking=True) == "<think>maybe 5"
    assert text_of(content="maybe 5", finish="length") == "maybe 5"
    assert text_of(content="maybe 5", finish="stop", thinking=True) == "maybe 5"
    assert text_of(content="hm</think>5", finish="length", thinking=True) == "hm</think>5"


def test_the_switch_is_read_per_name():
    names = ("generator", "aggregator")
    assert read_thinking((), names) == {"generator": None, "aggregator": None}
    assert read_thinking(("off",), names) == {"generator": False, "aggregator": False}
    for args in (("off", "aggregator=on"), ("aggregator=on", "off")):
        assert read_thinking(args, names) == {"generator": False, "aggregator": True}
    for args, message in (
        (("yes",), "`on`, `off`"),
        (("agregator=on",), "Did you mean 'aggregator'"),
        (("on", "off"), "twice"),
        (("generator=on", "generator=off"), "twice"),
    ):
        with pytest.raises(UsageError, match=message):
            read_thinking(args, names)


@pytest.mark.parametrize("special", [False, True])
def test_replies_with_thoughts_are_encoded_as_sampled(special):
    model = chat(SWITCHED, special)
    asked = [{"role": "user", "content": "1+1"}]
    stop = {model.tokenizer.eos_token_id}
    row = model.row(asked, (), "<think>no</think>5", stop)
    assert row is not None
    assert row.prompt == model.measure(asked).ids
    assert row.reply == tuple(model.tokenizer("<think>no</think>5")["input_ids"])
    opened = chat(ALWAYS, special)
    row = opened.row(asked, (), "<think>so it is</think>7", stop)
    assert row is not None
    assert opened.decode(row.reply) == "<think>so it is</think>7"
    assert row.reply[0] != opened.tokenizer.convert_tokens_to_ids("<think>")
    assert opened.row(asked, (), "7", stop) is None  # no reply can be without the thought
