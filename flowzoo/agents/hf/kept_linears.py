"""Linear layers in the number format of sampling, in place of a model's float32 ones.

A learner keeps float32 weights. Converting them for every token costs more than the products of a
small batch, so their lower-precision form is kept beside them and renewed after every update.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple, Protocol, cast

import torch
from torch import nn
from torch.autograd.function import once_differentiable

from flowzoo.agents.hf.int8_levels import cached_parts
from flowzoo.agents.hf.int8_linear import Int8Linear, LastInput
from flowzoo.agents.traits import EngineDType
from flowzoo.errors import UsageError


class KeptLayer(Protocol):
    """A linear layer that holds another one's weights in a number format."""

    def take(self, source: nn.Linear) -> None:
        """Copy the weights of `source`."""

    def holds(self, source: nn.Linear) -> bool:
        """Return True if it has the weights of `source`, up to the format's rounding."""


class LowerLinear(nn.Linear):
    """A linear layer in bfloat16 or float16; under autocast it computes what its source does.

    Gradients go to the source's weights, and are rounded as autocast rounds them.
    """

    def __init__(self, source: nn.Linear, dtype: torch.dtype) -> None:
        super().__init__(
            source.in_features, source.out_features, source.bias is not None,
            source.weight.device, dtype,
        )  # fmt: skip
        self.requires_grad_(False)
        self._source = weakref.ref(source)

    @property
    def source(self) -> nn.Linear:
        """The layer whose weights these are."""
        return cast(nn.Linear, self._source())

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """Multiply (..., in_features)."""
        source = self.source
        if not torch.is_grad_enabled() or not source.weight.requires_grad:
            return super().forward(input)
        low = input.to(self.weight.dtype)
        product: torch.Tensor = _RoundedProduct.apply(
            low, source.weight, source.bias, self.weight, self.bias
        )
        return product

    @torch.no_grad()
    def take(self, source: nn.Linear) -> None:
        """Round the weights of `source`."""
        for target, parameter in zip(self.parameters(), source.parameters(), strict=True):
            target.copy_(parameter)

    def holds(self, source: nn.Linear) -> bool:
        """Return True if the weights are the rounded ones of `source`."""
        pairs = zip(self.parameters(), source.parameters(), strict=True)
        return all(
            torch.equal(target[part], other[part].to(target.dtype))
            for target, other in pairs
            for part in cached_parts(target)
        )


class _RoundedProduct(torch.autograd.Function):
    """x Wᵀ + b with rounded W and b, in place of W and b in the backward pass too."""

    # Autocast rounds weights in every forward pass, into memory that is new each time.

    @staticmethod
    def forward(
        ctx: Any, hidden: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None,
        rounded_weight: torch.Tensor, rounded_bias: torch.Tensor | None,
    ) -> torch.Tensor:  # fmt: skip
        ctx.save_for_backward(hidden, rounded_weight)
        ctx.dtype = weight.dtype
        return nn.functional.linear(hidden, rounded_weight, rounded_bias)

    @staticmethod
    @once_differentiable  # which forgets the name of `ctx`
    def backward(  # pyrefly: ignore[bad-override]
        ctx: Any, *grad_outputs: torch.Tensor
    ) -> tuple[torch.Tensor | None, ...]:
        hidden, weight = ctx.saved_tensors
        wants, rows = ctx.needs_input_grad, grad_outputs[0].flatten(0, -2)
        grad_hidden = (rows @ weight).view(hidden.shape) if wants[0] else None
        grad_weight = (rows.t() @ hidden.flatten(0, -2)).to(ctx.dtype) if wants[1] else None
        grad_bias = rows.sum(0).to(ctx.dtype) if wants[2] else None
        return grad_hidden, grad_weight, grad_bias, None, None


_rounded: weakref.WeakKeyDictionary[nn.Linear, dict[torch.dtype, LowerLinear]] = (
    weakref.WeakKeyDictionary()
)
"""Layer -> its rounded copies, which sampling and learning share."""


