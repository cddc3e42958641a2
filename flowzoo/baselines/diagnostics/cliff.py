"""Did a run fall off a cliff? A verdict from held-out scores, with its uncertainty.

The best of many noisy evaluations is too good by chance. The peak is therefore cross-fitted: the
checkpoint is chosen on one half of the items and scored on the other, both ways, averaged over
several splits into halves. `drop` is peak minus terminal, the mean of the last evaluations. Its
standard error is a bootstrap over items, the same for all evaluations (they are paired); an item
drawn twice stays in its half, so the choice never sees its own score. Several seeds are blocks,
resampled as wholes.

A run is a cliff if the drop is at least `THRESHOLD`, its interval excludes 0, and none of the last
evaluations is within one standard error of the peak. The threshold of the paper whose question this
is (arXiv 2605.24202) is not public; this one is ours.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Literal

import numpy as np
import numpy.typing as npt

from flowzoo.errors import UsageError

Floats = npt.NDArray[np.float64]
Verdict = Literal["cliff", "no cliff", "not enough items"]

THRESHOLD = 0.05
"""Smallest drop that is called a cliff, as a fraction."""
LAST = 3
"""Evaluations that the terminal accuracy is the mean of."""
TOO_COARSE = 0.15
"""A run whose smallest detectable drop is larger has no verdict but `not enough items`."""
FEWEST = 30
"""Items below which halves say nothing."""
_AT_ONCE = 500
"""Resamples computed together, which bounds the memory."""
Z_95 = 1.959964
"""Standard errors between an estimate and the ends of its 95 % interval."""
Z_POWER = Z_95 + 0.841621
"""Standard errors that a drop must have to be found with probability 0.8 by a 95 % interval."""


@dataclass(frozen=True, slots=True)
class Cliff:
    """The verdict on one cell: a run, or its repetitions under several seeds. All fractions."""

    verdict: Verdict
    below_base: bool
    """The terminal accuracy is below that of step 0."""
    peak: float
    """Cross-fitted."""
    peak_step: int
    """Step of the evaluation that is best on all items; its own accuracy is biased upwards."""
    naive_peak: float
    """That biased accuracy."""
    terminal: float
    base: float
    drop: float
    low: float
    high: float
    """95 % interval of the drop."""
    se: float
    """Standard error of the drop."""
    p_value: float
    """One-sided, of no drop at all; for false-discovery control over the cells of a matrix."""
    cliff_step: int | None
    """Where the accuracy changed: the first evaluation after the change point; None: no cliff."""
    detectable: float
    """Smallest drop found with probability 0.8 at this standard error."""
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
    """The verdict from `scores`, one (evaluations, items) array for each seed of a cell.

    `steps` are those of the evaluations; the first is the one before training. Items are in the
    same order everywhere.

    Raises:
        UsageError: shapes that do not belong together, fewer than `LAST` + 2 evaluations or
            `FEWEST` items, or a score that is not finite.
    """
    runs = _checked(scores, steps)
    rng = np.random.default_rng(seed)
    mean = runs.mean(axis=(0, 2))
    halves = [np.array_split(rng.permutation(runs.shape[2]), 2) for _ in range(splits)]
    peaks, terminals = _peaks(runs, halves, None)
    peak, terminal = float(peaks.mean()), float(terminals.mean())
    samples = _bootstrap(runs, halves, resamples, rng)
    drop, se = peak - terminal, float(samples.std(ddof=1))
    # Resampled peaks are chosen with more noise than the real ones, so their drops are shifted
    # downwards: only their spread is used.
    low, high = drop - Z_95 * se, drop + Z_95 * se
    p_value = 1 - NormalDist().cdf(drop / se) if se > 0 else float(drop <= 0)
    detectable = max(THRESHOLD, Z_POWER * se)
    near = bool(np.any(mean[-LAST:] > peak - se))
    falls = drop >= THRESHOLD and low > 0 and not near
    verdict: Verdict = "cliff" if falls else "no cliff"
    if detectable > TOO_COARSE:
        verdict = "not enough items"
    best = int(mean.argmax())
    return Cliff(
        verdict=verdict,
        below_base=terminal < float(mean[0]),
        peak=peak,
        peak_step=int(steps[best]),
        naive_peak=float(mean[best]),
        terminal=terminal,
        base=float(mean[0]),
        drop=drop,
        low=low,
        high=high,
        se=se,
        p_value=p_value,
        cliff_step=int(steps[change_point(mean)]) if verdict == "cliff" else None,
        detectable=detectable,
        items=runs.shape[2],
        evaluations=runs.shape[1],
        seeds=runs.shape[0],
    )


def change_point(values: npt.ArrayLike) -> int:
    """Index at which a series is best cut into two levels, the second lower (least squares).

    Only cuts after the maximum of the series are looked at.
    """
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
    """Which cells stay cliffs when the false-discovery rate is held at `rate`.

    Benjamini and Hochberg, J. R. Stat. Soc. B 57 (1995) 289.
    """
    order = np.argsort(p_values)
    bounds = rate * np.arange(1, len(p_values) + 1) / max(1, len(p_values))
    passed = np.flatnonzero(np.asarray(p_values, np.float64)[order] <= bounds)
    kept = np.zeros(len(p_values), np.bool_)
    if passed.size:
        kept[order[: passed[-1] + 1]] = True
    return kept.tolist()


def simulate(
    accuracy: npt.ArrayLike, items: int, rng: np.random.Generator, *, spread: float = 1.0
) -> Floats:
    """Scores of a run whose expected accuracy at each evaluation is given: (evaluations, items).

    An item's log-odds differ from the mean by a normal deviate of scale `spread`, the same at every
    evaluation; each score is then drawn independently.
    """
    wanted = np.asarray(accuracy, np.float64)
    difficulty = spread * rng.standard_normal(items)
    # A logistic-normal mean is pulled towards 1/2 by about this factor of its log-odds.
    pull = np.sqrt(1 + np.pi * spread**2 / 8)
    odds = pull * np.log(wanted / (1 - wanted))
    chance = 1 / (1 + np.exp(-(odds[:, None] + difficulty)))
    return (rng.random(chance.shape) < chance).astype(np.float64)


def power(
    drop: float,
    items: int,
    evaluations: int,
    *,
    simulations: int = 200,
    accuracy: float = 0.6,
    seed: int = 0,
) -> float:
    """Share of simulated runs with a true fall of `drop` in which a cliff is found.

    The run rises to `accuracy` in its first half, stays, and has fallen by `drop` for the last
    quarter. A drop of 0 gives the false-positive rate of such a run.
    """
    rng = np.random.default_rng(seed)
    rise = np.linspace(accuracy - 0.2, accuracy, evaluations // 2)
    fallen = max(LAST, evaluations // 4)
    flat = np.full(evaluations - len(rise) - fallen, accuracy)
    course = np.concatenate([rise, flat, np.full(fallen, accuracy - drop)])
    found = 0
    for number in range(simulations):
        scores = simulate(course, items, rng)
        verdict = find_cliff([scores], range(evaluations), splits=4, resamples=400, seed=number)
        found += verdict.verdict == "cliff"
    return found / simulations


def _checked(scores: Sequence[npt.ArrayLike], steps: Sequence[int]) -> Floats:
    """The scores as (seeds, evaluations, items)."""
    runs = [np.asarray(run, np.float64) for run in scores]
    shapes = {run.shape for run in runs}
    if len(shapes) != 1 or runs[0].ndim != 2 or runs[0].shape[0] != len(steps):
        raise UsageError(
            f"expected one (evaluations, items) array a seed with {len(steps)} evaluations each, "
            f"got shapes {sorted(shapes)}"
        )
    found = np.stack(runs)
    if found.shape[1] < LAST + 2 or found.shape[2] < FEWEST:
        raise UsageError(
            f"a verdict needs {LAST + 2} evaluations of {FEWEST} items or more, got "
            f"{found.shape[1]} of {found.shape[2]}"
        )
    if not np.isfinite(found).all():
        raise UsageError("a score is not finite: every item must be scored at every evaluation")
    return found


def _peaks(
    runs: Floats, halves: Sequence[Sequence[npt.NDArray[np.int64]]], weights: Floats | None
) -> tuple[Floats, Floats]:
    """Cross-fitted peaks and terminals, (resamples,), averaged over splits and both ways.

    `weights` is (resamples, seeds, items): how often each item of each seed counts, or None for
    once each.
    """
    if weights is None:
        weights = np.ones((1, runs.shape[0], runs.shape[2]))
    peaks: list[Floats] = []
    ends: list[Floats] = []
    for split in halves:
        levels = [_levels(runs, half, weights) for half in split]
        for chosen, scored in (levels, levels[::-1]):
            best = chosen.argmax(axis=1)
            peaks.append(scored[np.arange(len(scored)), best])
            ends.append(scored[:, -LAST:].mean(axis=1))
    return np.mean(peaks, axis=0), np.mean(ends, axis=0)


def _levels(runs: Floats, items: npt.NDArray[np.int64], weights: Floats) -> Floats:
    """Weighted accuracy of every evaluation on some items: (resamples, evaluations)."""
    part = weights[:, :, items]
    sums = np.zeros((len(weights), runs.shape[1]))
    for number, run in enumerate(runs):
        sums += part[:, number] @ run[:, items].T
    return sums / part.sum(axis=(1, 2))[:, None]


def _bootstrap(
    runs: Floats,
    halves: Sequence[Sequence[npt.NDArray[np.int64]]],
    resamples: int,
    rng: np.random.Generator,
) -> Floats:
    """Bootstrap sample of the drop, (resamples,): items with replacement, seeds as blocks."""
    seeds, _, items = runs.shape
    drops: list[Floats] = []
    for start in range(0, resamples, _AT_ONCE):
        count = min(_AT_ONCE, resamples - start)
        drawn = rng.multinomial(items, np.full(items, 1 / items), count).astype(np.float64)
        weights = np.repeat(drawn[:, None, :], seeds, axis=1)
        if seeds > 1:
            weights *= rng.multinomial(seeds, np.full(seeds, 1 / seeds), count)[:, :, None]
        peaks, ends = _peaks(runs, halves, weights)
        drops.append(peaks - ends)
    return np.concatenate(drops)
