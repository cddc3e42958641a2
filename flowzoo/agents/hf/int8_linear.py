"""Linear layers in int8."""

from __future__ import annotations

import math
from typing import Any, cast

import numpy as np
import torch
from torch import nn

from flowzoo.agents.hf.int8_levels import block_of, cached_parts, kernels, levels_of, quantize
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
