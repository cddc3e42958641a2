"""Compiled products of int8 levels by instructions that numba does not reach."""

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, Literal

import numpy as np
from llvmlite import ir
from llvmlite.binding import get_host_cpu_features
from numba import carray, cfunc, njit, types
from numba.core import cgutils, config
from numba.core.base import BaseContext
from numba.extending import intrinsic

from flowzoo.agents.hf.int8_kernels import TILE, pointer

Instructions = Literal["AVX-512 VNNI", "AVX2"]
"""Instructions that multiply packed weights."""
_OFFSET = 128
"""Added to levels of weights, because the instruction takes one of its sides without a sign."""
_AHEAD = 2048
"""Bytes by which weights are asked of memory before they are used."""
Operands = Sequence[ir.Value]
Generate = Callable[[BaseContext, ir.IRBuilder, object, Operands], ir.Value]
"""Writes the code of a call."""
_WORD, _REAL, _ADDRESS = ir.IntType(32), ir.FloatType(), ir.IntType(64)

_compiled = njit(cache=True, nogil=True, error_model="numpy")
_intrinsic: Any = intrinsic


@cache
def instructions() -> Instructions | None:
    """Instructions of this CPU that multiply packed weights; None: torch multiplies.

    VNNI adds up four products of int8 in one instruction; without it, torch multiplies int8 number
    by number where a CPU has no AVX-512. CPUs with matrix instructions (AMX) are left out, because
    torch uses those, as are settings that make numba compile for another CPU.
    """
    if getattr(config, "CPU_NAME", None) or getattr(config, "CPU_FEATURES", None):
        return None
    features = get_host_cpu_features()
    if features.get("amx-int8"):
        return None
    if features.get("avx512vnni"):
        return "AVX-512 VNNI"
    return "AVX2" if features.get("avx2") else None


class _Tile:
    """Code of rows of an input times the columns of a panel."""

    # The number of rows is known when it is compiled, so that sums stay in registers.

    lanes = TILE
    """Lanes of a register."""
    item_size = 1
    """Bytes of a level of the input."""

    def __init__(self, builder: ir.IRBuilder, rows: int) -> None:
        self.builder = builder
        self.integers = ir.VectorType(_WORD, self.lanes)
        self.reals = ir.VectorType(_REAL, self.lanes)
        self.sums = [
            [cgutils.alloca_once_value(builder, self.integers(None)) for _ in self.parts()]
            for _ in range(rows)
        ]

    def parts(self) -> range:
        """First lanes of the registers that hold a panel's columns."""
        return range(0, TILE, self.lanes)

    def spread(self, kind: ir.VectorType, base: ir.Value, offset: ir.Value) -> ir.Value:
        """Number in all lanes of a register."""
        number = self.builder.load(pointer(self.builder, base, offset, kind.element), align=4)
        lanes = self.builder.insert_element(kind(ir.Undefined), number, _WORD(0))
        return self.builder.shuffle_vector(lanes, kind(ir.Undefined), self.integers(None))

    def call(self, name: str, result: ir.Type, *arguments: Any) -> ir.Value:
        """Call an instruction of LLVM."""
        kinds = [argument.type for argument in arguments]
        function = ir.FunctionType(result, kinds)
        instruction = cgutils.get_or_insert_function(self.builder.module, function, name)
        return self.builder.call(instruction, arguments)

    def prefetch(self, base: ir.Value, offset: ir.Value) -> None:
        """Ask memory for what comes later."""
        later = pointer(self.builder, base, offset, ir.IntType(8))
        self.call("llvm.prefetch.p0", ir.VoidType(), later, _WORD(0), _WORD(2), _WORD(1))

    def add_quad(self, inputs: list[ir.Value], weights: ir.Value) -> None:
        """Add products of four features to the sums.

        Args:
            inputs: addresses of four levels of each row.
            weights: address of four levels of each column.
        """
        registers = [
            self.builder.load(
                pointer(self.builder, weights, _ADDRESS(4 * first), self.integers),
                align=4 * self.lanes,
            )
            for first in self.parts()
        ]
        # The order in which registers are free soonest.
        for i in range(self.item_size):
            columns = [self.operand(register, i) for register in registers]
            for start, sums in zip(inputs, self.sums, strict=True):
                levels = self.spread(self.integers, start, _ADDRESS(4 * i))
                for column, total in zip(columns, sums, strict=True):
                    added = self.add(self.builder.load(total), column, levels)
                    self.builder.store(added, total)

    def operand(self, register: ir.Value, part: int) -> ir.Value:
        """Levels of weights, four in a lane, as `add` takes them."""
        return register

    def add(self, total: ir.Value, column: ir.Value, levels: ir.Value) -> ir.Value:
        """Sums with products of `column`, which has no signs, and `levels`."""
        return self.call("llvm.x86.avx512.vpdpbusd.512", self.integers, total, column, levels)

    def write(
        self,
        shifts: ir.Value,
        row_scales: ir.Value,
        column_scales: ir.Value,
        out: ir.Value,
        columns: ir.Value,
    ) -> None:
        """Scale the sums and write them."""
        builder = self.builder
        for part, first in enumerate(self.parts()):
            lanes = _ADDRESS(4 * first)
            factors = builder.load(pointer(builder, column_scales, lanes, self.reals), align=4)
            for row, sums in enumerate(self.sums):
                shift = self.spread(self.integers, shifts, _ADDRESS(4 * row))
                exact = builder.sitofp(builder.sub(builder.load(sums[part]), shift), self.reals)
                scale = self.spread(self.reals, row_scales, _ADDRESS(4 * row))
                scaled = builder.fmul(builder.fmul(exact, factors), scale)
                start = builder.add(builder.mul(columns, _ADDRESS(4 * row)), lanes)
                builder.store(scaled, pointer(builder, out, start, self.reals), align=4)


