"""Linear layers in the number format of sampling, in place of a model's float32 ones.

A learner keeps float32 weights. Converting them for every token costs more than the products of a
small batch, so their lower-precision form is kept beside them and renewed after every update.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import torch
from torch import nn
from torch.autograd.function import once_differentiable

from flowzoo.agents.hf.attention import cached_parts
from flowzoo.agents.traits import EngineDType
from flowzoo.errors import UsageError

if TYPE_CHECKING:
    from flowzoo.agents.hf.int8_linear import Int8Linear, LastInput


_LEAST_SHARE = 0.5
"""Share of a model's weights that must be in linear layers for int8: the rest stays in float32."""


def is_trained(layer: nn.Linear) -> bool:
    """Return True if the weights or the bias of `layer` get gradients."""
    bias = layer.bias
    return layer.weight.requires_grad or (bias is not None and bias.requires_grad)


class LowerLinear(nn.Linear):
    """A linear layer in bfloat16 or float16; under autocast it computes what its source does.

    Gradients go to the source's weights, and are rounded as autocast rounds them. `weight` and
    `bias` are the source's: some models compute with them themselves (Mamba).
    """

    def __init__(self, source: nn.Linear, dtype: torch.dtype) -> None:
        nn.Module.__init__(self)
        self.in_features, self.out_features = source.in_features, source.out_features
        self.rounded = nn.Linear(
            source.in_features, source.out_features, source.bias is not None,
            source.weight.device, dtype,
        ).requires_grad_(False)  # fmt: skip
        self._source = weakref.ref(source)

    @property
    def source(self) -> nn.Linear:
        """The layer whose weights these are."""
        return cast(nn.Linear, self._source())

    @property
    def weight(self) -> torch.Tensor:  # type: ignore[override]
        """The source's weights, (out_features, in_features)."""
        return self.source.weight

    @property
    def bias(self) -> torch.Tensor | None:  # type: ignore[override]
        """The source's bias, (out_features,)."""
        return self.source.bias

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """Multiply (..., in_features)."""
        source, rounded = self.source, self.rounded
        if not torch.is_grad_enabled() or not is_trained(source):
            return cast(torch.Tensor, rounded(input))
        low = input.to(rounded.weight.dtype)
        product: torch.Tensor = _RoundedProduct.apply(
            low, source.weight, source.bias, rounded.weight, rounded.bias
        )
        return product

    @torch.no_grad()
    def take(self, source: nn.Linear) -> None:
        """Round the weights of `source`."""
        for target, parameter in zip(self.rounded.parameters(), source.parameters(), strict=True):
            target.copy_(parameter)

    def holds(self, source: nn.Linear) -> bool:
        """Return True if the weights are the rounded ones of `source`."""
        pairs = zip(self.rounded.parameters(), source.parameters(), strict=True)
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
    """Rounded copy of `source`, of which there is one, with any weights."""
    copies = _rounded.setdefault(source, {})
    if dtype not in copies:
        copies[dtype] = LowerLinear(source, dtype)
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

    Adapters keep their number format, as do experts that are no linear layers. Not reentrant: one
    at a time is active in a model.

    Raises:
        UsageError: int8 on a device other than a CPU, or for a model whose weights are mostly not
            in linear layers.
    """

    def __init__(self, model: nn.Module, dtype: EngineDType) -> None:
        device = next(model.parameters()).device.type
        if dtype == "int8" and device != "cpu":
            raise UsageError(
                f"`engine_dtype` int8 is for models on a CPU, and this one is on {device}: use "
                "bfloat16, or --device cpu."
            )
        make: Callable[[nn.Linear], Int8Linear | LowerLinear]
        self._last_input: LastInput | None = None
        if dtype == "int8":
            # It takes numba, which is loaded where it is needed.
            from flowzoo.agents.hf.int8_linear import Int8Linear, LastInput

            self._last_input = LastInput()
            make = partial(Int8Linear, last_input=self._last_input)
        else:
            make = partial(rounded_layer, dtype=getattr(torch, dtype))
        self._layers: dict[nn.Linear, Int8Linear | LowerLinear] = {}
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
                    self._layers[source] = make(source)
                    self._layers[source].take(source)
                self._names[source] = name
                self._swaps.append(_Swap(parent, child, source, self._layers[source]))
        if dtype == "int8":
            self._check_share(model)

    def refresh(self) -> None:
        """Copy the trained weights again; frozen ones never change."""
        for source, layer in self._layers.items():
            if is_trained(source):
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
            if self._last_input is not None:
                self._last_input.value = None
            for swap in self._swaps:
                swap.parent._modules[swap.child] = swap.source

    def install(self) -> None:
        """Put the kept layers into the model."""
        for swap in self._swaps:
            swap.parent._modules[swap.child] = swap.replacement

    def _check_share(self, model: nn.Module) -> None:
        # Without embedding tables, of which a token reads one row.
        tables = {id(m.weight) for m in model.modules() if isinstance(m, nn.Embedding)}
        matrices = {id(p): p.numel() for p in model.parameters() if p.ndim > 1}
        linear = {id(layer.weight) for layer in self._layers}
        total = sum(count for key, count in matrices.items() if key not in tables)
        part = sum(count for key, count in matrices.items() if key in linear - tables)
        if part < _LEAST_SHARE * total:
            raise UsageError(
                f"`engine_dtype` int8 is for linear layers, which have {part / total:.0%} of the "
                f"weights of {type(model).__name__}: use bfloat16 or float32."
            )
