"""Statistics of accuracies: gains, shares, differences over seeds, and cross-fitted peaks.

**Seeds and items cross**: every seed is scored on the same items. The variance of the mean of
`values` (seeds, items) has a part from the items, which a bootstrap over items estimates, and a
part from the seeds, estimated by the analysis of variance of the two-way table:

    seeds' part = max(0, MS_seeds - MS_rest) / (seeds * items)

`MS_seeds` is `items` times the variance of the seeds' means, `MS_rest` the mean square of the
residuals. Three seeds estimate this part badly, so the sum of both parts has Satterthwaite's
degrees of freedom (Biometrics Bulletin 2 (1946) 110). Resampling three seeds with replacement
instead yields two thirds of their variance, taken as exact.

**The best of many noisy evaluations is too good by chance.** A cross-fitted peak is chosen on one
half of the items and scored on the other, both ways, over several splits into halves. A resample
draws items with replacement, the same for all evaluations and seeds; an item drawn twice stays in
its half, so the choice never sees its own score. The drop is what is lost *after* the chosen
evaluation: the terminal level is the mean of the last evaluations that follow it, or its own level
if none follows. Seeds are treated one by one, since they peak and fall at different times.
"""

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from scipy.special import bdtr, bdtrc, stdtr, stdtrit

from flowzoo.agents.evaluation.intervals import ShareInterval, share_interval
from flowzoo.agents.evaluation.power import POWER
from flowzoo.aliases import Floats
from flowzoo.errors import UsageError

Masks = npt.NDArray[np.bool_]
_BATCH = 250
"""Resamples computed together: bounds the memory and keeps the counts in the cache."""


class Gain(NamedTuple):
    """A paired difference of means with its 95 % interval; fractions, not percent."""

    mean: float
    low: float
    high: float
    n: int


