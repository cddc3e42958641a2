"""Statistics of groups of rows (segmented reductions), in NumPy."""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from flowzoo.aliases import Floats

Codes = npt.NDArray[np.int32]
Bools = npt.NDArray[np.bool_]

ALIKE = 1e-6
"""Relative tolerance within which the values of a group count as constant. Rewards that were summed
in another order, or in float32, are the same rewards; a smaller spread is no deviation to divide
by."""


class GroupIndex(NamedTuple):
    """Assignment of rows to groups."""

    codes: Codes  # group number of each row, (rows,)
    first: Codes  # first row of each group, (groups,)


class GroupStats(NamedTuple):
    """Statistics of groups, each (groups,)."""

    # Sums run in the order of a group's rows, so results do not depend on how groups are
    # interleaved. A constant group's mean, `low` and `high` are its lowest value, and `squares` is
    # 0.

    counts: Floats
    mean: Floats
    squares: Floats  # sum of squared deviations from the mean
    low: Floats
    high: Floats


def constants(segments: GroupStats) -> Bools:
    """Mask of the groups that hold several items of one value, (groups,)."""
    return (segments.low == segments.high) & (segments.counts > 1)


def determines(fine: GroupIndex, coarse: Codes) -> bool:
    """True if rows of one group in `fine` always share their code in `coarse`."""
    return bool((coarse == coarse[fine.first][fine.codes]).all())


def pair(left: GroupIndex, right: GroupIndex) -> GroupIndex:
    """Group rows that share both groups, numbered by first appearance."""
    # One number per pair, exact: both codes are below 2^31.
    both = left.codes.astype(np.int64) * 2**31 + right.codes
    _, first, codes = np.unique(both, return_index=True, return_inverse=True)
    rank = np.empty(len(first), np.int32)
    rank[np.argsort(first)] = np.arange(len(first), dtype=np.int32)
    return GroupIndex(rank[codes], np.sort(first).astype(np.int32))


def first_rows(codes: Codes) -> Codes:
    """First row of each code, (codes,); codes are numbered by first appearance."""
    return np.unique(codes, return_index=True)[1].astype(np.int32)


def reduce(codes: Codes, values: Floats, groups: int) -> GroupStats:
    """Statistics of `values` (rows,) per group; every group must have a row."""
    counts = np.bincount(codes, minlength=groups).astype(np.float64)
    low, high = np.full(groups, np.inf), np.full(groups, -np.inf)
    np.minimum.at(low, codes, values)
    np.maximum.at(high, codes, values)
    alike = high - low <= ALIKE * np.maximum(np.abs(low), np.abs(high))
    high = np.where(alike, low, high)
    # The rounded mean of equal values need not equal them (0.1 three times).
    mean = np.where(alike, low, np.bincount(codes, values, groups) / counts)
    squares = np.bincount(codes, (values - mean[codes]) ** 2, groups).astype(np.float64)
    squares[alike] = 0.0
    return GroupStats(counts, mean, squares, low, high)


def baseline_loo(codes: Codes, items: Floats, segments: GroupStats) -> Floats:
    """Mean of the other items of each row's group, (rows,); a constant group's value."""
    constant = segments.low == segments.high
    totals, others = segments.counts * segments.mean, np.maximum(segments.counts - 1.0, 1.0)
    means = (totals[codes] - items) / others[codes]
    return np.where(constant[codes], segments.low[codes], means)


def widen(codes: Codes, counts: Floats, wider: Codes) -> Codes:
    """Codes into the narrow groups followed by the wider ones: the wider for each group of one."""
    return np.where(counts[codes] > 1.0, codes, len(counts) + wider).astype(np.int32)


def drop_rounding(values: Floats, codes: Codes, segments: GroupStats) -> None:
    """Set differences within a constant group that are rounding to 0, in place."""
    # Larger ones stay: a row may have another value than the one that its group was compared by.
    constant = segments.low == segments.high
    limits = np.where(constant, 2.0 * ALIKE * np.abs(segments.low), -1.0)
    values[np.abs(values) <= limits[codes]] = 0.0


def normalize(
    values: Floats, codes: Codes, segments: GroupStats, freedom: int, eps: float
) -> Floats:
    """Values over (standard deviation + eps) of their group, (rows,); 0 in a constant group."""
    deviations = np.sqrt(segments.squares / np.maximum(segments.counts - freedom, 1.0)) + eps
    deviations[(segments.low == segments.high) | (deviations == 0.0)] = np.inf
    return values * (1.0 / deviations)[codes]


def to_go(
    rewards: Floats,
    shares: Floats,
    turns: npt.NDArray[np.int64],
    grouping: GroupIndex,
    gamma: float,
) -> Floats:
    """Return to go of each row, (rows,); a group has each turn at most once."""
    # The sum over the group's rows j from the row's turn t on of gamma^(t_j - t) rewards_j, plus
    # gamma^(last turn - t) shares of the row itself.
    # All groups go backwards together: the last row of each, then the last but one, and so on.
    order = np.lexsort((turns, grouping.codes))
    counts = np.bincount(grouping.codes)
    ends = np.cumsum(counts)
    last = turns[order[ends - 1]]
    later, next_turn = np.zeros(len(counts)), last.copy()
    returns = np.empty(len(rewards))
    for back in range(int(counts.max(initial=0))):
        groups = np.flatnonzero(counts > back)
        rows = order[ends[groups] - 1 - back]
        gaps = next_turn[groups] - turns[rows]
        later[groups] = rewards[rows] + _powers(gamma, gaps) * later[groups]
        next_turn[groups] = turns[rows]
        returns[rows] = later[groups] + _powers(gamma, last[groups] - turns[rows]) * shares[rows]
    return returns


def _powers(base: float, exponents: npt.NDArray[np.int64]) -> Floats:
    # Repeated squaring rounds alike on every platform.
    powers, square = np.ones(len(exponents)), base
    while exponents.any():
        powers = np.where(exponents & 1, powers * square, powers)
        exponents, square = exponents >> 1, square * square
    return powers
