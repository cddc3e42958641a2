"""Segmented reductions over ragged groups, compiled by numba.

Every kernel is one or two passes over the rows, without sorting: time is linear in rows. Rows may
come in any order; groups are numbered by first appearance. Sums run in the order of the rows of
each group, so however groups are interleaved, results are the same to the bit, and any other order
of the rows changes them by rounding only. `advantage_reference` has the same functions in plain
NumPy. Numba is imported and the kernels compiled, or loaded from the cache beside this file, at the
first use.
"""

from __future__ import annotations

from functools import cache
from typing import NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from flowzoo.envs.tasks.compiled import compile_in

Floats = npt.NDArray[np.float64]
Codes = npt.NDArray[np.int32]
Bools = npt.NDArray[np.bool_]
Values = TypeVar("Values", Floats, Bools)


_TABLE = 4
"""Longest table of pairs, in rows."""


class GroupIndex(NamedTuple):
    """Which group each row belongs to."""

    codes: Codes
    """Number of the row's group, (rows,)."""
    first: Codes
    """The first row of each group, (groups,)."""


class GroupStats(NamedTuple):
    """Statistics of groups, each (groups,)."""

    counts: Floats
    mean: Floats
    squares: Floats
    """Sum of squared deviations from the mean."""
    low: Floats
    high: Floats


def constants(segments: GroupStats) -> Bools:
    """Which groups hold several items of one value, (groups,)."""
    return (segments.low == segments.high) & (segments.counts > 1)


def determines(fine: GroupIndex, coarse: Codes) -> bool:
    """Whether rows of one group in `fine` always share their code in `coarse`."""
    _compile()
    return _determines(fine.codes, fine.first, coarse)


def pair(left: GroupIndex, right: GroupIndex) -> GroupIndex:
    """Group rows that share both groups.

    Where a table of all possible pairs is no longer than a few times the rows, each pair has its
    own place in it. Else a hash says where to look first, and pairs are compared in full: either
    way none ever collide.
    """
    rows, possible = len(left.codes), len(left.first) * len(right.first)
    most = min(rows, possible)
    codes, first = np.empty(rows, np.int32), np.empty(most, np.int32)
    _compile()
    if possible <= _TABLE * rows:
        table = np.full(possible, -1, np.int32)
        groups = _pair_by_table(left.codes, right.codes, len(right.first), table, codes, first)
    else:
        slots = np.full(2 << most.bit_length(), -1, np.int32)
        groups = _pair_by_hash(left.codes, right.codes, slots, codes, first)
    return GroupIndex(codes, first[:groups])


def first_rows(codes: Codes, kinds: int) -> Codes:
    """The first row of each code, (kinds,); codes are numbered by first appearance."""
    first = np.empty(kinds, np.int32)
    _compile()
    _first_rows(codes, first)
    return first


def reduce(codes: Codes, values: Floats, groups: int) -> GroupStats:
    """Statistics of `values` (rows,) per group; every group must have a row."""
    found = GroupStats(*(np.empty(groups) for _ in GroupStats._fields))
    _compile()
    _reduce(codes, values, *found)
    return found


def baseline_loo(codes: Codes, own: Floats, segments: GroupStats) -> Floats:
    """Mean of the others of each row's group, (rows,); `own` is what the row's item counts with.

    A group of one has its own value.
    """
    out = np.empty(len(codes))
    _compile()
    _baseline_loo(codes, own, *segments, out)
    return out


def means_of(codes: Codes, values: Floats, groups: int) -> Floats:
    """Mean of `values` (rows,) per group, as `reduce` has it; every group must have a row."""
    low, high, mean = (np.empty(groups) for _ in range(3))
    _compile()
    _means(codes, values, np.empty(groups), mean, low, high)
    return mean


def take(codes: Codes, values: Values) -> Values:
    """`values[codes]`: per-group values (groups,) spread over the rows."""
    out = np.empty_like(values, shape=len(codes))
    _compile()
    _take(codes, values, out)
    return out


def widen(codes: Codes, counts: Floats, wider: Codes) -> Codes:
    """Codes into the narrow groups followed by the wider ones: the wider for each group of one."""
    out = np.empty(len(codes), np.int32)
    _compile()
    _widen(codes, counts, wider, out)
    return out


def subtract(values: Floats, codes: Codes, baselines: Floats) -> Floats:
    """Values less the baseline of their group, (rows,); `baselines` is (groups,)."""
    out = np.empty(len(codes))
    _compile()
    _subtract(values, codes, baselines, out)
    return out