def paired_gain(
    before: Sequence[float], after: Sequence[float], seed: int = 0, resamples: int = 10_000
) -> Gain:
    """Mean of `after - before` over paired items, with a percentile bootstrap over items.

    Raises:
        UsageError: the sequences differ in length or are empty.
    """
    if len(before) != len(after) or not before:
        raise UsageError(
            f"a paired gain needs two equally long sequences, got {len(before)} and {len(after)}"
        )
    difference = np.asarray(after, np.float64) - np.asarray(before, np.float64)
    rng = np.random.default_rng(seed)
    size = max(1, 10_000_000 // difference.size)
    means = np.concatenate(
        [
            rng.choice(difference, (min(size, resamples - start), difference.size)).mean(axis=1)
            for start in range(0, resamples, size)
        ]
    )
    low, high = np.quantile(means, (0.025, 0.975))
    return Gain(float(difference.mean()), float(low), float(high), int(difference.size))


def mean_and_error(values: Floats) -> tuple[float, float]:
    """Mean of two or more independent values, and its standard error."""
    return float(values.mean()), float(values.std(ddof=1)) / math.sqrt(len(values))


def t_quantile(freedom: float, level: float = 0.975) -> float:
    """Quantile of Student's t with `freedom` degrees of freedom; infinite: the normal one."""
    return float(stdtrit(freedom, level))


def mean_over_seeds(values: Sequence[float]) -> tuple[float, float, float]:
    """Mean of values, one a seed, and its 95 % t interval; NaN ends for fewer than two."""
    mean = float(np.mean(values))
    if len(values) < 2:
        return mean, math.nan, math.nan
    half = t_quantile(len(values) - 1) * float(np.std(values, ddof=1)) / math.sqrt(len(values))
    return mean, mean - half, mean + half


def welch(first: Sequence[float], second: Sequence[float]) -> tuple[float | None, float | None]:
    """95 % interval of mean(second) - mean(first) over seeds; None with one seed on a side.

    B. L. Welch, Biometrika 34 (1947) 28.
    """
    if min(len(first), len(second)) < 2:
        return None, None
    # Imported here: scipy.stats takes several times as long as scipy.special.
    from scipy.stats import ttest_ind

    with warnings.catch_warnings():
        # Seeds of equal accuracy have no variance, which is an exact result and no loss.
        warnings.simplefilter("ignore", RuntimeWarning)
        ends = ttest_ind(second, first, equal_var=False).confidence_interval()
    if math.isnan(ends.low):  # no variance on either side
        gap = float(np.mean(second) - np.mean(first))
        return gap, gap
    return float(ends.low), float(ends.high)


def at_least(count: int, trials: int, chance: float) -> float:
    """Probability of `count` or more successes of `trials`."""
    return float(bdtrc(count - 1, trials, chance)) if count > 0 else 1.0


def share_change(before: ShareInterval, after: ShareInterval) -> tuple[float, float, float]:
    """After minus before, with its 95 % interval; the two shares are independent.

    Newcombe's hybrid of two intervals of Wilson (Stat. Med. 17 (1998) 873, method 10), which holds
    near 0 and 1.
    """
    gap = after.share - before.share
    low = gap - math.hypot(after.share - after.low, before.high - before.share)
    high = gap + math.hypot(after.high - after.share, before.share - before.low)
    return gap, low, high


def findable(of: float, at_most: float, bound: float) -> float | None:
    """The largest true share that is found to be low with probability `POWER`.

    An observed share of `of` cases is low if it is `at_most` or less and its interval ends below
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
    reached = bdtr(counts[-1], cases, shares) >= POWER
    return float(shares[reached].max()) if reached.any() else None


# -- a mean over seeds and items -------------------------------------------------------------------


def seed_variance(values: Floats) -> float:
    """The seeds' part of the variance of the mean of `values` (seeds, items); 0 for one seed."""
    seeds, items = values.shape
    if seeds == 1:
        return 0.0
    means = values.mean(axis=1)
    rest = values - values.mean(axis=0) - means[:, None] + values.mean()
    between = items * float(means.var(ddof=1))
    within = float(np.sum(rest**2)) / ((seeds - 1) * (items - 1))
    return max(0.0, between - within) / (seeds * items)


@dataclass(frozen=True, slots=True)
class MeanUncertainty:
    """The uncertainty of a mean over items and seeds."""

    of_items: float
    """Variance from the items."""
    of_seeds: float
    """Variance from seeds that differ."""
    seeds: int

    @property
    def se(self) -> float:
        """Standard error."""
        return math.sqrt(self.of_items + self.of_seeds)

    @property
    def freedom(self) -> float:
        """Degrees of freedom of the variance; infinite if seeds do not differ."""
        if self.of_seeds == 0:
            return math.inf
        return (self.seeds - 1) * ((self.of_items + self.of_seeds) / self.of_seeds) ** 2

    @property
    def half_width(self) -> float:
        """Half of the 95 % interval."""
        return t_quantile(self.freedom) * self.se

    @property
    def detectable(self) -> float:
        """Smallest value whose interval excludes 0 with probability `POWER`."""
        return self.half_width + t_quantile(self.freedom, POWER) * self.se

    def p_value(self, value: float) -> float:
        """One-sided p-value of `value` under a true mean of 0."""
        if self.se == 0:
            return float(value <= 0)
        return float(stdtr(self.freedom, -value / self.se))


# -- cross-fitted peaks ----------------------------------------------------------------------------


class PeakAndTerminal(NamedTuple):
    """Accuracies of each seed: means over splits and both ways."""

    peak: Floats
    """(seeds, resamples)."""
    terminal: Floats
    """(lasts, seeds, resamples): for every number of last evaluations."""

    @property
    def drop(self) -> Floats:
        """Peak minus terminal, mean over seeds: (lasts, resamples)."""
        return (self.peak - self.terminal).mean(axis=1)


def halves(items: int, splits: int, rng: np.random.Generator) -> Masks:
    """Random halves of the items, (splits, items); an odd item belongs to the first half."""
    masks = np.zeros((splits, items), np.bool_)
    for mask in masks:
        mask[rng.permutation(items)[: (items + 1) // 2]] = True
    return masks


def ends_after(evaluations: int, last: int) -> Floats:
    """Weights of the terminal level after each choice: (evaluations, choices)."""
    weights = np.zeros((evaluations, evaluations))
    for chosen in range(evaluations):
        first = min(max(chosen + 1, evaluations - last), evaluations - 1)
        weights[first:, chosen] = 1 / (evaluations - first)
    return weights


def peak_and_terminal(runs: Floats, masks: Masks, lasts: Sequence[int]) -> PeakAndTerminal:
    """Levels of the scores without resampling.

    Args:
        runs: scores, (seeds, evaluations, items).
        masks: halves of the items, (splits, items).
        lasts: numbers of last evaluations, each of which has a terminal level.
    """
    size = masks.sum(axis=1, keepdims=True).astype(np.float64)[None]
    counted = masks.astype(np.float64).T
    levels = [
        # Sums, not means: whole scores keep their ties, and the first of equals wins.
        _levels(run.sum(axis=1)[None], (run @ counted).T[None], size, runs.shape[2], lasts)
        for run in runs
    ]
    return _join(levels)


def bootstrap(
    runs: Floats, masks: Masks, resamples: int, lasts: Sequence[int], rng: np.random.Generator
) -> PeakAndTerminal:
    """Levels of `resamples` resamples of items; sums are float32, exact for whole scores.

    The sums of a resample over all items and over one half per split are one matrix product of the
    items' counts with a table of `evaluations * (splits + 1)` columns; the other half is the
    difference.
    """
    evaluations, items = runs.shape[1:]
    counted = masks.astype(np.float32)
    chunks: list[PeakAndTerminal] = []
    for start in range(0, resamples, _BATCH):
        count = min(_BATCH, resamples - start)
        drawn = rng.integers(items, size=(count, items), dtype=np.int32)
        drawn += items * np.arange(count, dtype=np.int32)[:, None]
        draws = np.bincount(drawn.ravel(), minlength=count * items).reshape(count, items)
        seeds: list[PeakAndTerminal] = []
        for scores in runs.astype(np.float32):
            inside = (counted[:, None, :] * scores).reshape(len(masks) * evaluations, items)
            table = np.concatenate([scores, inside, counted]).T
            sums = (draws.astype(np.float32) @ table).astype(np.float64)
            whole, half, size = np.split(sums, [evaluations, table.shape[1] - len(masks)], axis=1)
            half = half.reshape(count, len(masks), evaluations)
            seeds.append(_levels(whole, half, size[:, :, None], items, lasts))
        chunks.append(_join(seeds))
    return PeakAndTerminal(
        np.concatenate([chunk.peak for chunk in chunks], axis=-1),
        np.concatenate([chunk.terminal for chunk in chunks], axis=-1),
    )


def item_drops(runs: Floats, masks: Masks, last: int) -> Floats:
    """Contribution of every item of every seed to the drop, (seeds, items); their mean is the drop.

    The item's score at the evaluation that the other half chose, less its terminal score after
    that, averaged over splits. (With an odd number of items the halves weigh a little differently
    in `peak_and_terminal`.)
    """
    weights = ends_after(runs.shape[1], last)
    contributions = np.zeros((len(runs), runs.shape[2]))
    for run, drops in zip(runs, contributions, strict=True):
        lost = run - weights.T @ run  # by the evaluation that is chosen
        for mask in masks:
            drops += np.where(mask, lost[(run @ ~mask).argmax()], lost[(run @ mask).argmax()])
    return contributions / len(masks)


def _levels(
    whole: Floats, half: Floats, size: Floats, draws: int, lasts: Sequence[int]
) -> PeakAndTerminal:
    """Levels of one seed from sums of scores.

    Args:
        whole: sums over all items, (resamples, evaluations).
        half: sums over the first half of each split, (resamples, splits, evaluations).
        size: number of draws in that half, (resamples, splits, 1).
        draws: number of all draws.
        lasts: see `peak_and_terminal`.
    """
    first = half / size
    second = (whole[:, None] - half) / (draws - size)
    ways = [(first.argmax(axis=2)[:, :, None], second), (second.argmax(axis=2)[:, :, None], first)]
    weights = [ends_after(whole.shape[1], last) for last in lasts]

    def at_choice(level: Floats, chosen: npt.NDArray[np.intp]) -> Floats:
        return np.take_along_axis(level, chosen, axis=2)[:, :, 0].mean(axis=1) / 2

    peak = sum((at_choice(scored, chosen) for chosen, scored in ways), np.zeros(len(whole)))
    ends = [
        sum((at_choice(scored @ weight, chosen) for chosen, scored in ways), np.zeros(len(whole)))
        for weight in weights
    ]
    return PeakAndTerminal(peak, np.stack(ends))


def _join(seeds: Sequence[PeakAndTerminal]) -> PeakAndTerminal:
    ends = [levels.terminal for levels in seeds]
    return PeakAndTerminal(np.stack([levels.peak for levels in seeds]), np.stack(ends, axis=1))