class _Avx2Tile(_Tile):
    """Tile for CPUs without dot products, of products of pairs."""

    lanes = 8
    item_size = 2

    def operand(self, register: ir.Value, part: int) -> ir.Value:
        """First or last two of four levels, as numbers of two bytes."""
        octets = ir.VectorType(ir.IntType(8), 4 * self.lanes)
        zero, order = 4 * self.lanes, []
        for level in range(2 * part, 4 * self.lanes, 4):
            order += [level, zero, level + 1, zero]
        mask = ir.Constant(ir.VectorType(_WORD, 4 * self.lanes), order)
        return self.builder.shuffle_vector(
            self.builder.bitcast(register, octets), octets(None), mask
        )

    def add(self, total: ir.Value, column: ir.Value, levels: ir.Value) -> ir.Value:
        """Sums with products of both numbers of each lane."""
        halves = ir.VectorType(ir.IntType(16), 2 * self.lanes)
        sides = (self.builder.bitcast(side, halves) for side in (column, levels))
        products = self.call("llvm.x86.avx2.pmadd.wd", self.integers, *sides)
        return self.builder.add(total, products)


def _tile(code: type[_Tile], rows: int) -> Any:
    @_intrinsic
    def multiply(
        _context: object, levels: object, shifts: object, row_scales: object, weights: object,
        column_scales: object, out: object, quads: object, columns: object,
    ) -> tuple[object, Generate]:  # fmt: skip
        signature = types.void(
            levels, shifts, row_scales, weights, column_scales, out, quads, columns
        )
        return signature, generate

    def generate(
        context: BaseContext, builder: ir.IRBuilder, _signature: object, arguments: Operands
    ) -> ir.Value:
        levels, shifts, row_scales, weights, column_scales, out, quads, columns = arguments
        tile = code(builder, rows)
        quad_size = _ADDRESS(4 * code.item_size)
        width = builder.mul(quads, quad_size)
        starts = [builder.add(levels, builder.mul(width, _ADDRESS(row))) for row in range(rows)]
        with cgutils.for_range(builder, quads, intp=_ADDRESS) as loop:
            offset = builder.mul(loop.index, _ADDRESS(4 * TILE))
            tile.prefetch(weights, builder.add(offset, _ADDRESS(_AHEAD)))
            quad = builder.mul(loop.index, quad_size)
            inputs = [builder.add(start, quad) for start in starts]
            tile.add_quad(inputs, builder.add(weights, offset))
        tile.write(shifts, row_scales, column_scales, out, columns)
        return context.get_dummy_value()

    return multiply


ITEM_SIZES: dict[Instructions, int] = {
    "AVX-512 VNNI": _Tile.item_size, "AVX2": _Avx2Tile.item_size,
}  # fmt: skip
"""Bytes of a level of an input, as it is multiplied."""
_tile_4, _tile_8, _tile_12, _tile_16 = (_tile(_Tile, rows) for rows in (4, 8, 12, 16))
_avx2_tile_4 = _tile(_Avx2Tile, 4)


@_intrinsic
def _take(_context: object, address: object, count: object) -> tuple[object, Generate]:
    # Add to a number that threads share, and return it from before.
    return types.int64(address, count), _generate_take


def _generate_take(
    _context: object, builder: ir.IRBuilder, _signature: object, arguments: Operands
) -> ir.Value:
    address, count = arguments
    shared = builder.bitcast(address, _ADDRESS.as_pointer())
    return builder.atomic_rmw("add", shared, count, "monotonic")


@_intrinsic
def _run(
    _context: object, product: object, job: object, threads: object, parallel: object,
    arrays: object,
) -> tuple[object, Generate]:  # fmt: skip
    # Call a function of one pointer by its address, with several threads by OpenMP. The arrays, of
    # which only the function knows, live until it ends.
    return types.void(product, job, threads, parallel, arrays), _generate_run


def _generate_run(
    context: BaseContext, builder: ir.IRBuilder, _signature: object, arguments: Operands
) -> ir.Value:
    product, job, threads, parallel, _ = arguments
    anything = ir.IntType(8).as_pointer()
    function = ir.FunctionType(ir.VoidType(), [anything])
    team = ir.FunctionType(ir.VoidType(), [function.as_pointer(), anything, _WORD, _WORD])
    called = builder.inttoptr(product, function.as_pointer())
    shared = builder.inttoptr(job, anything)
    with builder.if_else(builder.icmp_signed("==", threads, _ADDRESS(1))) as (alone, together):
        with alone:
            builder.call(called, [shared])
        with together:
            count = builder.trunc(threads, _WORD)
            start = builder.inttoptr(parallel, team.as_pointer())
            builder.call(start, [called, shared, count, _WORD(0)])
    return context.get_dummy_value()


