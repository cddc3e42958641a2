"""The check at a model's start asks beyond the borders that its configuration names."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaForCausalLM

from flowzoo.agents.hf.decode import check_decoding, near_borders
from flowzoo.baselines.learner.hidden_states import fitting_layout
from flowzoo.errors import UsageError

BORDER = 40


class RopeOfTheLongest(nn.Module):
    """Rope whose positions double for the whole batch if one row is longer than the border."""

    def __init__(self, rope: nn.Module) -> None:
        super().__init__()
        self.rope = rope

    def forward(self, x: Tensor, position_ids: Tensor) -> Any:
        factor = 2 if position_ids.max() >= BORDER else 1
        return self.rope(x, position_ids * factor)


def llama(**fields: Any) -> LlamaForCausalLM:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=40, hidden_size=16, intermediate_size=24, num_hidden_layers=2,
        num_attention_heads=2, num_key_value_heads=2, initializer_range=0.3,
        max_position_embeddings=128, **fields,
    )  # fmt: skip
    return LlamaForCausalLM(config).eval()


def with_other_rope() -> LlamaForCausalLM:
    model = llama(original_max_position_embeddings=BORDER)
    model.model.rotary_emb = RopeOfTheLongest(model.model.rotary_emb)  # type: ignore[assignment]
    return model


def with_window_of_the_cache() -> LlamaForCausalLM:
    """The cache obeys the window of the configuration, and the layers of Llama do not."""
    return llama(sliding_window=BORDER)


@pytest.mark.parametrize("share_prefixes", [False, True])
@pytest.mark.parametrize("make", [with_other_rope, with_window_of_the_cache])
def test_a_model_that_is_another_beyond_its_border_is_not_sampled(
    make: Callable[[], Any], share_prefixes: bool
):
    model = make()
    assert near_borders(model) == [BORDER]
    with pytest.raises(UsageError, match="in batches otherwise than row by row"):
        check_decoding(model, share_prefixes)


def test_a_model_that_is_another_beyond_its_border_is_not_packed():
    with pytest.raises(UsageError, match="not those of single rows"):
        fitting_layout(with_other_rope(), "packed")


def test_a_border_that_would_take_a_cpu_long_is_named(caplog: pytest.LogCaptureFixture):
    model = llama(sliding_window=BORDER)
    model.config.max_position_embeddings = 2**20
    model.config.sliding_window = 2**19
    check_decoding(model)
    assert "rows of 524288 tokens and more are not compared" in caplog.text
