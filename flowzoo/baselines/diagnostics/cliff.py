"""Cliffs: did a run lose accuracy after its peak? A verdict from held-out scores.

The definition is flowzoo's; that of arXiv 2605.24202 is not public.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from flowzoo.aliases import Floats
from flowzoo.baselines.stats import (
    MeanUncertainty,
    bootstrap,
    halves,
    item_drops,
    peak_and_terminal,
    seed_variance,
)
from flowzoo.errors import UsageError

CliffVerdict = Literal[
    "cliff", "falling", "no cliff", "not enough evaluations", "not enough items", "not enough seeds"
]
FELL: tuple[CliffVerdict, ...] = ("cliff", "falling")  # the verdicts that there was a fall

THRESHOLD = 0.05  # smallest drop that is called a cliff, as a fraction
LAST = 3  # evaluations that the terminal accuracy is the mean of
FALLING = {2: 0.10, 1: 0.15}
"""By the number of last evaluations, the smallest drop that is called a fall in progress."""
FALLING_LEVEL = 0.0125  # largest one-sided p-value of one; there are two tries
TOO_COARSE = 0.15
"""A cell without a fall whose smallest detectable drop is larger has no verdict but `not enough
items`, or, where its items alone would do, `not enough seeds`: they differ too much."""
FEWEST = 30  # items below which halves say nothing
EARLIEST = 3  # evaluations below which nothing is said: before training, a peak, and one after it


@dataclass(frozen=True, slots=True)
class Cliff:
    """The verdict on one cell: a run, or its repetitions under several seeds. All fractions."""

    verdict: CliffVerdict
    below_base: bool  # the terminal accuracy is below that of step 0
    peak: float  # cross-fitted, the mean of the seeds' own
    peak_step: int
    """Step of the evaluation that is best on all items; its own accuracy is biased upwards."""
    naive_peak: float  # biased accuracy of that evaluation
    terminal: float  # mean of the last evaluations after the peak
    last: int  # largest number of evaluations in that mean
    base: float
    drop: float
    low: float
    high: float  # 95 % interval of the drop
    se: float  # standard error of the drop
    se_items: float
    """The part of it that more items would lower; the rest is from seeds that differ."""
    p_value: float
    """One-sided, of no drop at all; for false-discovery control over the cells of a matrix."""
    cliff_step: int | None
    """First evaluation after the change point of the accuracy; None: no cliff."""
    detectable: float  # smallest drop found with probability 0.8 at this standard error
    items: int
    evaluations: int
    seeds: int


def find_cliff(
    scores: Sequence[npt.ArrayLike],
    steps: Sequence[int],
    *,
    splits: int = 8,
    resamples: int = 2000,
    seed: int = 0,
) -> Cliff:
    """The verdict from `scores`, one (evaluations, items) array for each seed of a cell."""
    # The best of many noisy evaluations is too good by chance, so the peak is cross-fitted: chosen
    # on one half of the items, scored on the other. The threshold of arXiv 2605.24202 is not
    # public; this one is ours.
    runs = _check_scores(scores, steps)
    lasts = [LAST] if runs.shape[1] >= LAST + 2 else [runs.shape[1] - 2]
    lasts += [last for last in FALLING if last <= runs.shape[1] - 2]
    rng = np.random.default_rng(seed)
    masks = halves(runs.shape[2], splits, rng)
    levels = peak_and_terminal(runs, masks, lasts)
    # Resampled peaks are chosen with more noise than the real ones, so their drops are shifted
    # downwards: only their spread is used.
    samples = bootstrap(runs, masks, resamples, lasts, rng)
    of_items = samples.drop.var(axis=1, ddof=1)
    curve = runs.mean(axis=(0, 2))
    peak = float(levels.peak.mean())
    tried: list[_Fall] = []
    for index, last in enumerate(lasts):
        of_seeds = seed_variance(item_drops(runs, masks, last)) if len(runs) > 1 else 0.0
        spread = MeanUncertainty(float(of_items[index]), of_seeds, len(runs))
        tried.append(
            _Fall(
                last=last,
                terminal=float(levels.terminal[index].mean()),
                drop=float(levels.drop[index, 0]),
                spread=spread,
                near=bool(np.any(curve[-last:] > peak - spread.se)),
            )
        )
    verdict, fall = _verdict(tried, runs.shape[1])
    best = int(curve.argmax())
    spread, tries = fall.spread, 2 if verdict == "falling" else 1
    return Cliff(
        verdict=verdict,
        below_base=fall.terminal < float(curve[0]),
        peak=peak,
        peak_step=int(steps[best]),
        naive_peak=float(curve[best]),
        terminal=fall.terminal,
        last=fall.last,
        base=float(curve[0]),
        drop=fall.drop,
        low=fall.drop - spread.half_width,
        high=fall.drop + spread.half_width,
        se=spread.se,
        se_items=math.sqrt(spread.of_items),
        p_value=min(1.0, tries * spread.p_value(fall.drop)),
        cliff_step=int(steps[change_point(curve)]) if verdict in FELL else None,
        detectable=max(THRESHOLD, spread.detectable),
        items=runs.shape[2],
        evaluations=runs.shape[1],
        seeds=runs.shape[0],
    )


class _Fall(NamedTuple):
    last: int
    terminal: float
    drop: float
    spread: MeanUncertainty
    near: bool  # one of the last evaluations is within one standard error of the peak


def _verdict(tried: Sequence[_Fall], evaluations: int) -> tuple[CliffVerdict, _Fall]:
    # The first of `tried` is the fall to the end. A fall that is found needs no power.
    whole, *partial = tried
    falls = whole.drop >= THRESHOLD and whole.drop > whole.spread.half_width and not whole.near
    if falls and evaluations >= LAST + 2:
        return "cliff", whole
    for fall in partial:
        significant = fall.spread.p_value(fall.drop) <= FALLING_LEVEL
        if significant and fall.drop >= FALLING[fall.last] and not fall.near:
            return "falling", fall
    if evaluations < LAST + 2:
        return "not enough evaluations", whole
    if whole.spread.detectable > TOO_COARSE:
        with_more_seeds = MeanUncertainty(whole.spread.of_items, 0.0, whole.spread.seeds)
        enough = with_more_seeds.detectable <= TOO_COARSE
        return ("not enough seeds" if enough else "not enough items"), whole
    return "no cliff", whole


def change_point(values: npt.ArrayLike) -> int:
    """Index at which a series is best cut into two levels, the second lower (least squares)."""
    # Only cuts after the maximum of the series are looked at.
    series = np.asarray(values, np.float64)
    first = int(series.argmax())
    cuts = range(first + 1, len(series))
    best = min(
        cuts,
        key=lambda cut: (
            float(series[first:cut].var() * (cut - first))
            + float(series[cut:].var() * (len(series) - cut))
        ),
        default=len(series) - 1,
    )
    return int(best)


def discoveries(p_values: Sequence[float], rate: float = 0.05) -> list[bool]:
    """Select the cells whose cliffs pass at the false-discovery rate `rate`."""
    # Benjamini and Hochberg, J. R. Stat. Soc. B 57 (1995) 289.
    order = np.argsort(p_values)
    bounds = rate * np.arange(1, len(p_values) + 1) / max(1, len(p_values))
    reached = np.flatnonzero(np.asarray(p_values, np.float64)[order] <= bounds)
    discovered = np.zeros(len(p_values), np.bool_)
    if reached.size:
        discovered[order[: reached[-1] + 1]] = True
    return discovered.tolist()


def _check_scores(scores: Sequence[npt.ArrayLike], steps: Sequence[int]) -> Floats:
    runs = [np.asarray(run, np.float64) for run in scores]
    shapes = {run.shape for run in runs}
    if len(shapes) != 1 or runs[0].ndim != 2 or runs[0].shape[0] != len(steps):
        raise UsageError(
            f"expected one (evaluations, items) array a seed with {len(steps)} evaluations each, "
            f"got shapes {sorted(shapes)}"
        )
    stacked = np.stack(runs)
    if stacked.shape[1] < EARLIEST or stacked.shape[2] < FEWEST:
        raise UsageError(
            f"a verdict needs {EARLIEST} evaluations of {FEWEST} items or more, got "
            f"{stacked.shape[1]} of {stacked.shape[2]}"
        )
    if not np.isfinite(stacked).all():
        raise UsageError("a score is not finite: every item must be scored at every evaluation")
    return stacked