@_compiled
def _pad(levels: np.ndarray, padded: np.ndarray, shifts: np.ndarray) -> None:
    for i in range(len(levels)):
        row, copy, total = levels[i], padded[i], np.int32(0)
        for k in range(len(row)):
            copy[k] = row[k]
            total = np.int32(total + np.int32(row[k]))
        shifts[i] = total * np.int32(_OFFSET)


_JOB = np.dtype(
    [(name, np.int64) for name in (
        "next_panel", "at_once", "panels", "rows", "columns", "quads",
        "levels", "shifts", "scales", "weights", "factors", "out",
    )]
)  # fmt: skip
"""Sizes and addresses of a product, which its threads share."""


@_compiled
def _vnni_panel(job: Any, panel: int) -> None:
    weights = job.weights + panel * job.quads * 4 * TILE
    factors = job.factors + panel * 4 * TILE
    for top in range(0, job.rows, TILE):
        levels = job.levels + top * 4 * job.quads
        shifts, scales = job.shifts + 4 * top, job.scales + 4 * top
        out = job.out + 4 * (top * job.columns + panel * TILE)
        rows = job.rows - top
        if rows >= 16:
            _tile_16(levels, shifts, scales, weights, factors, out, job.quads, job.columns)
        elif rows == 12:
            _tile_12(levels, shifts, scales, weights, factors, out, job.quads, job.columns)
        elif rows == 8:
            _tile_8(levels, shifts, scales, weights, factors, out, job.quads, job.columns)
        else:
            _tile_4(levels, shifts, scales, weights, factors, out, job.quads, job.columns)


@_compiled
def _avx2_panel(job: Any, panel: int) -> None:
    weights = job.weights + panel * job.quads * 4 * TILE
    factors = job.factors + panel * 4 * TILE
    for top in range(0, job.rows, 4):
        levels = job.levels + top * 8 * job.quads
        shifts, scales = job.shifts + 4 * top, job.scales + 4 * top
        out = job.out + 4 * (top * job.columns + panel * TILE)
        _avx2_tile_4(levels, shifts, scales, weights, factors, out, job.quads, job.columns)


# Not kept compiled by itself, because no process finds what takes a function again.
@njit(nogil=True, error_model="numpy")
def _multiply_panels(address: Any, multiply_panel: Any) -> None:
    job = carray(address, 1, _JOB)[0]
    first = _take(address, job.at_once)
    while first < job.panels:
        for panel in range(first, min(first + job.at_once, job.panels)):
            multiply_panel(job, panel)
        first = _take(address, job.at_once)


def _vnni_product(address: object) -> None:
    _multiply_panels(address, _vnni_panel)


def _avx2_product(address: object) -> None:
    _multiply_panels(address, _avx2_panel)


@cache
def product(kind: Instructions) -> int:
    """Address of the function that multiplies by those instructions."""
    function = {"AVX-512 VNNI": _vnni_product, "AVX2": _avx2_product}[kind]
    compiled: Any = cfunc(types.void(types.voidptr), cache=True)(function)
    return compiled.address


@_compiled
def multiply_packed(
    levels: np.ndarray, row_scales: np.ndarray, packed: np.ndarray, column_scales: np.ndarray,
    out: np.ndarray, product: int, item_size: int, threads: int, parallel: int,
) -> None:  # fmt: skip
    """Multiply and scale levels.

    Args:
        levels: (rows, width) int8, of the input.
        row_scales: (rows,) float32.
        packed: weights of `quantize_packed`, aligned to 64 bytes.
        column_scales: (16 panels,) float32.
        out: (rows, 16 panels) float32, for the result, with rows up to a multiple of 4.
        product: address of the function of `product`.
        item_size: bytes of a level of the input that it reads.
        threads: threads that multiply.
        parallel: address of OpenMP's `GOMP_parallel`; without threads 0.
    """
    rows, columns = out.shape
    panels, quads, _ = packed.shape
    shifts, scales = np.zeros(rows, np.int32), np.zeros(rows, np.float32)
    scales[: len(levels)] = row_scales
    padded = np.zeros((rows, 4 * quads * item_size), np.int8)
    if item_size == 1:
        _pad(levels, padded, shifts)
    else:
        _pad(levels, padded.view(np.int16), shifts)
    jobs = np.zeros(1, _JOB)
    job = jobs[0]
    job.at_once = max(1, panels // (4 * threads))
    job.panels, job.rows, job.columns, job.quads = panels, rows, columns, quads
    job.levels, job.shifts, job.scales = padded.ctypes.data, shifts.ctypes.data, scales.ctypes.data
    job.weights, job.factors = packed.ctypes.data, column_scales.ctypes.data
    job.out = out.ctypes.data
    arrays = jobs, padded, shifts, scales
    _run(product, jobs.ctypes.data, threads, parallel, arrays)
