"""Compiled kernels of int8 layers."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from llvmlite import ir
from llvmlite.binding import get_host_cpu_features
from numba import njit, types
from numba.core import cgutils, config
from numba.extending import intrinsic

LARGEST = 127.0
"""Largest magnitude of a level; -128 is left out, so that ranges are symmetric."""
LEAST = 1e-30
"""Smallest largest magnitude of a row, so that a row of zeros has a scale."""
TILE = 16
"""Rows of weights that are multiplied together, one per lane of a register."""
BLOCK = 32
"""Most features that are rotated together."""
_SHIFT = 1.5 * 2.0**23
"""Added to a small float32 number and subtracted again, it rounds to the nearest integer."""
_OFFSET = 128
"""Added to levels of weights, because the instruction takes one of its sides without a sign."""
SIGNS = -0x7F7F7F80  # 0x80808080
"""Turns four levels into levels plus `_OFFSET`, and back."""
_AHEAD = 2048
"""Bytes by which weights are asked of memory before they are used."""

_compiled = njit(cache=True, nogil=True, error_model="numpy")


def has_dot_products() -> bool:
    """Return True if the CPU adds up products of int8 in one instruction (AVX-512 VNNI).

    CPUs with matrix instructions (AMX) are left out, because torch uses those, as are settings that
    make numba compile for another CPU.
    """
    if getattr(config, "CPU_NAME", None) or getattr(config, "CPU_FEATURES", None):
        return False
    features = get_host_cpu_features()
    return bool(features.get("avx512vnni")) and not features.get("amx-int8")


def _pointer(builder: Any, base: Any, offset: Any, kind: Any) -> Any:
    return builder.inttoptr(builder.add(base, offset), kind.as_pointer())


def _rotation() -> Any:
    # Walsh-Hadamard transform, not scaled, of `BLOCK` numbers that lie `stride` bytes apart, of as
    # many neighbors at once as a register has lanes, without a copy in memory between its stages.

    @intrinsic
    def rotate(_context: Any, source: Any, target: Any, stride: Any) -> Any:
        return types.void(source, target, stride), generate

    def generate(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        source, target, stride = arguments
        kind = ir.VectorType(ir.FloatType(), TILE)
        offsets = [builder.mul(stride, ir.IntType(64)(i)) for i in range(BLOCK)]
        lanes = [
            builder.load(_pointer(builder, source, offset, kind), align=4) for offset in offsets
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
            builder.store(numbers, _pointer(builder, target, offset, kind), align=4)
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
def quantize(rows: np.ndarray, block: int, levels: np.ndarray, scales: np.ndarray) -> None:
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
def dequantize(
    sums: np.ndarray, row_scales: np.ndarray, column_scales: np.ndarray, out: np.ndarray
) -> None:
    """Scale sums (rows, columns) of products."""
    for i in range(sums.shape[0]):
        for k in range(sums.shape[1]):
            out[i, k] = np.float32(sums[i, k]) * column_scales[k] * row_scales[i]


@_compiled
def quantize_packed(rows: np.ndarray, block: int, packed: np.ndarray, scales: np.ndarray) -> None:
    """Rotate and round rows of float32 for `multiply_packed`.

    Args:
        rows: (rows, width).
        block: as for `quantize`.
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
        quantize(rows[first:last], block, levels, scales[first:last])
        target = packed[panel]
        for quad in range(quads):
            for lane in range(TILE):
                target[quad, lane] = quadruples[lane, quad] ^ np.int32(SIGNS)


