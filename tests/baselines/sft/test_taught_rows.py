"""Rows that are taught are what the model's own chat template writes, by families of templates."""

import pytest
from transformers import LlamaConfig, LlamaForCausalLM

from benchmarks.families.check import FAMILIES
from benchmarks.families.models import make_tokenizer
from flowzoo.baselines.sft.choose import SftCounts
from flowzoo.baselines.sft.rows import RowMaker, RowTokenizer
from flowzoo.baselines.sft.sources import Transcript
from tests.baselines.rows import new_call

ASKED = [{"role": "user", "content": "2 + 3?"}]
THOUGHT = "<think>Odd.</think>5"
EMPTY = "<think>\n\n</think>\n\n"


def taught(name: str, reply: str, thinking: bool | None = None) -> str:
    """What a reply adds to its prompt in the row that is taught; "" if it is left out."""
    tokenizer = make_tokenizer(FAMILIES[name])
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=len(tokenizer), hidden_size=8, intermediate_size=8, num_hidden_layers=1,
            num_attention_heads=1, max_position_embeddings=256,
            eos_token_id=tokenizer.convert_tokens_to_ids(FAMILIES[name]["stops"]),
        )
    )  # fmt: skip
    rows = RowTokenizer.of(model, tokenizer, thinking, 0)
    recorded = new_call("solver", messages=tuple(ASKED), reply=reply)
    transcript = Transcript("chats", "", "", "chats:0", 1.0, False, (recorded,))
    counts = SftCounts()
    made = RowMaker({"solver": 1}, {"solver": "p"}, {"p": rows})
    calls = made.rows([transcript], "all", counts)["p"]
    if not calls:
        assert sum(counts.replies_left_out.values()) == 1
        return ""
    (call,) = calls
    prompt = tokenizer.decode(call.prompt_ids)
    return tokenizer.decode((*call.prompt_ids, *call.output_ids)).removeprefix(prompt)


@pytest.mark.parametrize(
    ("name", "thinking", "reply", "row"),
    [
        ("phi-3", None, "5", " 5<|end|>"),  # its tokenizer puts a space before every text
        ("qwen-2", None, "5", "5<|im_end|>"),
        ("qwen-3", None, "5", f"{EMPTY}5<|im_end|>"),
        ("qwen-3", True, "5", f"{EMPTY}5<|im_end|>"),
        ("qwen-3", False, "5", "5<|im_end|>"),
        ("qwen-3", None, THOUGHT, "<think>\nOdd.\n</think>\n\n5<|im_end|>"),
        ("qwen-3", False, THOUGHT, ""),
        ("gpt-oss", None, "5", "<|channel|>final<|message|>5<|return|>"),
        (
            "gpt-oss", None, THOUGHT,
            "<|channel|>analysis<|message|>Odd.<|end|><|start|>assistant"
            "<|channel|>final<|message|>5<|return|>",
        ),
        ("mistral-1", None, "5", " 5</s>"),
        ("mistral-think", None, THOUGHT, "[THINK]Odd.[/THINK]5</s>"),
        ("llama-3", None, " 5\n", "5<|eot_id|>"),
        ("deepseek-r1", None, THOUGHT, "Odd.</think>5<｜end▁of▁sentence｜>"),
        ("deepseek-r1", None, "5", ""),
        ("glm-4", None, "5", "\n5<|user|>"),
        ("neox", None, "5<|im_start|>", ""),
    ],
)  # fmt: skip
def test_a_row_is_what_the_template_writes_after_the_prompt(name, thinking, reply, row):
    assert taught(name, reply, thinking) == row
