"""The kernels of `advantage_kernels` in plain NumPy: what they are tested against."""

from __future__ import annotations

import numpy as np

from flowzoo.baselines.advantages.kernels import Codes, Floats, GroupIndex, GroupStats
from flowzoo.baselines.advantages.loops import ALIKE


def pair(left: GroupIndex, right: GroupIndex) -> GroupIndex:
    """Group rows that share both groups, numbered by first appearance."""
    # One number per pair, exact: both codes are below 2^31.
    both = left.codes.astype(np.int64) * 2**31 + right.codes
    _, first, codes = np.unique(both, return_index=True, return_inverse=True)
    rank = np.argsort(np.argsort(first))
    return GroupIndex(rank[codes].astype(np.int32), np.sort(first).astype(np.int32))


def determines(fine: GroupIndex, coarse: Codes) -> bool:
    """Whether rows of one group in `fine` always share their code in `coarse`."""
    return bool((coarse == coarse[fine.first][fine.codes]).all())


def first_rows(codes: Codes, kinds: int) -> Codes:
    """The first row of each code, (kinds,)."""
    return np.unique(codes, return_index=True)[1].astype(np.int32)


def reduce(codes: Codes, values: Floats, groups: int) -> GroupStats:
    """Statistics of `values` (rows,) per group."""
    count = np.bincount(codes, minlength=groups).astype(np.float64)
    low, high = np.full(groups, np.inf), np.full(groups, -np.inf)
    np.minimum.at(low, codes, values)
    np.maximum.at(high, codes, values)
    alike = high - low <= ALIKE * np.maximum(np.abs(low), np.abs(high))
    high = np.where(alike, low, high)
    mean = np.where(alike, low, np.bincount(codes, values, groups) / count)
    squares = np.bincount(codes, (values - mean[codes]) ** 2, groups).astype(np.float64)
    squares[alike] = 0.0
    return GroupStats(count, mean, squares, low, high)


def means_of(codes: Codes, values: Floats, groups: int) -> Floats:
    """Mean of `values` (rows,) per group."""
    return reduce(codes, values, groups).mean


def baseline_loo(codes: Codes, own: Floats, segments: GroupStats) -> Floats:
    """Mean of the others of each row's group, (rows,)."""
    count, mean, low, high = (
        getattr(segments, n)[codes] for n in ("counts", "mean", "low", "high")
    )
    return np.where(low == high, low, (count * mean - own) / np.maximum(count - 1.0, 1.0))


def take(codes: Codes, values: Floats) -> Floats:
    """Per-group values spread over the rows."""
    return values[codes]


def widen(codes: Codes, counts: Floats, wider: Codes) -> Codes:
    """Codes into the narrow groups followed by the wider ones."""
    return np.where(counts[codes] > 1, codes, len(counts) + wider).astype(np.int32)


def subtract(values: Floats, codes: Codes, baselines: Floats) -> Floats:
    """Values less the baseline of their group."""
    return values - baselines[codes]


def normalise(
    values: Floats, codes: Codes, segments: GroupStats, freedom: int, eps: float
) -> Floats:
    """Values over (standard deviation + eps) of their group, 0 in a constant one."""
    deviation = np.sqrt(segments.squares / np.maximum(segments.counts - freedom, 1.0))[codes]
    constant = (segments.low == segments.high)[codes]
    return np.where(constant, 0.0, values / np.where(constant, 1.0, deviation + eps))


def drop_rounding(values: Floats, codes: Codes, segments: GroupStats) -> None:
    """Differences that are rounding within a constant group become 0, in place."""
    low = segments.low[codes]
    inside = low == segments.high[codes]
    values[inside & (np.abs(values) <= 2.0 * ALIKE * np.abs(low))] = 0.0


def to_go(rewards: Floats, shares: Floats, turns: Floats, codes: Codes, gamma: float) -> Floats:
    """Return to go of each row, (rows,), row by row."""
    out = np.empty(len(rewards))
    for row in range(len(rewards)):
        later = (codes == codes[row]) & (turns >= turns[row])
        ahead = turns[later] - turns[row]
        out[row] = (gamma**ahead * rewards[later]).sum() + gamma ** ahead.max() * shares[row]
    return out