def rounded_layer(source: nn.Linear, dtype: torch.dtype) -> LowerLinear:
    """Rounded copy of `source`, of which there is one."""
    copies = _rounded.setdefault(source, {})
    if dtype not in copies:
        copies[dtype] = LowerLinear(source, dtype)
        copies[dtype].take(source)
    return copies[dtype]


class _AdaptedLinear(nn.Module):
    """PEFT's layer of a linear layer with adapters: y + s B A x in two calls, not three modules."""

    def __init__(self, source: Any) -> None:
        super().__init__()
        self.source = source

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """Result of the source, (..., in_features) -> (..., out_features)."""
        source = self.source
        if hidden.dtype != torch.float32:
            return cast(torch.Tensor, source(hidden))
        out: torch.Tensor = source.base_layer(hidden)
        if source.disable_adapters:
            return out
        for name in source.active_adapters:
            if name in source.lora_A:
                low = nn.functional.linear(hidden.flatten(0, -2), source.lora_A[name].weight)
                up = source.lora_B[name].weight
                out.flatten(0, -2).addmm_(low, up.t(), alpha=source.scaling[name])
        return out


def _has_plain_adapters(module: Any) -> bool:
    # LoRA of a linear layer, without dropout, bias or one of PEFT's variants
    return (
        type(getattr(module, "base_layer", None)) is nn.Linear
        and hasattr(module, "lora_A")
        and not module.lora_variant
        and not module.merged
        and not any(module.lora_bias.values())
        and all(type(dropout) is nn.Identity for dropout in module.lora_dropout.values())
    )


class _Swap(NamedTuple):
    # The module that calls another, its name there, and its replacement.
    parent: nn.Module
    child: str
    source: nn.Module
    replacement: Any


class KeptLinears:
    """The linear layers of a model, output head included, in another number format.

    Adapters stay as they are, as do experts that are no linear layers.

    Raises:
        UsageError: int8 on a device other than a CPU.
    """

    def __init__(self, model: nn.Module, dtype: EngineDType) -> None:
        device = next(model.parameters()).device.type
        if dtype == "int8" and device != "cpu":
            raise UsageError(
                f"`engine_dtype` int8 is for models on a CPU, and this one is on {device}: use "
                "bfloat16, or --device cpu."
            )
        self._last_input = LastInput()
        self._layers: dict[nn.Linear, KeptLayer] = {}
        self._names: dict[nn.Linear, str] = {}
        """Name of each layer; of a tied one the last."""
        self._swaps: list[_Swap] = []
        for path, parent in model.named_modules():
            for child, source in parent._modules.items():
                name = f"{path}.{child}".removeprefix(".")
                if source is None:
                    continue
                if dtype == "int8" and _has_plain_adapters(source):
                    self._swaps.append(_Swap(parent, child, source, _AdaptedLinear(source)))
                if type(source) is not nn.Linear or ".lora_" in name:
                    continue
                if source not in self._layers:
                    self._layers[source] = self._kept_layer(source, dtype)
                self._names[source] = name
                self._swaps.append(_Swap(parent, child, source, self._layers[source]))

    def refresh(self) -> None:
        """Take the model's weights over again; frozen ones never change."""
        for source, layer in self._layers.items():
            if source.weight.requires_grad:
                layer.take(source)

    def differing(self) -> list[str]:
        """Names of the layers that do not hold the model's weights."""
        return [
            self._names[source] for source, layer in self._layers.items() if not layer.holds(source)
        ]

    @contextmanager
    def active(self) -> Iterator[None]:
        """Inside, the model computes with the kept layers."""
        self.install()
        try:
            yield
        finally:
            self._last_input.value = None
            for swap in self._swaps:
                swap.parent._modules[swap.child] = swap.source

    def install(self) -> None:
        """Put the kept layers into the model."""
        for swap in self._swaps:
            swap.parent._modules[swap.child] = swap.replacement

    def _kept_layer(self, source: nn.Linear, dtype: EngineDType) -> KeptLayer:
        if dtype != "int8":
            return rounded_layer(source, getattr(torch, dtype))
        layer = Int8Linear(source, self._last_input)
        layer.take(source)
        return layer
