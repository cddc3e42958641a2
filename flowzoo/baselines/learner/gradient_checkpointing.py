"""Gradient checkpointing of a model's layers, with dropout off.

The library checkpoints a layer if its `training` flag is set, which for many families (OPT, XGLM)
turns on the dropout that the layer's own forward applies: the gradient would be that of another
function. Here the flag says only that a layer is to be checkpointed; inside, it is off.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint
from transformers import PreTrainedModel
from transformers.modeling_layers import GradientCheckpointingLayer

from flowzoo.errors import UsageError

_checkpointed: weakref.WeakKeyDictionary[PreTrainedModel, list[GradientCheckpointingLayer]] = (
    weakref.WeakKeyDictionary()
)
"""Model -> its layers. Asking the model walks through all its modules, at every forward pass."""


def layers_of(model: PreTrainedModel) -> list[GradientCheckpointingLayer]:
    """The decoder layers."""
    return [module for module in model.modules() if isinstance(module, GradientCheckpointingLayer)]


def enable_checkpointing(model: PreTrainedModel) -> None:
    """Make `model`, in place, one whose layers are computed again in the backward pass.

    Raises:
        UsageError: the family cannot do it.
    """
    layers = layers_of(model)
    try:
        model.gradient_checkpointing_enable({"use_reentrant": False})
    except ValueError:  # what the library raises where a family has no support
        layers = []
    if not layers:
        raise UsageError(
            f"{type(model).__name__} has no layers that can be computed again: leave out "
            "`gradient_checkpointing`, and lower `microbatch_tokens` if memory runs out."
        )
    for layer in layers:
        layer.__dict__["_gradient_checkpointing_func"] = partial(_again, layer)
    _checkpointed[model] = layers


@contextmanager
def checkpointing(model: PreTrainedModel) -> Iterator[None]:
    """Inside, layers checkpoint if `enable_checkpointing` said so and a gradient is asked for."""
    layers = _checkpointed.get(model, []) if torch.is_grad_enabled() else []
    for layer in layers:
        layer.training = True
    try:
        yield
    finally:
        for layer in layers:
            layer.training = False


def _again(layer: nn.Module, function: Callable[..., Any], *args: Any) -> Any:
    """`function(*args)`, which is `layer`'s forward, computed once now and once backwards."""

    def quiet(*inputs: Any) -> Any:
        before, layer.training = layer.training, False
        try:
            return function(*inputs)
        finally:
            layer.training = before

    return checkpoint(quiet, *args, use_reentrant=False)
