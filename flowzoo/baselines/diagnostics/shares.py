"""Differences of two shares with intervals, and what could have been found.

The interval of a difference is Newcombe's hybrid of two of Wilson's (Stat. Med. 17 (1998) 873,
method 10): both hold near 0 and 1, where collapsed roles are.
"""

from __future__ import annotations

import math

import numpy as np
from scipy.special import bdtr

from flowzoo.agents.evaluation.intervals import ShareInterval, share_interval


def share_change(before: ShareInterval, after: ShareInterval) -> tuple[float, float, float]:
    """After minus before, with its 95 % interval; taken for independent."""
    gap = after.share - before.share
    low = gap - math.hypot(after.share - after.low, before.high - before.share)
    high = gap + math.hypot(after.high - after.share, before.share - before.low)
    return gap, low, high


def findable(of: float, at_most: float, bound: float, power: float = 0.8) -> float | None:
    """The largest true share that is found to be low with probability `power`.

    Found low is an observed share of `at_most` or less of `of` cases whose interval ends below
    `bound`. None: too few cases for any.
    """
    cases = max(1, math.floor(of))
    counts = [
        count
        for count in range(math.floor(at_most * cases) + 1)
        if share_interval(count / cases, cases).high < bound
    ]
    if not counts:
        return None
    shares = np.linspace(0, at_most, 101)
    reached = bdtr(counts[-1], cases, shares) >= power
    return float(shares[reached].max()) if reached.any() else None
