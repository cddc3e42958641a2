"""Int8 numbers of linear layers: their scales, and the order of weights that a CPU multiplies best.

Products of integers are exact, so every order gives the same results.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Protocol

import numpy as np
import torch

_AT_ONCE = 2**18
"""Most weights that are converted or compared at once: 1 MiB in float32."""
_PER_THREAD = 2**18
"""Minimum multiplications per thread, about 5 µs of work."""


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
    """The module `int8_kernels`."""
    from flowzoo.agents.hf import int8_kernels  # takes numba, which is loaded where it is needed

    return int8_kernels


@cache
def products() -> ModuleType:
    """The module `int8_product`."""
    from flowzoo.agents.hf import int8_product

    return int8_product


def levels_of(out_features: int, in_features: int) -> Levels:
    """Empty storage for weights, in the layout that is fastest on this CPU."""
    instructions = products().instructions()
    if instructions:
        return PackedLevels(out_features, in_features, instructions)
    return PlainLevels()


@cache
def parallel_function() -> int:
    """Address of `GOMP_parallel` in the OpenMP that torch uses; 0 if it has none.

    Threads of another pool would contend with torch's, which wait in loops for a while.
    """
    library = Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"
    try:
        function = ctypes.CDLL(str(library)).GOMP_parallel
    except (OSError, AttributeError):
        return 0
    return ctypes.cast(function, ctypes.c_void_p).value or 0


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
    """Slices of rows of `tensor`, in multiples of 16, that fit into a CPU's cache."""
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
    """Levels in the order in which `int8_product.multiply_packed` reads them.

    torch brings weights into such an order in every call, which takes longer than multiplying a
    few rows by them, or, without AVX-512, multiplies number by number.
    """

    def __init__(self, out_features: int, in_features: int, instructions: str) -> None:
        self._shape = out_features, in_features
        self._instructions = instructions
        tile = kernels().TILE
        panels, quads = math.ceil(out_features / tile), math.ceil(in_features / 4)
        # A tensor, because torch aligns memory to 64 bytes, in copies too.
        self._memory = torch.empty(panels, quads, tile, dtype=torch.int32)
        self._scales = np.zeros(panels * tile, np.float32)

    @property
    def _packed(self) -> np.ndarray:
        return self._memory.numpy()

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
        rows, columns, packed = len(levels), self._shape[0], self._packed
        out = torch.empty(-rows // 4 * -4, len(self._scales))
        product = products().product(self._instructions)
        item_size = products().ITEM_SIZES[self._instructions]
        products().multiply_packed(
            levels, scales, packed, self._scales, out.numpy(), product, item_size,
            _threads(rows, packed), parallel_function(),
        )  # fmt: skip
        return out if out.shape == (rows, columns) else out[:rows, :columns].contiguous()


def _threads(rows: int, packed: np.ndarray) -> int:
    if not parallel_function():
        return 1
    useful = rows * packed.size * 4 // _PER_THREAD
    return max(1, min(torch.get_num_threads(), useful, len(packed)))
