"""The token that ends a reply, by templates in the layouts of publishers."""

from dataclasses import dataclass

import pytest
from transformers import AutoTokenizer

from flowzoo.agents.chat.template import ChatTokenizer
from flowzoo.agents.pocket import pocket_path
from flowzoo.errors import UsageError


@dataclass(frozen=True)
class Family:
    """A layout of chats, and the tokens that its publisher's generation config stops at."""

    template: str
    stops: tuple[str, ...]
    end: str
    eos: str


def each(message: str, opening: str, closing: str = "") -> str:
    """A template that writes each message, then the opening of a reply or what closes the chat."""
    otherwise = f"{{% else %}}{closing}" if closing else ""
    return (
        f"{{% for m in messages %}}{message}{{% endfor %}}"
        f"{{% if add_generation_prompt %}}{opening}{otherwise}{{% endif %}}"
    )


CHATML = each("<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n", "<|im_start|>assistant\n")
FAMILIES = {
    "phi-3": Family(
        each("<|{{ m.role }}|>\n{{ m.content }}<|end|>\n", "<|assistant|>\n", "{{ eos_token }}"),
        ("<|endoftext|>", "<|assistant|>", "<|end|>"), "<|end|>", "<|endoftext|>",
    ),
    "phi-4-mini": Family(
        each("<|{{ m.role }}|>{{ m.content }}<|end|>", "<|assistant|>", "{{ eos_token }}"),
        ("<|endoftext|>", "<|end|>"), "<|end|>", "<|endoftext|>",
    ),
    "phi-4": Family(
        each(
            "<|im_start|>{{ m.role }}<|im_sep|>{{ m.content }}<|im_end|>",
            "<|im_start|>assistant<|im_sep|>",
        ),
        ("<|endoftext|>", "<|im_end|>"), "<|im_end|>", "<|im_end|>",
    ),
    "chatml": Family(CHATML, ("<|im_end|>",), "<|im_end|>", "<|im_end|>"),
    "qwen2": Family(
        "{% if messages[0].role != 'system' %}<|im_start|>system\nHelp.<|im_end|>\n{% endif %}"
        + CHATML,
        ("<|im_end|>", "<|endoftext|>"), "<|im_end|>", "<|im_end|>",
    ),
    "qwen3": Family(
        each(
            "<|im_start|>{{ m.role }}\n{% if loop.last and m.role == 'assistant' %}"
            "<think>\n\n</think>\n\n{% endif %}{{ m.content }}<|im_end|>\n",
            "<|im_start|>assistant\n{% if enable_thinking is false %}<think>\n\n</think>\n\n"
            "{% endif %}",
        ),
        ("<|im_end|>", "<|endoftext|>"), "<|im_end|>", "<|im_end|>",
    ),
    "llama-3": Family(
        "<|begin_of_text|>" + each(
            "<|start_header_id|>{{ m.role }}<|end_header_id|>\n\n{{ m.content | trim }}<|eot_id|>",
            "<|start_header_id|>assistant<|end_header_id|>\n\n",
        ),
        ("<|end_of_text|>", "<|eom_id|>", "<|eot_id|>"), "<|eot_id|>", "<|eot_id|>",
    ),
    "gemma": Family(
        "<bos>" + each(
            "<start_of_turn>{{ 'model' if m.role == 'assistant' else m.role }}\n"
            "{{ m.content | trim }}<end_of_turn>\n",
            "<start_of_turn>model\n",
        ),
        ("<eos>", "<end_of_turn>"), "<end_of_turn>", "<eos>",
    ),
    "mistral": Family(
        "<s>{% for m in messages %}{% if m.role == 'user' %}[INST] {{ m.content }} [/INST]"
        "{% else %} {{ m.content }}</s>{% endif %}{% endfor %}",
        ("</s>",), "</s>", "</s>",
    ),
    "gpt-oss": Family(  # in a chat that goes on replies have an end that does not stop the model
        "{% for m in messages %}<|start|>{{ m.role }}"
        "{% if m.role == 'assistant' %}<|channel|>final{% endif %}<|message|>{{ m.content }}"
        "{% if m.role == 'assistant' and loop.last and not add_generation_prompt %}<|return|>"
        "{% else %}<|end|>{% endif %}{% endfor %}"
        "{% if add_generation_prompt %}<|start|>assistant{% endif %}",
        ("<|return|>", "<|endoftext|>", "<|call|>"), "<|return|>", "<|return|>",
    ),
    "glm-4": Family(  # the next role ends a reply, and nothing ends the last one
        "[gMASK]<sop>" + each("<|{{ m.role }}|>\n{{ m.content }}", "<|assistant|>"),
        ("<|endoftext|>", "<|user|>", "<|observation|>"), "<|user|>", "<|endoftext|>",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", FAMILIES)
def test_a_reply_ends_as_one_in_a_chat_that_goes_on(name):
    family = FAMILIES[name]
    tokenizer = AutoTokenizer.from_pretrained(pocket_path())
    tokenizer.add_special_tokens(
        {"additional_special_tokens": sorted({*family.stops, family.eos, "<|end|>"})}
    )
    tokenizer.eos_token, tokenizer.chat_template = family.eos, family.template
    stop_ids = tokenizer.convert_tokens_to_ids(list(family.stops))
    end = ChatTokenizer(tokenizer, {}).end_of_turn(stop_ids)
    assert tokenizer.convert_ids_to_tokens(end) == family.end


def test_the_end_of_another_message_is_not_taken_for_that_of_a_reply():
    tokenizer = AutoTokenizer.from_pretrained(pocket_path())
    tokenizer.chat_template = (
        "{% for m in messages %}{{ m.content }}"
        "{% if m.role == 'user' %}<|im_end|>{% endif %}{% endfor %}"
    )
    with pytest.raises(UsageError, match="ends an assistant's message with none"):
        ChatTokenizer(tokenizer, {}).end_of_turn({tokenizer.eos_token_id})
