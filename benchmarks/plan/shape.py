"""Sizes of a model that its memory follows from, read off tensors without memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from flowzoo.agents.traits import context_of
from flowzoo.agents.vllm.settings import cache_numbers
from flowzoo.baselines.learner.config import LoraTargets
from flowzoo.baselines.learner.hidden_states import layers_of
from flowzoo.baselines.learner.lora import adaptable, linears_of
from flowzoo.errors import UsageError

Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ModelShape:
    """Sizes of a model, in numbers (not bytes) unless it says otherwise."""

    weights: tuple[Shape, ...]
    """Shapes of the parameters outside the decoder layers: embeddings, last norm, untied head."""
    layers: tuple[tuple[Shape, ...], ...]
    """Shapes of the parameters of every decoder layer."""
    adapted: tuple[Shape, ...]
    """Shapes of the linear layers with LoRA adapters, if any."""
    vocabulary: int
    hidden: int
    context: int
    """Most tokens of prompt and reply."""
    cache: int
    """Numbers in the KV cache for a token."""
    linear: int
    """Weights of the linear layers, the output head included."""
    tied: bool = False
    """True if the output head is the embedding."""

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
    """Number of numbers in tensors of these shapes."""
    return sum(torch.Size(shape).numel() for shape in shapes)


def read_config(folder: Path) -> Any:
    """Read the configuration of the model in `folder`."""
    try:
        return AutoConfig.from_pretrained(folder, trust_remote_code=False, local_files_only=True)
    except (OSError, ValueError) as error:
        raise UsageError(f"cannot read the config.json of {folder}: {error}") from error


def bare_model(config: Any, **choices: Any) -> PreTrainedModel:
    """Make a model of a configuration, on the tensors that the caller's context makes."""
    try:
        return AutoModelForCausalLM.from_config(config, trust_remote_code=False, **choices).eval()
    except Exception as error:  # a configuration may lack any part that its family needs
        raise UsageError(
            f"{config.model_type} is no model that is trained here: {error or type(error).__name__}"
        ) from error


def shape_of(config: Any, targets: LoraTargets | None = None) -> ModelShape:
    """Read the sizes of a model; `targets` names the layers with adapters, if any."""
    # Without memory: a model of any size takes none.
    with torch.device("meta"):
        model = bare_model(config)
    layers = layers_of(model)
    if not layers:
        raise UsageError(f"{type(model).__name__} has no decoder layers that a plan can count")
    inner = {id(weight) for layer in layers for weight in layer.parameters()}
    adapted: tuple[Shape, ...] = ()
    if targets is not None:
        names = linears_of(model) if targets == "all" else adaptable(model)
        modules = dict(model.named_modules())
        adapted = tuple(tuple(modules[name].weight.shape) for name in names)  # type: ignore[union-attr]

    text = config.get_text_config()
    return ModelShape(
        weights=tuple(
            tuple(weight.shape) for weight in model.parameters() if id(weight) not in inner
        ),
        layers=tuple(
            tuple(tuple(weight.shape) for weight in layer.parameters()) for layer in layers
        ),
        adapted=adapted,
        vocabulary=text.vocab_size,
        hidden=text.hidden_size,
        context=context_of(config) or 0,
        cache=cache_numbers(config),
        linear=sum(part.weight.numel() for part in model.modules() if type(part) is nn.Linear),
        tied=_weight(model.get_output_embeddings()) is _weight(model.get_input_embeddings()),
    )
