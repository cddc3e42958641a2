"""Linear layers in the number format of sampling, in place of a model's float32 ones.

A learner keeps float32 weights. Converting them for every token costs more than the products of a
small batch, so their lower-precision form is kept beside them and renewed after every update.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple, Protocol, cast

import numpy as np
import torch
from torch import nn
from torch.autograd.function import once_differentiable

from flowzoo.agents.hf.int8_levels import block_of, cached_parts, kernels, levels_of, quantize
from flowzoo.agents.traits import EngineDType
from flowzoo.errors import UsageError

_ROUNDING = 1e-3
"""Tolerance of `holds` in quantization steps, for the rounding of float32."""


class LastInput:
    """The input that was quantized last: layers that read the same tensor do it once."""

    # Only the last is kept, so that no more than one input lives longer than without this.
    # `_version` is not asked: tensors of inference mode have none.

    def __init__(self) -> None:
        self.value: tuple[torch.Tensor, np.ndarray, np.ndarray] | None = None
        """Input, its int8 levels and their scales."""


class Int8Linear(nn.Module):
    """A linear layer with int8 weights that quantizes its input, one scale per row of each.

    Symmetric vector-wise quantization (LLM.int8(), arXiv:2208.07339, section 3): with
    s = max|v| / 127 of a row v, q = round(v / s), and y = (q_x q_w) s_x s_w + b. Both sides are
    rotated by a Hadamard matrix first, which leaves products as they are and spreads the few large
    features of a row (QuaRot, arXiv:2404.00456, section 3). Sums of products are exact integers and
    no row has another's scale, so rows of a batch do not change each other.
    """

    # Features k, k + n, k + 2 n, … are rotated together, where n is the width over the block: a
    # butterfly then adds neighbors to neighbors, which CPUs do several at a time.

    def __init__(self, source: nn.Linear, last_input: LastInput | None = None) -> None:
        super().__init__()
        self._last_input = last_input or LastInput()
        self.out_features = source.out_features
        self.levels = levels_of(source.out_features, source.in_features)
        self.bias: torch.Tensor | None = None

    @torch.no_grad()
    def take(self, source: nn.Linear) -> None:
        """Quantize the weights of `source`; a bias stays in float32."""
        self.levels.take(source.weight.detach())
        self.bias = None if source.bias is None else source.bias.detach().float().clone()

    @torch.no_grad()
    def holds(self, source: nn.Linear) -> bool:
        """Return True if every weight is within half a level of the one of `source`."""
        if source.bias is not None and not torch.equal(cast(Any, self.bias), source.bias.float()):
            return False
        block = block_of(source.in_features)
        rotation = _hadamard(block)
        limits = kernels()
        for part in cached_parts(source.weight):
            weight = source.weight[part].float().unflatten(1, (block, -1))
            weight = (rotation @ weight).flatten(1)
            bound = weight.abs().amax(-1, keepdim=True)
            bound = bound.div_(limits.LARGEST).clamp_min_(limits.LEAST)
            weight.addcmul_(self.levels.rows(part), self.levels.scales[part, None], value=-1)
            if not bool((weight.abs_() <= bound.mul_(0.5 + _ROUNDING)).all()):
                return False
        return True

    def _save_to_state_dict(self, *args: Any, **kwargs: Any) -> None:
        raise UsageError("a model with int8 layers cannot be saved: load it in float32.")

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """Multiply (..., in_features) in int8; the result has the input's number format."""
        quantized = self._last_input.value
        if quantized is None or quantized[0] is not hidden:
            quantized = self._last_input.value = hidden, *quantize(hidden.flatten(0, -2))
        _, levels, scales = quantized
        out = self.levels.multiply(levels, scales)
        if self.bias is not None:
            out += self.bias
        return out.to(hidden.dtype).view(*hidden.shape[:-1], self.out_features)


def _hadamard(width: int) -> torch.Tensor:
    """Sylvester's Hadamard matrix of a power of two, scaled to be orthogonal."""
    matrix = torch.ones(1, 1)
    while len(matrix) < width:
        matrix = torch.cat((torch.cat((matrix, matrix), 1), torch.cat((matrix, -matrix), 1)))
    return matrix / math.sqrt(width)


class KeptLayer(Protocol):
    """A linear layer that holds another one's weights in a number format."""

    def take(self, source: nn.Linear) -> None:
        """Copy the weights of `source`."""

    def holds(self, source: nn.Linear) -> bool:
        """Return True if it has the weights of `source`, up to the format's rounding."""


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
            self._last_input.value = None
            for swap in self._swaps:
                swap.parent._modules[swap.child] = swap.source

    def install(self) -> None:
        """Put the kept layers into the model."""
        for swap in self._swaps:
            swap.parent._modules[swap.child] = swap.replacement

    def _kept_layer(self, source: nn.Linear, dtype: EngineDType) -> KeptLayer:
        layer: KeptLayer = (
            Int8Linear(source, self._last_input)
            if dtype == "int8"
            else rounded_layer(source, getattr(torch, dtype))
        )
        layer.take(source)
        return layer

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
