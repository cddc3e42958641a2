"""Shares of cases with intervals, differences of two, and what could have been found.

Intervals of one share are Wilson's (J. Am. Stat. Assoc. 22 (1927) 209), of a difference Newcombe's
hybrid of two of them (Stat. Med. 17 (1998) 873, method 10): both hold near 0 and 1, where collapsed
roles are.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from scipy.special import bdtr

from flowzoo.baselines.stats import Z


class ShareInterval(NamedTuple):
    """A share of `of` independent cases, with its 95 % interval."""

    share: float
    low: float
    high: float
    of: float


def share_interval(share: float, of: float, z: float = Z) -> ShareInterval:
    """Wilson's interval of `share` of `of` > 0 cases; `of` need not be whole."""
    centre = (share + z**2 / (2 * of)) / (1 + z**2 / of)
    half = z * math.sqrt(share * (1 - share) / of + z**2 / (4 * of**2)) / (1 + z**2 / of)
    return ShareInterval(share, max(0.0, centre - half), min(1.0, centre + half), of)


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
