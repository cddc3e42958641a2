"""Compiled kernels that round numbers to int8."""

# numba does not compile anew what a file keeps compiled when another file changes, so instructions
# stand beside the functions that have them.

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.core.base import BaseContext
from numba.extending import intrinsic

LARGEST = 127.0
"""Largest magnitude of a level; -128 is left out, so that ranges are symmetric."""
LEAST = 1e-30
"""Smallest largest magnitude of a row, so that a row of zeros has a scale."""
TILE = 16
"""Rows of weights that are multiplied together, one per lane of a register or of two."""
BLOCK = 32
"""Most features that are rotated together."""
_SHIFT = 1.5 * 2.0**23
"""Added to a small float32 number and subtracted again, it rounds to the nearest integer."""
SIGNS = -0x7F7F7F80  # 0x80808080
"""Turns four levels into levels plus 128, and back."""

_compiled = njit(cache=True, nogil=True, error_model="numpy")


def pointer(builder: ir.IRBuilder, base: ir.Value, offset: ir.Value, kind: ir.Type) -> ir.Value:
    """Address `base` plus `offset` bytes, as a pointer in LLVM's code."""
    return builder.inttoptr(builder.add(base, offset), kind.as_pointer())


def _rotation() -> Any:
    # Walsh-Hadamard transform, not scaled, of `BLOCK` numbers that lie `stride` bytes apart, of as
    # many neighbors at once as a register has lanes, without a copy in memory between its stages.

    @intrinsic
    def rotate(_context: object, source: object, target: object, stride: object) -> Any:
        return types.void(source, target, stride), generate

    def generate(
        context: BaseContext,
        builder: ir.IRBuilder,
        _signature: object,
        arguments: Sequence[ir.Value],
    ) -> ir.Value:
        source, target, stride = arguments
        kind = ir.VectorType(ir.FloatType(), TILE)
        offsets = [builder.mul(stride, ir.IntType(64)(i)) for i in range(BLOCK)]
        lanes = [
            builder.load(pointer(builder, source, offset, kind), align=4) for offset in offsets
        ]
        distance = 1
        while distance < BLOCK:
            for i in range(BLOCK):
                if not i & distance:
                    left, right = lanes[i], lanes[i + distance]
                    lanes[i] = builder.fadd(left, right)
                    lanes[i + distance] = builder.fsub(left, right)
            distance *= 2
        for offset, numbers in zip(offsets, lanes, strict=True):
            builder.store(numbers, pointer(builder, target, offset, kind), align=4)
        return context.get_dummy_value()

    return rotate


_rotate_lanes = _rotation()


@_compiled
def _rotate(source: np.ndarray, block: int, target: np.ndarray) -> None:
    width = len(source)
    step = width // block
    if block == BLOCK and step >= TILE:
        for first in range(0, step, TILE):
            offset = 4 * min(first, step - TILE)  # the last ones may be rotated twice
            _rotate_lanes(source.ctypes.data + offset, target.ctypes.data + offset, 4 * step)
        return
    target[:] = source
    while step < width:
        for start in range(0, width, 2 * step):
            left = target[start : start + step]
            right = target[start + step : start + 2 * step]
            for k in range(step):
                a, b = left[k], right[k]
                left[k], right[k] = a + b, a - b
        step *= 2


@_compiled
def quantize_rows(rows: np.ndarray, block: int, levels: np.ndarray, scales: np.ndarray) -> None:
    """Rotate and round rows of float32.

    Args:
        rows: (rows, width).
        block: features that are rotated together, a power of two that divides the width.
        levels: (rows, at least width) int8, for the result.
        scales: (rows,) float32, for the result.
    """
    count, width = rows.shape
    row, shift = np.empty(width, np.float32), np.float32(_SHIFT)
    bits = row.view(np.int32)
    maximum = np.empty(1, np.float32)
    maximum_bits = maximum.view(np.int32)
    for i in range(count):
        _rotate(rows[i], block, row)
        # Magnitudes are in the order of their bits, and maxima of integers take several at a time.
        top = np.int32(0)
        for k in range(width):
            top = max(top, bits[k] & np.int32(0x7FFFFFFF))
        maximum_bits[0] = top
        largest = max(maximum[0], np.float32(LEAST))
        inverse = np.float32(LARGEST) / largest
        level = levels[i]
        for k in range(width):
            level[k] = np.int8(np.int32((row[k] * inverse + shift) - shift))
        scales[i] = largest / (np.float32(LARGEST) * np.float32(math.sqrt(block)))


@_compiled
def quantize_packed(rows: np.ndarray, block: int, packed: np.ndarray, scales: np.ndarray) -> None:
    """Rotate and round rows of float32 for `multiply_packed`.

    Args:
        rows: (rows, width).
        block: as for `quantize_rows`.
        packed: (rows / 16, width / 4, 16) int32, rounded up, for the result: panels of 16 rows,
            in which lie four levels of each row, then the next four of each.
        scales: (16 panels,) float32, for the result.
    """
    panels, quads, _ = packed.shape
    levels = np.zeros((TILE, 4 * quads), np.int8)
    quadruples = levels.view(np.int32)
    for panel in range(panels):
        first = panel * TILE
        last = min(first + TILE, len(rows))
        quantize_rows(rows[first:last], block, levels, scales[first:last])
        target = packed[panel]
        for quad in range(quads):
            for lane in range(TILE):
                target[quad, lane] = quadruples[lane, quad] ^ np.int32(SIGNS)
