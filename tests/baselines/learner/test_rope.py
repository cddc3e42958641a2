"""Rope that may depend on the batch: a row is sampled and learned as if it were alone."""

import asyncio
import copy
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, PreTrainedTokenizerBase
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from flowzoo.agents.hf.policy import TransformersPolicy
from flowzoo.agents.pocket import load
from flowzoo.agents.policy import Completion, Request, Sampling
from flowzoo.agents.traits import context_of
from flowzoo.baselines.learner.config import LearnerConfig
from flowzoo.baselines.learner.update import Learner
from flowzoo.baselines.sft.rows import RowTokenizer
from flowzoo.errors import UsageError
from tests.baselines.rows import new_call

BORDER, LIMIT, CLOSE = 64, 256, 2e-5
SHAPE: dict[str, Any] = {
    "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 2,
    "num_key_value_heads": 1, "initializer_range": 0.3, "max_position_embeddings": LIMIT,
    "tie_word_embeddings": False,
}  # fmt: skip
TWO_SETS: dict[str, Any] = {
    "rope_type": "longrope", "original_max_position_embeddings": BORDER,
    "short_factor": [1.0] * 8, "long_factor": [1.0, 2, 4, 8, 16, 24, 32, 48],
}  # fmt: skip
MSCALES = {"short_mscale": 1.0, "long_mscale": 1.3}
LLAMA3 = {
    "rope_type": "llama3", "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": BORDER,
}  # fmt: skip
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": BORDER}
DYNAMIC = {"rope_type": "dynamic", "factor": 4.0}
SHORT = {"original_max_position_embeddings": BORDER}
FAMILIES: dict[str, tuple[str, dict[str, Any], dict[str, Any], int]] = {
    "two sets": ("phi3", TWO_SETS, SHORT, BORDER),
    "two sets and scales": (
        "phimoe",
        TWO_SETS | MSCALES,
        {"num_local_experts": 2, **SHORT},
        BORDER,
    ),
    "two equal sets": ("phi3", TWO_SETS | {"short_factor": TWO_SETS["long_factor"]}, SHORT, LIMIT),
    "growing": ("llama", DYNAMIC, {"max_position_embeddings": BORDER}, BORDER),
    "llama 3": ("llama", LLAMA3, {}, LIMIT),
    "yarn": ("qwen2", YARN, {}, LIMIT),
    "default": ("qwen2", {"rope_type": "default"}, {}, LIMIT),
}
"""Kind of model, parameters of its rope, further fields, and most tokens of a row."""


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerBase:
    return load().tokenizer


@pytest.fixture(params=FAMILIES)
def family(request: pytest.FixtureRequest, tokenizer: PreTrainedTokenizerBase) -> tuple[Any, int]:
    """A random model, and the most tokens of its rows."""
    kind, rope, fields, context = FAMILIES[request.param]
    fields = {"vocab_size": len(tokenizer), "eos_token_id": tokenizer.eos_token_id, **fields}
    fields |= {"pad_token_id": 0, "rope_parameters": {"rope_theta": 10000.0, **rope}}
    torch.set_num_threads(1)
    torch.manual_seed(0)
    config = CONFIG_MAPPING[kind](**SHAPE | fields)
    return AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval(), context


@torch.no_grad()
def own_logps(model: Any, row: Completion) -> Tensor:
    """Log-probs of a reply by a forward pass of a model that has read nothing else."""
    ids = torch.tensor([[*row.prompt_ids, *row.output_ids]])
    steps = copy.deepcopy(model)(input_ids=ids, use_cache=False).logits[0].log_softmax(-1)
    return steps[len(row.prompt_ids) - 1 : -1].gather(1, ids[0, len(row.prompt_ids) :, None])[:, 0]


def test_a_row_is_sampled_and_learned_as_it_is_alone(family, tokenizer):
    fresh, context = family
    model = copy.deepcopy(fresh)
    policy = TransformersPolicy(model, tokenizer, sampling=Sampling(max_tokens=40))
    texts = "1+1", "1+2=" * 6, "1+2-3+4=" * 40  # short, across the border, beyond every limit
    chats = [[{"role": "user", "content": text}] for text in texts]
    requests = [Request((place,), "a", "a", chat) for place, chat in enumerate(chats)]
    sampled = asyncio.run(policy.generate(requests))
    lengths = [len(row.prompt_ids) + len(row.output_ids) for row in sampled]
    assert lengths[0] < BORDER
    assert (max(lengths) > BORDER) == (context > BORDER)
    learner = Learner(model, LearnerConfig(layout="auto"))
    learned = [torch.tensor(logps) for logps in learner.plain_logps(sampled)]
    for row, logps in zip(sampled, learned, strict=True):
        own = own_logps(fresh, row)
        torch.testing.assert_close(torch.tensor(row.logps), own, atol=CLOSE, rtol=0)
        torch.testing.assert_close(logps, own, atol=CLOSE, rtol=0)


def test_a_row_that_would_change_others_is_refused(family, tokenizer):
    model, context = family
    assert context_of(model.config) == context
    assert RowTokenizer.of(model, tokenizer, None, 0).most == context
    learner = Learner(model, LearnerConfig())
    just, more = (
        new_call(prompt_ids=(5,) * size, output_ids=(7,)) for size in (context - 1, context)
    )
    assert len(learner.plain_logps([just])) == 1
    with pytest.raises(
        UsageError, match=f"a row has {context + 1} tokens, .* context is {context}"
    ):
        learner.update([just, more], [1.0, -1.0])
