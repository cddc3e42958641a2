"""The sizes of a model that its memory follows from, found on tensors without memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from flowzoo.agents.vllm.settings import cache_numbers
from flowzoo.baselines.learner.config import LoraTargets
from flowzoo.baselines.learner.hidden_states import layers_of
from flowzoo.baselines.learner.lora import adaptable, linears_of
from flowzoo.errors import UsageError

Shape = tuple[int, ...]


class UncountedError(UsageError):
    """A model whose memory, or a part of it, cannot be counted; says why."""


@dataclass(frozen=True, slots=True)
class ModelShape:
    """Sizes of a model, in numbers (not bytes) unless it says otherwise."""

    weights: tuple[Shape, ...]
    """Of every parameter outside the decoder layers: embeddings, last norm, an untied head."""
    layers: tuple[tuple[Shape, ...], ...]
    """Of every parameter of every decoder layer."""
    adapted: tuple[Shape, ...]
    """Of the weights of all linear layers that LoRA adapters stand on; empty: none were asked for.
    """
    vocabulary: int
    hidden: int
    context: int
    """Most tokens of prompt and reply."""
    cache: int
    """Numbers in the KV cache for a token."""
    tied: bool = False
    """Whether the output head is the embedding."""

    @property
    def parameters(self) -> int:
        """All weights; a tied one counts once."""
        return self.outside + sum(map(numbers, self.layers))

    @property
    def outside(self) -> int:
        """Weights outside the decoder layers."""
        return numbers(self.weights)

    @property
    def largest_layer(self) -> int:
        """Weights of the largest decoder layer."""
        return max(map(numbers, self.layers), default=0)

    @property
    def head(self) -> int:
        """Weights of the output head."""
        return self.vocabulary * self.hidden

    def adapter(self, rank: int) -> int:
        """Weights of a LoRA adapter of this rank."""
        return sum(rank * sum(shape) for shape in self.adapted)


def _weight(module: Any) -> Any:
    return getattr(module, "weight", module)


def numbers(shapes: Sequence[Shape]) -> int:
    """How many numbers tensors of these shapes have together."""
    return sum(torch.Size(shape).numel() for shape in shapes)


def read_config(folder: Path) -> Any:
    """The configuration of the model in `folder`.

    Raises:
        UsageError: there is none that this version of transformers knows.
    """
    try:
        return AutoConfig.from_pretrained(folder, trust_remote_code=False, local_files_only=True)
    except (OSError, ValueError) as error:
        raise UsageError(f"cannot read the config.json of {folder}: {error}") from error


def bare_model(config: Any, **choices: Any) -> PreTrainedModel:
    """A model of that configuration, on whatever tensors are made in this block.

    Raises:
        UsageError: transformers makes no causal language model of it.
    """
    try:
        return AutoModelForCausalLM.from_config(config, trust_remote_code=False, **choices).eval()
    except Exception as error:  # whatever a configuration lacks that its family asks for
        raise UsageError(
            f"{config.model_type} is no model that is trained here: {error or type(error).__name__}"
        ) from error


def shape_of(config: Any, targets: LoraTargets | None = None) -> ModelShape:
    """The sizes of a model; `targets` names what of it adapters stand on, if they do.

    Raises:
        UsageError: no causal language model is made of it.
        UncountedError: it has no decoder layers that are known.
    """
    with torch.device("meta"):
        model = bare_model(config)
    layers = layers_of(model)
    if not layers:
        raise UncountedError(f"{type(model).__name__} has no decoder layers that a plan can count")
    inner = {id(one) for layer in layers for one in layer.parameters()}
    adapted: tuple[Shape, ...] = ()
    if targets is not None:
        names = linears_of(model) if targets == "all" else adaptable(model)
        found = dict(model.named_modules())
        adapted = tuple(tuple(found[name].weight.shape) for name in names)  # type: ignore[union-attr]
    text = config.get_text_config()
    return ModelShape(
        weights=tuple(tuple(one.shape) for one in model.parameters() if id(one) not in inner),
        layers=tuple(tuple(tuple(one.shape) for one in layer.parameters()) for layer in layers),
        adapted=adapted,
        vocabulary=text.vocab_size,
        hidden=text.hidden_size,
        context=getattr(text, "max_position_embeddings", None) or 0,
        cache=cache_numbers(config),
        tied=_weight(model.get_output_embeddings()) is _weight(model.get_input_embeddings()),
    )