def _tile(rows: int) -> Any:
    # Rows of the input times the columns of a panel. The number of rows is known when it is
    # compiled, so that sums stay in registers.

    @intrinsic
    def multiply(
        _context: Any, levels: Any, shifts: Any, row_scales: Any, weights: Any, column_scales: Any,
        out: Any, quads: Any, columns: Any,
    ) -> Any:  # fmt: skip
        signature = types.void(
            levels, shifts, row_scales, weights, column_scales, out, quads, columns
        )
        return signature, generate

    def generate(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        levels, shifts, row_scales, weights, column_scales, out, quads, columns = arguments
        word, real, address = ir.IntType(32), ir.FloatType(), ir.IntType(64)
        integers, reals = ir.VectorType(word, TILE), ir.VectorType(real, TILE)
        multiply_add = cgutils.get_or_insert_function(
            builder.module,
            ir.FunctionType(integers, [integers] * 3),
            "llvm.x86.avx512.vpdpbusd.512",
        )
        prefetch = cgutils.get_or_insert_function(
            builder.module,
            ir.FunctionType(ir.VoidType(), [ir.IntType(8).as_pointer(), word, word, word]),
            "llvm.prefetch.p0",
        )

        def spread(kind: Any, base: Any, offset: Any) -> Any:
            number = builder.load(_pointer(builder, base, offset, kind.element), align=4)
            lanes = builder.insert_element(kind(ir.Undefined), number, word(0))
            return builder.shuffle_vector(lanes, kind(ir.Undefined), integers(None))

        sums = [cgutils.alloca_once_value(builder, integers(None)) for _ in range(rows)]
        width = builder.mul(quads, address(4))
        starts = [builder.mul(width, address(row)) for row in range(rows)]
        with cgutils.for_range(builder, quads, intp=address) as loop:
            offset = builder.mul(loop.index, address(4 * TILE))
            column = builder.load(_pointer(builder, weights, offset, integers), align=4 * TILE)
            later = _pointer(builder, weights, builder.add(offset, address(_AHEAD)), ir.IntType(8))
            builder.call(prefetch, [later, word(0), word(2), word(1)])
            quad = builder.mul(loop.index, address(4))
            for start, total in zip(starts, sums, strict=True):
                four = spread(integers, levels, builder.add(start, quad))
                builder.store(
                    builder.call(multiply_add, [builder.load(total), column, four]), total
                )
        factors = builder.load(_pointer(builder, column_scales, address(0), reals), align=4)
        for row, total in enumerate(sums):
            shift = spread(integers, shifts, address(4 * row))
            exact = builder.sitofp(builder.sub(builder.load(total), shift), reals)
            scaled = builder.fmul(
                builder.fmul(exact, factors), spread(reals, row_scales, address(4 * row))
            )
            start = builder.mul(columns, address(4 * row))
            builder.store(scaled, _pointer(builder, out, start, reals), align=4)
        return _context.get_dummy_value()

    return multiply


_tile_4, _tile_8, _tile_12, _tile_16 = (_tile(rows) for rows in (4, 8, 12, 16))


@_compiled
def multiply_packed(
    levels: np.ndarray, row_scales: np.ndarray, packed: np.ndarray, column_scales: np.ndarray,
    out: np.ndarray,
) -> None:  # fmt: skip
    """Multiply and scale levels on a CPU that has dot products.

    Args:
        levels: (rows, width) int8, of the input.
        row_scales: (rows,) float32.
        packed: weights of `quantize_packed`, aligned to 64 bytes.
        column_scales: (16 panels,) float32.
        out: (rows, 16 panels) float32, for the result, with rows up to a multiple of 4.
    """
    count, width = levels.shape
    rows, columns = out.shape
    quads = packed.shape[1]
    padded = np.zeros((rows, 4 * quads), np.int8)
    shifts, scales = np.zeros(rows, np.int32), np.zeros(rows, np.float32)
    scales[:count] = row_scales
    for i in range(count):
        row, copy, total = levels[i], padded[i], np.int32(0)
        for k in range(width):
            copy[k] = row[k]
            total = np.int32(total + np.int32(row[k]))
        shifts[i] = total * np.int32(_OFFSET)
    for panel in range(len(packed)):
        weights = packed.ctypes.data + panel * quads * 4 * TILE
        factors = column_scales.ctypes.data + panel * 4 * TILE
        for top in range(0, rows, TILE):
            tile = padded.ctypes.data + top * 4 * quads
            shift, scale = shifts.ctypes.data + 4 * top, scales.ctypes.data + 4 * top
            target = out.ctypes.data + 4 * (top * columns + panel * TILE)
            remaining = rows - top
            if remaining >= 16:
                _tile_16(tile, shift, scale, weights, factors, target, quads, columns)
            elif remaining == 12:
                _tile_12(tile, shift, scale, weights, factors, target, quads, columns)
            elif remaining == 8:
                _tile_8(tile, shift, scale, weights, factors, target, quads, columns)
            else:
                _tile_4(tile, shift, scale, weights, factors, target, quads, columns)
