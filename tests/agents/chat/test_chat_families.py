"""Templates of publishers' kinds: rows, ends, thoughts and calls as transformers renders them."""

import pytest

from benchmarks.families.check import FAMILIES, examine, examine_model, open_chat, variants
from benchmarks.families.models import make_tokenizer
from flowzoo.agents.chat.template import ChatTokenizer
from flowzoo.errors import UsageError
from flowzoo.reward.visible import visible

UNTAKEN = {"gemma-2": 32, "mistral-1": 32}
"""Chats that a template refuses: all that have a system text."""
LEFT_OUT = {"mistral-3": 32, "deepseek-r1": 48, "qwen-3 off": 16}
"""Chats whose prompt is not how the whole begins: with a system text, which this template writes
only before the last message; without the thought that it opens; with one after an empty one."""
HARMONY = (
    "<|channel|>analysis<|message|>The gold is 7.<|end|><|start|>assistant"
    "<|channel|>analysis<|message|>Or 8.<|end|><|start|>assistant"
    "<|channel|>final<|message|>Answer: 6"
)


def decode(name: str, text: str) -> str:
    tokenizer = make_tokenizer(FAMILIES[name])
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    return ChatTokenizer(tokenizer, {}).decode(ids)


@pytest.mark.usual(6)
@pytest.mark.parametrize(("name", "switch"), list(variants()))
def test_rows_are_what_the_template_writes(name, switch):
    chat, stop_ids = open_chat(name, switch)
    end = chat.tokenizer.convert_ids_to_tokens(chat.end_of_turn(stop_ids))
    found = examine(chat, stop_ids)
    assert (found.faults, end) == ([], FAMILIES[name]["end"])
    assert found.taken == 64 - UNTAKEN.get(name, 0)
    assert found.rows == found.taken - LEFT_OUT.get(f"{name} {switch}".strip(), 0)
    assert found.kept == {"gpt-oss": 48, "qwen-3": 0, "deepseek-r1": 0}.get(name, found.rows)


@pytest.mark.usual(4)
@pytest.mark.parametrize("name", list(FAMILIES))
def test_rows_do_not_depend_on_their_batch_and_exports_reply_alike(name):
    assert examine_model(name) == ("yes", "yes")


def test_blanks_that_the_template_writes_are_no_part_of_a_reply():
    assert decode("glm-4", "\nIt is 5.") == decode("mistral-3", " It is 5.") == "It is 5."
    assert decode("qwen-2", " It is 5.") == " It is 5."


def test_channels_of_thoughts_are_thoughts():
    assert decode("gpt-oss", HARMONY) == "<think>The gold is 7.Or 8.</think>Answer: 6"
    assert decode("gpt-oss", "<|channel|>final<|message|>Answer: 6") == "Answer: 6"
    for cut in (HARMONY.partition("Or")[0], HARMONY.partition("<|message|>Or")[0]):
        assert visible(decode("gpt-oss", cut)) == ""
    assert visible(decode("gpt-oss", "<|channel|>commentary<|message|>to myself")) == ""


def test_tags_of_other_families_are_thoughts():
    assert decode("mistral-think", "[THINK]7?[/THINK]6") == "<think>7?</think>6"
    assert decode("mistral-think", "[THINK]7?") == "<think>7?"
    assert decode("mistral-think", "6") == "6"
    assert decode("qwen-3", "<think>\n7?\n</think>\n\n6") == "<think>\n7?\n</think>\n\n6"
    assert decode("deepseek-r1", "7?\n</think>\n\n6") == "<think>7?\n</think>\n\n6"


def test_a_thought_of_an_earlier_turn_is_rendered_as_one():
    chat, _ = open_chat("mistral-think")
    said = {"role": "assistant", "content": "<think>7?</think>6"}
    asked = {"role": "user", "content": "And?"}
    ids = chat.measure([asked, said, asked]).ids
    assert "[/INST][THINK]7?[/THINK]6</s>[INST]" in chat.tokenizer.decode(ids)


def test_an_opening_that_no_reply_of_a_chat_begins_with_is_refused_with_its_line():
    family = FAMILIES["neox"] | {
        "template": "{% for m in messages %}{{ m.content }}<|im_end|>{% endfor %}\n"
        "{% if add_generation_prompt %}<|im_start|>{% endif %}"
    }
    fault = r"opens a reply with '<\|im_start\|>'.*\(line 2: "
    with pytest.raises(UsageError, match=fault) as caught:
        ChatTokenizer(make_tokenizer(family), {})
    assert "\n" not in str(caught.value)


def test_the_end_of_another_message_is_not_taken_for_that_of_a_reply():
    family = FAMILIES["neox"] | {
        "template": "{% for m in messages %}{{ m.content }}"
        "{% if m.role == 'user' %}<|im_end|>{% endif %}{% endfor %}"
    }
    tokenizer = make_tokenizer(family)
    with pytest.raises(UsageError, match="ends an assistant's message with none"):
        ChatTokenizer(tokenizer, {}).end_of_turn({tokenizer.eos_token_id})
