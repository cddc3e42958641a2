"""Linear layers in int8."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any, cast

import numpy as np
import torch
from torch import nn

_LEVELS = 127.0
"""Largest magnitude of an int8 number; -128 is left out, so that ranges are symmetric."""
_LEAST = 1e-30
"""Smallest largest magnitude of a row, so that a row of zeros has a scale."""
_BLOCK = 32
"""Most features that are rotated together."""
_AT_ONCE = 2**18
"""Most weights that are rounded or compared at once: 1 MiB in float32."""
_ROUNDING = 1e-3
"""Share of a level by which float32 arithmetic moves a number that lies between two levels."""
_SHIFT = 1.5 * 2.0**23
"""Added to a small float32 number and subtracted again, it rounds to the nearest integer."""


class LastInput:
    """The input that was quantized last: layers that read the same tensor do it once."""

    # Only the last is kept, so that no more than one input lives longer than without this.
    # `_version` is not asked: tensors of inference mode have none.

    def __init__(self) -> None:
        self.value: tuple[torch.Tensor, torch.Tensor, torch.Tensor] | None = None
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
        self.block = math.gcd(source.in_features, _BLOCK)
        self.levels = torch.empty(source.out_features, source.in_features, dtype=torch.int8)
        self.scales = torch.empty(source.out_features)
        self.bias: torch.Tensor | None = None

    @torch.no_grad()
    def take(self, source: nn.Linear) -> None:
        """Quantize the weights of `source`; a bias stays in float32."""
        self.levels, self.scales = self.quantize(source.weight.detach())
        self.bias = None if source.bias is None else source.bias.detach().float().clone()

    @torch.no_grad()
    def holds(self, source: nn.Linear) -> bool:
        """Return True if every weight is within half a level of the one of `source`."""
        if source.bias is not None and not torch.equal(cast(Any, self.bias), source.bias.float()):
            return False
        rotation = _hadamard(self.block)
        for part in cached_parts(self.levels):
            weight = source.weight[part].float().unflatten(1, (self.block, -1))
            weight = (rotation @ weight).flatten(1)
            bound = weight.abs().amax(-1, keepdim=True).div_(_LEVELS).clamp_min_(_LEAST)
            weight.addcmul_(self.levels[part], self.scales[part, None], value=-1)
            if not bool((weight.abs_() <= bound.mul_(0.5 + _ROUNDING)).all()):
                return False
        return True

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """Multiply (..., in_features) in int8; the result has the input's number format."""
        quantized = self._last_input.value
        if quantized is None or quantized[0] is not hidden:
            quantized = self._last_input.value = hidden, *self.quantize(hidden.flatten(0, -2))
        _, levels, scales = quantized
        # torch.ao's quantized layers are deprecated, and have one scale for all rows of a batch.
        sums = torch._int_mm(levels, self.levels.t())
        out = torch.empty(sums.shape)
        _kernels()[1](sums.numpy(), scales.numpy(), self.scales.numpy(), out.numpy())
        if self.bias is not None:
            out += self.bias
        return out.to(hidden.dtype).view(*hidden.shape[:-1], self.out_features)

    def quantize(self, rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Int8 levels (rows, width) of `rows` after rotation, and their scales (rows,)."""
        levels, scales = torch.empty(rows.shape, dtype=torch.int8), torch.empty(len(rows))
        exact = rows.float().contiguous()
        _kernels()[0](exact.numpy(), self.block, levels.numpy(), scales.numpy())
        return levels, scales


def cached_parts(tensor: torch.Tensor) -> Iterator[slice]:
    """Rows of `tensor` that stay in a CPU's cache with what is computed from them."""
    rows = max(1, _AT_ONCE // tensor[0].numel()) if tensor.device.type == "cpu" else len(tensor)
    return (slice(first, first + rows) for first in range(0, len(tensor), rows))


def _hadamard(width: int) -> torch.Tensor:
    """Sylvester's Hadamard matrix of a power of two, scaled to be orthogonal."""
    matrix = torch.ones(1, 1)
    while len(matrix) < width:
        matrix = torch.cat((torch.cat((matrix, matrix), 1), torch.cat((matrix, -matrix), 1)))
    return matrix / math.sqrt(width)


@cache
def _kernels() -> tuple[Callable[..., None], Callable[..., None]]:
    from numba import njit

    compiled = njit(cache=True, nogil=True, error_model="numpy")
    return compiled(_quantize), compiled(_dequantize)


def _quantize(rows: np.ndarray, block: int, levels: np.ndarray, scales: np.ndarray) -> None:
    count, width = rows.shape
    row, shift = np.empty(width, np.float32), np.float32(_SHIFT)
    bits = row.view(np.int32)
    maximum = np.empty(1, np.float32)
    maximum_bits = maximum.view(np.int32)
    for i in range(count):
        row[:] = rows[i]
        step = width // block
        while step < width:
            for start in range(0, width, 2 * step):
                left = row[start : start + step]
                right = row[start + step : start + 2 * step]
                for k in range(step):
                    a, b = left[k], right[k]
                    left[k], right[k] = a + b, a - b
            step *= 2
        # Magnitudes are in the order of their bits, and maxima of integers take several at a time.
        top = np.int32(0)
        for k in range(width):
            top = max(top, bits[k] & np.int32(0x7FFFFFFF))
        maximum_bits[0] = top
        largest = max(maximum[0], np.float32(_LEAST))
        inverse = np.float32(_LEVELS) / largest
        level = levels[i]
        for k in range(width):
            level[k] = np.int8(np.int32((row[k] * inverse + shift) - shift))
        scales[i] = largest / (np.float32(_LEVELS) * np.float32(math.sqrt(block)))


def _dequantize(
    sums: np.ndarray, row_scales: np.ndarray, column_scales: np.ndarray, out: np.ndarray
) -> None:
    for i in range(sums.shape[0]):
        for k in range(sums.shape[1]):
            out[i, k] = np.float32(sums[i, k]) * column_scales[k] * row_scales[i]
