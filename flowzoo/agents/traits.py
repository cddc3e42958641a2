"""What of a model its settings follow from, and how long its replies may be where nobody says so.

The reply budget is what the task needs (`Task.reply_tokens`) and the model allows: a model that
thinks gets `THOUGHT_TOKENS`, as in AT-GRPO (arXiv 2510.11062) and Dr. MAS (2602.08847); one of the
pocket's kind, whose replies are a few words, a number of its own. It never exceeds what the
generation config says (`max_new_tokens`), nor half of the context, so that prompts have the other
half. Training and evaluation go by the same rule.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from flowzoo.agents.chat.thinking import thinks_unasked
from flowzoo.agents.gguf import model_source
from flowzoo.agents.hub import tell_hub
from flowzoo.agents.number_format import count_weights
from flowzoo.errors import UsageError

TINY = 10e6
"""Weights below which a model counts as one of the pocket's kind."""
THOUGHT_TOKENS = 4096


@dataclass(frozen=True, slots=True)
class ModelTraits:
    """What of a model its settings follow from."""

    weights: float = 0.0
    """Their number."""
    context: float = math.inf
    """Most tokens of prompt and reply."""
    thinks: bool = False
    """Unless it is told otherwise."""
    generation: Mapping[str, Any] = field(default_factory=dict)
    """Its generation config, as far as that says something."""


class ReplyBudget(NamedTuple):
    """Most tokens of a reply."""

    tokens: int
    source: str
    """`the task` or `the model`: what it follows from."""


def reply_budget(
    models: Sequence[ModelTraits], switches: Sequence[bool | None], task: int, tiny: int
) -> ReplyBudget:
    """The longest reply that suits all models, at least one.

    Args:
        models: those that answer.
        switches: whether each was told to think; None: its template's choice.
        task: tokens that a reply to its problems takes.
        tiny: what models of the pocket's kind get.
    """
    wanted: list[int] = []
    for model, switch in zip(models, switches, strict=True):
        thinks = model.thinks if switch is None else switch
        usual = tiny if model.weights < TINY else THOUGHT_TOKENS if thinks else task
        wanted.append(min(usual, int(model.generation.get("max_new_tokens") or usual)))
    half = min(model.context for model in models) // 2
    tokens = max(1, int(min(max(wanted), half)))
    return ReplyBudget(tokens, "the task" if tokens == task else "the model")


def traits_of(source: str) -> ModelTraits:
    """What is known of a model by its configuration and tokenizer; `pocket…` is known anyway.

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
    tell_hub(source)
    try:
        made = AutoConfig.from_pretrained(source, trust_remote_code=False)
        tokenizer = AutoTokenizer.from_pretrained(source, trust_remote_code=False)
        weights = count_weights(made)
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
    context = getattr(made.get_text_config(), "max_position_embeddings", None)
    return ModelTraits(weights, context or math.inf, thinks_unasked(tokenizer), generation)