def normalise(
    values: Floats,
    codes: Codes,
    segments: GroupStats,
    freedom: int,
    eps: float,
    out: Floats | None = None,
) -> Floats:
    """Values over (standard deviation + eps) of their group, (rows,); 0 in a constant group.

    The squares are divided by count - `freedom`. The result is written to `out`, which may be
    `values`; by default to a new array.
    """
    deviations = np.sqrt(segments.squares / np.maximum(segments.counts - freedom, 1.0)) + eps
    deviations[(segments.low == segments.high) | (deviations == 0.0)] = np.inf
    out = np.empty(len(codes)) if out is None else out
    _compile()
    _multiply(values, codes, 1.0 / deviations, out)
    return out


def to_go(
    rewards: Floats,
    shares: Floats,
    turns: npt.NDArray[np.int64],
    order: npt.NDArray[np.int64],
    grouping: GroupIndex,
    gamma: float,
) -> Floats:
    """Return to go of each row, (rows,).

    It is the sum over the rows j of its group from its own turn t on of gamma^(t_j - t) rewards_j,
    plus gamma^(last turn - t) shares of the row itself. `order` lists the rows by turn; a group has
    each turn at most once.
    """
    out = np.empty(len(rewards))
    groups = len(grouping.first)
    _compile()
    _to_go(
        rewards,
        shares,
        turns,
        order,
        grouping.codes,
        gamma,
        np.zeros(groups),
        np.full(groups, -1),
        np.empty(groups, np.int64),
        out,
    )
    return out


@cache
def _compile() -> None:
    names = (
        "_determines", "_pair_by_table", "_pair_by_hash", "_first_rows", "_means", "_reduce",
        "_baseline_loo", "_take", "_widen", "_subtract", "_multiply", "_to_go",
    )  # fmt: skip
    compile_in(globals(), names)


def _determines(codes: Codes, first: Codes, coarse: Codes) -> bool:
    for row in range(len(codes)):  # noqa: SIM110 - numba compiles no generator expression
        if coarse[row] != coarse[first[codes[row]]]:
            return False
    return True


def _pair_by_table(
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


def _pair_by_hash(left: Codes, right: Codes, slots: Codes, codes: Codes, first: Codes) -> int:
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


def _first_rows(codes: Codes, first: Codes) -> None:
    groups = 0
    for row in range(len(codes)):
        if codes[row] == groups:
            first[groups] = row
            groups += 1
            if groups == len(first):
                break


def _means(
    codes: Codes, values: Floats, counts: Floats, mean: Floats, low: Floats, high: Floats
) -> None:
    counts[:], mean[:], low[:], high[:] = 0.0, 0.0, np.inf, -np.inf
    for row in range(len(codes)):
        group, value = codes[row], values[row]
        counts[group] += 1.0
        mean[group] += value
        low[group] = min(low[group], value)
        high[group] = max(high[group], value)
    for group in range(len(counts)):
        # The rounded mean of equal values need not equal them (0.1 three times): take the value.
        same = low[group] == high[group]
        mean[group] = low[group] if same else mean[group] / counts[group]


def _reduce(
    codes: Codes,
    values: Floats,
    counts: Floats,
    mean: Floats,
    squares: Floats,
    low: Floats,
    high: Floats,
) -> None:
    _means(codes, values, counts, mean, low, high)
    squares[:] = 0.0
    for row in range(len(codes)):
        group = codes[row]
        squares[group] += (values[row] - mean[group]) ** 2


def _baseline_loo(
    codes: Codes,
    own: Floats,
    counts: Floats,
    mean: Floats,
    squares: Floats,
    low: Floats,
    high: Floats,
    out: Floats,
) -> None:
    for row in range(len(codes)):
        group = codes[row]
        if low[group] == high[group]:
            out[row] = low[group]
        else:
            out[row] = (counts[group] * mean[group] - own[row]) / (counts[group] - 1.0)


def _take(codes: Codes, values: Values, out: Values) -> None:
    for row in range(len(codes)):
        out[row] = values[codes[row]]


def _widen(codes: Codes, counts: Floats, wider: Codes, out: Codes) -> None:
    for row in range(len(codes)):
        group = codes[row]
        out[row] = group if counts[group] > 1.0 else len(counts) + wider[row]


def _subtract(values: Floats, codes: Codes, baselines: Floats, out: Floats) -> None:
    for row in range(len(codes)):
        out[row] = values[row] - baselines[codes[row]]


def _multiply(values: Floats, codes: Codes, factors: Floats, out: Floats) -> None:
    for row in range(len(codes)):
        out[row] = values[row] * factors[codes[row]]


def _to_go(
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
