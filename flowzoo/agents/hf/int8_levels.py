"""Int8 numbers of linear layers: their scales, and the order of weights that a CPU multiplies best.

Products of integers are exact, so every order gives the same results.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import cache
from types import ModuleType
from typing import Protocol

import numpy as np
import torch

_AT_ONCE = 2**18
"""Most weights that are converted or compared at once: 1 MiB in float32."""


class Levels(Protocol):
    """Int8 weights of a linear layer."""

    @property
    def scales(self) -> torch.Tensor:
        """Scale of each row, (out_features,) float32."""

    def take(self, weight: torch.Tensor) -> None:
        """Quantize weights (out_features, in_features)."""

    def rows(self, part: slice) -> torch.Tensor:
        """Levels of the rows `part`, (rows, in_features) int8."""

    def multiply(self, levels: np.ndarray, scales: np.ndarray) -> torch.Tensor:
        """Multiply levels (rows, in_features) of an input, whose scales are (rows,).

        Returns:
            (rows, out_features) float32.
        """


@cache
def kernels() -> ModuleType:
    """The compiled kernels: `flowzoo.agents.hf.int8_kernels`."""
    from flowzoo.agents.hf import int8_kernels  # takes numba, which is loaded where it is needed

    return int8_kernels


def levels_of(out_features: int, in_features: int) -> Levels:
    """Space for weights, in the order that is fastest here."""
    # The packed product has one thread: others would contend with torch's, which wait in loops.
    if torch.get_num_threads() == 1 and kernels().has_dot_products():
        return PackedLevels(out_features, in_features)
    return PlainLevels()


def quantize(rows: torch.Tensor) -> tuple[np.ndarray, np.ndarray]:
    """Int8 levels (rows, width) of `rows` after rotation, and their float32 scales (rows,)."""
    exact = rows.float().contiguous().numpy()
    levels, scales = np.empty(exact.shape, np.int8), np.empty(len(exact), np.float32)
    kernels().quantize(exact, block_of(exact.shape[1]), levels, scales)
    return levels, scales


def block_of(width: int) -> int:
    """Features of a row that are rotated together."""
    return math.gcd(width, kernels().BLOCK)


def cached_parts(tensor: torch.Tensor) -> Iterator[slice]:
    """Rows of `tensor`, in multiples of 16, that stay in a CPU's cache with what they give."""
    rows = len(tensor)
    if tensor.device.type == "cpu":
        rows = max(16, _AT_ONCE // tensor[0].numel() // 16 * 16)
    return (slice(first, first + rows) for first in range(0, len(tensor), rows))


class PlainLevels:
    """Levels row by row, which torch multiplies."""

    def __init__(self) -> None:
        self._levels = torch.empty(0, 0, dtype=torch.int8)
        self._scales = torch.empty(0)

    @property
    def scales(self) -> torch.Tensor:
        """Scale of each row."""
        return self._scales

    def take(self, weight: torch.Tensor) -> None:
        """Quantize weights."""
        self._levels, self._scales = map(torch.from_numpy, quantize(weight))

    def rows(self, part: slice) -> torch.Tensor:
        """Levels of the rows `part`."""
        return self._levels[part]

    def multiply(self, levels: np.ndarray, scales: np.ndarray) -> torch.Tensor:
        """Multiply levels of an input."""
        # torch.ao's quantized layers are deprecated, and have one scale for all rows of a batch.
        sums = torch._int_mm(torch.from_numpy(levels), self._levels.t())
        out = torch.empty(sums.shape)
        kernels().dequantize(sums.numpy(), scales, self._scales.numpy(), out.numpy())
        return out


class PackedLevels:
    """Levels in the order in which `int8_kernels.multiply_packed` reads them.

    torch brings weights into such an order in every call, which takes longer than multiplying a
    few rows by them.
    """

    def __init__(self, out_features: int, in_features: int) -> None:
        self._shape = out_features, in_features
        tile = kernels().TILE
        panels, quads = math.ceil(out_features / tile), math.ceil(in_features / 4)
        # Of torch, because its memory is aligned to 64 bytes.
        self._packed = torch.empty(panels, quads, tile, dtype=torch.int32).numpy()
        self._scales = np.zeros(panels * tile, np.float32)

    @property
    def scales(self) -> torch.Tensor:
        """Scale of each row."""
        return torch.from_numpy(self._scales[: self._shape[0]])

    def take(self, weight: torch.Tensor) -> None:
        """Quantize weights."""
        tile, block = kernels().TILE, block_of(weight.shape[1])
        for part in cached_parts(weight):
            exact = weight[part].float().contiguous().numpy()
            packed = self._packed[part.start // tile : math.ceil(part.stop / tile)]
            kernels().quantize_packed(exact, block, packed, self._scales[part])

    def rows(self, part: slice) -> torch.Tensor:
        """Levels of the rows `part`."""
        rows, width = self._shape
        start, stop, _ = part.indices(rows)
        tile = kernels().TILE
        first = start // tile
        panels = self._packed[first : math.ceil(stop / tile)] ^ kernels().SIGNS
        levels = panels.transpose(0, 2, 1).copy().view(np.int8).reshape(len(panels) * tile, -1)
        return torch.from_numpy(levels[start - first * tile : stop - first * tile, :width])

    def multiply(self, levels: np.ndarray, scales: np.ndarray) -> torch.Tensor:
        """Multiply levels of an input."""
        rows, columns = len(levels), self._shape[0]
        out = torch.empty(-rows // 4 * -4, len(self._scales))
        kernels().multiply_packed(levels, scales, self._packed, self._scales, out.numpy())
        return out if out.shape == (rows, columns) else out[:rows, :columns].contiguous()
