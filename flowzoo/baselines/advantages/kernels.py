"""Segmented reductions over ragged groups, compiled by numba where there are many rows.

Every kernel is one or two passes over the rows, without sorting: time is linear in rows. Rows may
come in any order; groups are numbered by first appearance. Sums run in the order of the rows of
each group, so however groups are interleaved, results are the same to the bit, and any other order
of the rows changes them by rounding only. The passes themselves are in `loops`; `reference` has the
same functions in plain NumPy.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from flowzoo.baselines.advantages import loops
from flowzoo.baselines.advantages.loops import Bools, Codes, Floats, Values

_TABLE = 4
"""Longest table of pairs, in rows."""


class GroupIndex(NamedTuple):
    """Which group each row belongs to."""

    codes: Codes
    """Number of the row's group, (rows,)."""
    first: Codes
    """The first row of each group, (groups,)."""


class GroupStats(NamedTuple):
    """Statistics of groups, each (groups,).

    A group is constant where its values differ by no more than rounding (`loops.ALIKE` of the
    largest): then mean, `low` and `high` are its lowest value, and `squares` is 0.
    """

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
    loops.compile_if_worth(len(coarse))
    return loops.determines(fine.codes, fine.first, coarse)


def pair(left: GroupIndex, right: GroupIndex) -> GroupIndex:
    """Group rows that share both groups.

    Where a table of all possible pairs is no longer than a few times the rows, each pair has its
    own place in it. Else a hash says where to look first, and pairs are compared in full: either
    way none ever collide.
    """
    rows, possible = len(left.codes), len(left.first) * len(right.first)
    most = min(rows, possible)
    codes, first = np.empty(rows, np.int32), np.empty(most, np.int32)
    if possible <= _TABLE * rows:
        loops.compile_if_worth(rows)
        table = np.full(possible, -1, np.int32)
        groups = loops.pair_by_table(left.codes, right.codes, len(right.first), table, codes, first)
    else:
        loops.compile_all()
        slots = np.full(2 << most.bit_length(), -1, np.int32)
        groups = loops.pair_by_hash(left.codes, right.codes, slots, codes, first)
    return GroupIndex(codes, first[:groups])


def first_rows(codes: Codes, kinds: int) -> Codes:
    """The first row of each code, (kinds,); codes are numbered by first appearance."""
    first = np.empty(kinds, np.int32)
    loops.compile_if_worth(len(codes))
    loops.first_rows(codes, first)
    return first


def reduce(codes: Codes, values: Floats, groups: int) -> GroupStats:
    """Statistics of `values` (rows,) per group; every group must have a row."""
    found = GroupStats(*(np.empty(groups) for _ in GroupStats._fields))
    loops.compile_if_worth(len(codes))
    loops.reduce(codes, values, *found)
    return found


def baseline_loo(codes: Codes, own: Floats, segments: GroupStats) -> Floats:
    """Mean of the others of each row's group, (rows,); `own` is what the row's item counts with.

    A group of one has its own value.
    """
    out = np.empty(len(codes))
    loops.compile_if_worth(len(codes))
    loops.baseline_loo(codes, own, *segments, out)
    return out


def means_of(codes: Codes, values: Floats, groups: int) -> Floats:
    """Mean of `values` (rows,) per group, as `reduce` has it; every group must have a row."""
    low, high, mean = (np.empty(groups) for _ in range(3))
    loops.compile_if_worth(len(codes))
    loops.means(codes, values, np.empty(groups), mean, low, high)
    return mean


def take(codes: Codes, values: Values) -> Values:
    """`values[codes]`: per-group values (groups,) spread over the rows."""
    out = np.empty_like(values, shape=len(codes))
    loops.compile_if_worth(len(codes))
    loops.take(codes, values, out)
    return out


def widen(codes: Codes, counts: Floats, wider: Codes) -> Codes:
    """Codes into the narrow groups followed by the wider ones: the wider for each group of one."""
    out = np.empty(len(codes), np.int32)
    loops.compile_if_worth(len(codes))
    loops.widen(codes, counts, wider, out)
    return out


def subtract(values: Floats, codes: Codes, baselines: Floats) -> Floats:
    """Values less the baseline of their group, (rows,); `baselines` is (groups,)."""
    out = np.empty(len(codes))
    loops.compile_if_worth(len(codes))
    loops.subtract(values, codes, baselines, out)
    return out


def drop_rounding(values: Floats, codes: Codes, segments: GroupStats) -> None:
    """Set to 0, in place, what of `values` (rows,) is rounding within a constant group.

    `values` are differences from the group's baseline; others, as of a row whose own value is not
    what its group was judged by, stay.
    """
    if bool(constants(segments).any()):
        loops.compile_if_worth(len(codes))
        loops.drop_rounding(values, codes, segments.low, segments.high)


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
    loops.compile_if_worth(len(codes))
    loops.multiply(values, codes, 1.0 / deviations, out)
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
    loops.compile_all()
    loops.to_go(
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
