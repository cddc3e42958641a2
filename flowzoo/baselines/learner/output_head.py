"""From last hidden states to logits, as the model's own family does it.

Most families multiply with the vocabulary and are done. Some scale the logits (Cohere, Granite,
Falcon-H1, MiniCPM3) or cap them with a tanh (Gemma 2 and later, NanoChat), under names and in
different directions: Granite divides by `logits_scaling`, HyperCLOVA X multiplies by it. The
model's own forward pass decides which it is: what the configuration names is tried, and taken if it
gives the model's own logits, on states that are stretched until a cap would show.
"""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Hashable
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn

from flowzoo.agents.hf.model_fingerprint import model_fingerprint
from flowzoo.errors import UsageError

if TYPE_CHECKING:
    from transformers import PreTrainedModel

_SCALES = ("logit_scale", "logits_scaling", "lm_head_multiplier", "output_multiplier")
"""Fields of configurations that hold a factor on the logits, or its inverse."""
_CAPS = ("final_logit_softcapping", "logits_soft_cap", "output_logit_soft_cap")
"""Fields of configurations that hold a cap c: logits become c * tanh(logits / c)."""
_STRETCH = 40.0
"""Largest logit of the comparison; caps are between 15 and 50, and far smaller logits pass them
unchanged."""

_forms: weakref.WeakKeyDictionary[PreTrainedModel, tuple[float, float | None]] = (
    weakref.WeakKeyDictionary()
)
"""Model -> scale and cap."""
_known: dict[Hashable, tuple[float, float | None]] = {}
"""Kind of model -> the same, found once a kind."""


class OutputHead(NamedTuple):
    """The way from a state h to logits: z = scale * linear(h), and cap * tanh(z / cap)."""

    linear: nn.Linear
    scale: float = 1.0
    cap: float | None = None

    def __call__(self, states: Tensor) -> Tensor:
        """The logits of `states` (..., hidden)."""
        logits: Tensor = self.linear(states)
        if self.scale != 1.0:
            logits = logits * self.scale
        return logits if self.cap is None else self.cap * (logits / self.cap).tanh()


def head_of(model: PreTrainedModel) -> OutputHead:
    """The output head of `model`, compared with the model's own forward pass at the first
    call for a model of its kind.

    Raises:
        UsageError: the model has no linear output head, or its logits are another function of its
            last hidden states.
    """
    linear = model.get_output_embeddings()
    if not isinstance(linear, nn.Linear):
        raise UsageError(
            f"{type(model).__name__} has no plain linear layer as its output head, but "
            f"{'none' if linear is None else type(linear).__name__}: the learner needs one."
        )
    if model not in _forms:
        kind = model_fingerprint(model)
        if kind not in _known:
            _known[kind] = _find_form(model, linear)
        _forms[model] = _known[kind]
    return OutputHead(linear, *_forms[model])


def body_of(model: PreTrainedModel) -> nn.Module:
    """The part of `model` whose output holds the last hidden states.

    Raises:
        UsageError: no part of it is a model by itself.
    """
    if model.base_model is not model:
        return model.base_model
    from transformers import PreTrainedModel  # slow to import, and a head alone needs none of it

    parts = [part for part in model.children() if isinstance(part, PreTrainedModel)]
    if len(parts) != 1:  # Llama 4 names its body otherwise than it says
        raise UsageError(f"{type(model).__name__} has no body apart from its output head.")
    return parts[0]


@torch.no_grad()
def _find_form(model: PreTrainedModel, linear: nn.Linear) -> tuple[float, float | None]:
    """Scale and cap that give the model's own logits."""
    ids = torch.arange(min(8, linear.weight.shape[0]), device=model.device)[None]
    try:
        states: Tensor = body_of(model)(input_ids=ids, use_cache=False).last_hidden_state
        plain: Tensor = linear(states)
        stretch = max(1.0, _STRETCH / max(float(plain.abs().max()), 1e-6))
        own_logits = {factor: _own_logits(model, linear, ids, factor) for factor in (1.0, stretch)}
        for scale, cap in _candidates(model):
            head = OutputHead(linear, scale, cap)
            if all(_alike(head(states * factor), logits) for factor, logits in own_logits.items()):
                return scale, cap
    except UsageError:
        raise
    except Exception as error:  # families built in other ways raise anything
        raise UsageError(
            f"{type(model).__name__} cannot be trained: its forward pass on a row of "
            f"{ids.shape[1]} tokens fails ({str(error).splitlines()[0][:200]})."
        ) from error
    raise UsageError(
        f"{type(model).__name__} computes its logits from its last hidden states in a way that the "
        "learner does not know (no scale or cap that its configuration names): take a model of "
        "another family."
    )


def _own_logits(model: PreTrainedModel, linear: nn.Linear, ids: Tensor, stretch: float) -> Tensor:
    """The model's own logits if its head's input is multiplied by `stretch`."""

    def pull(_head: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
        return args[0] * stretch, *args[1:]

    handle = linear.register_forward_pre_hook(pull)
    try:
        logits: Tensor = model(input_ids=ids, use_cache=False).logits
    finally:
        handle.remove()
    return logits


def _candidates(model: PreTrainedModel) -> list[tuple[float, float | None]]:
    """Scales and caps that the configuration may mean, the plain head first."""
    config = model.config.get_text_config(decoder=True)
    scales: list[float] = [1.0]
    caps: list[float | None] = [None]
    for name in _SCALES:
        value = getattr(config, name, None)
        if isinstance(value, (int, float)) and value:
            scales += [float(value), 1 / value]
    if getattr(config, "dim_model_base", None):  # MiniCPM
        scales.append(config.dim_model_base / config.hidden_size)
    for name in _CAPS:
        value = getattr(config, name, None)
        if isinstance(value, (int, float)) and value:
            caps.append(float(value))
    return list(itertools.product(scales, caps))


def _alike(left: Tensor, right: Tensor) -> bool:
    if left.shape != right.shape:
        return False
    close = 2e-2 if left.dtype in (torch.bfloat16, torch.float16) else 1e-4
    size = float(right.abs().max())
    return torch.allclose(left.float(), right.float(), rtol=close, atol=close * max(1.0, size) / 4)
