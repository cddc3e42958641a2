"""The statistics behind the verdicts on the claims: differences over pairs of cells, and counts.

A difference over pairs has two sources of error: other *seeds* would have given other runs, and
other *problems* other scores. The variance over seeds is that of the mean over strata, one stratum
a cell, with Satterthwaite's degrees of freedom (Biometrics Bulletin 2 (1946) 110); the variance
over problems is a bootstrap that draws the same problems for all runs. Both contain the noise of a
single score, so their sum counts it twice: intervals are somewhat too wide, never too narrow (Owen,
Ann. Appl. Stat. 1 (2007) 386, on resampling rows and columns).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from scipy.stats import binomtest

from flowzoo.aliases import Floats
from flowzoo.baselines.stats import t_quantile

LEVEL = 0.05
"""Of every test on which a verdict rests."""


@dataclass(frozen=True, slots=True)
class BootstrapSample:
    """One figure of every run of a cell."""

    values: Floats
    """(runs,)"""
    draws: Floats
    """(runs, resamples): the same under resampled problems; one draw is one set of problems."""


class Estimate(NamedTuple):
    """A mean difference over pairs with its 95 % interval."""

    mean: float
    low: float
    high: float
    pairs: int
    runs: tuple[int, int]
    """Runs on the two sides."""


def mean_difference(pairs: Sequence[tuple[BootstrapSample, BootstrapSample]]) -> Estimate:
    """Mean over pairs of (mean of the second cell - mean of the first); see the module.

    A cell of one run leaves the variance over seeds unknown: the interval is then unbounded.
    """
    count = len(pairs)
    mean = float(np.mean([two.values.mean() - one.values.mean() for one, two in pairs]))
    cells = [cell for pair in pairs for cell in pair]
    sizes = (sum(len(one.values) for one, _ in pairs), sum(len(two.values) for _, two in pairs))
    if min(len(cell.values) for cell in cells) < 2:
        return Estimate(mean, -math.inf, math.inf, count, sizes)
    parts = [float(cell.values.var(ddof=1)) / len(cell.values) / count**2 for cell in cells]
    seeds = math.fsum(parts)
    drawn = np.mean([two.draws.mean(axis=0) - one.draws.mean(axis=0) for one, two in pairs], axis=0)
    items = float(drawn.var(ddof=1))
    error = math.sqrt(seeds + items)
    below = sum(part**2 / (len(cell.values) - 1) for part, cell in zip(parts, cells, strict=True))
    freedom = (seeds + items) ** 2 / below if below > 0 else math.inf
    half = t_quantile(max(1.0, freedom)) * error
    return Estimate(mean, mean - half, mean + half, count, sizes)


class DetectionCounts(NamedTuple):
    """Counts of a finding among the runs of the two cells of a pair."""

    found: tuple[int, int]
    tested: tuple[int, int]


def exact_p(strata: Sequence[DetectionCounts]) -> tuple[float, float]:
    """One-sided p-values, of so many or more, and so many or fewer, findings on the second side.

    Fisher's exact test stratified by pair: within each pair the findings fall on its runs by
    chance, so that their number on the second side is hypergeometric.
    """
    chances = np.ones(1)
    for found, tested in strata:
        chances = np.convolve(chances, _hypergeometric(sum(found), *tested))
    observed = sum(stratum.found[1] for stratum in strata)
    return float(chances[observed:].sum()), float(chances[: observed + 1].sum())


def least_findable(tested: Sequence[tuple[int, int]]) -> int | None:
    """Fewest findings, all on the second side and spread evenly over pairs, with p <= LEVEL / 2.

    None: not even findings in all runs of that side would do.
    """
    most = sum(second for _, second in tested)
    for total in range(1, most + 1):
        spread = _spread(total, [second for _, second in tested])
        strata = [
            DetectionCounts((0, count), sizes) for count, sizes in zip(spread, tested, strict=True)
        ]
        if exact_p(strata)[0] <= LEVEL / 2:
            return total
    return None


def upper_bound(count: int, trials: int) -> float:
    """One-sided 95 % bound of a rate (Clopper and Pearson, Biometrika 26 (1934) 404)."""
    ends = binomtest(count, trials, alternative="less").proportion_ci(1 - LEVEL, "exact")
    return float(ends.high)


def _hypergeometric(drawn: int, first: int, second: int) -> Floats:
    """Chances of 0, 1 … findings on the second side when `drawn` of all runs have one."""
    # Exact integers: scipy's logarithms put a p-value of exactly 0.025 above the level.
    whole = math.comb(first + second, drawn)
    return np.array(
        [math.comb(second, k) * math.comb(first, drawn - k) / whole for k in range(drawn + 1)]
    )


def _spread(total: int, room: Sequence[int]) -> list[int]:
    """`total` put one at a time into places with `room`, round by round."""
    found = [0] * len(room)
    while total:
        for place, size in enumerate(room):
            if total and found[place] < size:
                found[place] += 1
                total -= 1
    return found
