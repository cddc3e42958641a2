"""Facts of a model that default settings follow from, and the default length of replies.

The reply budget is what the task needs (`Task.reply_tokens`) and the model allows: a model that
thinks gets `THOUGHT_TOKENS`, as in AT-GRPO (arXiv 2510.11062) and Dr. MAS (2602.08847); a
model as small as the pocket models gets a few. It never exceeds `max_new_tokens` of the generation
config, nor half of the context, so that prompts have the other half. Training and evaluation
follow the same rule.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from flowzoo.agents.chat.thinking import thinks_unasked
from flowzoo.agents.gguf import model_source
from flowzoo.agents.hub import log_hub_lookup
from flowzoo.agents.number_format import count_weights
from flowzoo.errors import UsageError

TINY = 10e6
"""Number of weights below which a model counts as small, like the pocket models."""
THOUGHT_TOKENS = 4096


@dataclass(frozen=True, slots=True)
class ModelTraits:
    """Facts of a model that default settings follow from."""

    weights: float = 0.0
    """Number of weights."""
    context: float = math.inf
    """Most tokens of prompt and reply."""
    thinks: bool = False
    """True if it thinks by default."""
    generation: Mapping[str, Any] = field(default_factory=dict)
    """The generation config, without defaults."""


class ReplyBudget(NamedTuple):
    """Most tokens of a reply."""

    tokens: int
    source: str
    """`the task` or `the model`: origin of the number."""


def reply_budget(
    models: Sequence[ModelTraits], switches: Sequence[bool | None], task: int, tiny: int
) -> ReplyBudget:
    """The longest reply that suits all models, at least one.

    Args:
        models: models that answer.
        switches: switch for thoughts of each model; None: its template's default.
        task: tokens that a reply to its problems takes.
        tiny: tokens for small models.
    """
    limits: list[int] = []
    for model, switch in zip(models, switches, strict=True):
        thinks = model.thinks if switch is None else switch
        usual = tiny if model.weights < TINY else THOUGHT_TOKENS if thinks else task
        limits.append(min(usual, int(model.generation.get("max_new_tokens") or usual)))
    half = min(model.context for model in models) // 2
    tokens = max(1, int(min(max(limits), half)))
    return ReplyBudget(tokens, "the task" if tokens == task else "the model")


def traits_of(source: str) -> ModelTraits:
    """Read a model's traits from its configuration and tokenizer.

    Args:
        source: as in the settings `model` and `models`.

    Raises:
        UsageError: no model is found there.
    """
    if source.partition(":")[0] == "pocket":
        return ModelTraits()
    # Late: a run whose settings say it all does not need it.
    from transformers import AutoConfig, AutoTokenizer, GenerationConfig

    source = model_source(source)
    log_hub_lookup(source)
    try:
        config = AutoConfig.from_pretrained(source, trust_remote_code=False)
        tokenizer = AutoTokenizer.from_pretrained(source, trust_remote_code=False)
        weights = count_weights(config)
    except (OSError, ValueError) as error:
        raise UsageError(
            f"cannot load a model from {source!r}, whose settings are to be found by its "
            f"configuration; expected a folder with config.json and tokenizer files, or a model id "
            f"of the hub: {error}"
        ) from error
    try:
        generation = GenerationConfig.from_pretrained(source).to_diff_dict()
    except OSError:  # many models have none
        generation = {}
    context = getattr(config.get_text_config(), "max_position_embeddings", None)
    return ModelTraits(weights, context or math.inf, thinks_unasked(tokenizer), generation)
