"""The passes over rows that `kernels` are made of: plain loops, compiled by numba once that pays.

Numba is imported and the loops compiled, or loaded from the cache beside this file, when `WORTH`
rows have gone through them as plain Python: a short run of a pocket model ends before. Both forms
give the same numbers to the bit, but for a power, an overflow and a division by 0, where Python's
differ: loops that have such are always compiled. Results are written into arrays that the caller
makes.
"""

from __future__ import annotations

import sys
from functools import cache
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from flowzoo.envs.tasks.compiled import compile_in

Floats = npt.NDArray[np.float64]
Codes = npt.NDArray[np.int32]
Bools = npt.NDArray[np.bool_]
Values = TypeVar("Values", Floats, Bools)

ALIKE = 1e-6
"""Values of a group are one value where they differ by at most this fraction of the largest of
them: rewards that were added up in another order, or in float32, are the same rewards. A group that
differs by less than that has no deviation anyone could divide by."""

WORTH = 100_000
"""Rows that take the plain loops a quarter of the time in which numba is imported and has loaded
the compiled ones."""
_PLAIN = {"rows": 0}
"""Rows that went through the plain loops in this process."""


def compile_if_worth(rows: int) -> None:
    """Compile the loops if numba is there anyway, or enough rows went through the plain ones."""
    _PLAIN["rows"] += rows
    if "numba" in sys.modules or _PLAIN["rows"] > WORTH:
        compile_all()


@cache
def compile_all() -> None:
    """Replace the loops of this module by their compiled forms."""
    names = (
        "determines", "pair_by_table", "pair_by_hash", "first_rows", "means", "reduce",
        "baseline_loo", "take", "widen", "subtract", "multiply", "drop_rounding", "to_go",
    )  # fmt: skip
    compile_in(globals(), names)


def determines(codes: Codes, first: Codes, coarse: Codes) -> bool:
    """See `kernels.determines`; `first` is the first row of each group."""
    for row in range(len(codes)):  # noqa: SIM110 - numba compiles no generator expression
        if coarse[row] != coarse[first[codes[row]]]:
            return False
    return True


def pair_by_table(
    left: Codes, right: Codes, kinds: int, table: Codes, codes: Codes, first: Codes
) -> int:
    """`table` holds the group of the pair (a, b) at a * kinds + b, or -1; b is below `kinds`."""
    groups = 0
    for row in range(len(left)):
        place = np.int64(left[row]) * kinds + right[row]
        if table[place] < 0:
            table[place] = groups
            first[groups] = row
            groups += 1
        codes[row] = table[place]
    return groups


def pair_by_hash(left: Codes, right: Codes, slots: Codes, codes: Codes, first: Codes) -> int:
    """Open addressing: `slots` holds a group at the first free place from its hash on, or -1."""
    mask = np.uint64(len(slots) - 1)
    groups = 0
    for row in range(len(left)):
        a, b = left[row], right[row]
        mixed = np.uint64(a) * np.uint64(0x9E3779B97F4A7C15) + np.uint64(b)
        mixed = (mixed ^ (mixed >> np.uint64(29))) * np.uint64(0xBF58476D1CE4E5B9)
        place = (mixed ^ (mixed >> np.uint64(32))) & mask
        while slots[place] >= 0:
            seen = first[slots[place]]
            if left[seen] == a and right[seen] == b:
                break
            place = (place + np.uint64(1)) & mask
        if slots[place] < 0:
            slots[place] = groups
            first[groups] = row
            groups += 1
        codes[row] = slots[place]
    return groups


def first_rows(codes: Codes, first: Codes) -> None:
    """Codes are numbered by first appearance, so the next new one is the number found so far."""
    groups = 0
    for row in range(len(codes)):
        if codes[row] == groups:
            first[groups] = row
            groups += 1
            if groups == len(first):
                break


def means(
    codes: Codes, values: Floats, counts: Floats, mean: Floats, low: Floats, high: Floats
) -> None:
    """Two passes: sums with bounds, then the division; a constant group has its lowest value."""
    counts[:], mean[:], low[:], high[:] = 0.0, 0.0, np.inf, -np.inf
    for row in range(len(codes)):
        group, value = codes[row], values[row]
        counts[group] += 1.0
        mean[group] += value
        low[group] = min(low[group], value)
        high[group] = max(high[group], value)
    for group in range(len(counts)):
        size = max(abs(low[group]), abs(high[group]))
        if high[group] - low[group] <= ALIKE * size:
            # The rounded mean of equal values need not equal them (0.1 three times).
            mean[group] = high[group] = low[group]
        else:
            mean[group] /= counts[group]


def reduce(
    codes: Codes,
    values: Floats,
    counts: Floats,
    mean: Floats,
    squares: Floats,
    low: Floats,
    high: Floats,
) -> None:
    """`means`, then the squared deviations from them; none in a constant group."""
    means(codes, values, counts, mean, low, high)
    squares[:] = 0.0
    for row in range(len(codes)):
        group = codes[row]
        if low[group] < high[group]:
            away = values[row] - mean[group]
            squares[group] += away * away


def baseline_loo(
    codes: Codes,
    own: Floats,
    counts: Floats,
    mean: Floats,
    squares: Floats,
    low: Floats,
    high: Floats,
    out: Floats,
) -> None:
    """The mean of the others; in a group of one value, that value."""
    for row in range(len(codes)):
        group = codes[row]
        if low[group] == high[group]:
            out[row] = low[group]
        else:
            out[row] = (counts[group] * mean[group] - own[row]) / (counts[group] - 1.0)


def take(codes: Codes, values: Values, out: Values) -> None:
    """`out = values[codes]`."""
    for row in range(len(codes)):
        out[row] = values[codes[row]]


def widen(codes: Codes, counts: Floats, wider: Codes, out: Codes) -> None:
    """Codes of the wider groups follow those of the narrow ones."""
    for row in range(len(codes)):
        group = codes[row]
        out[row] = group if counts[group] > 1.0 else len(counts) + wider[row]


def subtract(values: Floats, codes: Codes, baselines: Floats, out: Floats) -> None:
    """`out = values - baselines[codes]`."""
    for row in range(len(codes)):
        out[row] = values[row] - baselines[codes[row]]


def multiply(values: Floats, codes: Codes, factors: Floats, out: Floats) -> None:
    """`out = values * factors[codes]`."""
    for row in range(len(codes)):
        out[row] = values[row] * factors[codes[row]]


def drop_rounding(values: Floats, codes: Codes, low: Floats, high: Floats) -> None:
    """Differences from the baseline of a constant group that are no more than its rounding: 0."""
    for row in range(len(codes)):
        group = codes[row]
        if low[group] == high[group] and abs(values[row]) <= 2.0 * ALIKE * abs(low[group]):
            values[row] = 0.0


def to_go(
    rewards: Floats,
    shares: Floats,
    turns: npt.NDArray[np.int64],
    order: npt.NDArray[np.int64],
    codes: Codes,
    gamma: float,
    later: Floats,
    turn_of_later: npt.NDArray[np.int64],
    last: npt.NDArray[np.int64],
    out: Floats,
) -> None:
    """Backwards in time; `later` holds each group's return to go from `turn_of_later` on."""
    for place in range(len(order) - 1, -1, -1):
        row = order[place]
        group, turn = codes[row], turns[row]
        if turn_of_later[group] < 0:
            last[group] = turn
            later[group] = rewards[row]
        else:
            later[group] = rewards[row] + gamma ** (turn_of_later[group] - turn) * later[group]
        turn_of_later[group] = turn
        out[row] = later[group] + gamma ** (last[group] - turn) * shares[row]
