"""The cross-fitted peak of a run's evaluations, and its bootstrap over items.

The best of many noisy evaluations is too good by chance. Here the evaluation is chosen on one half
of the items and scored on the other, both ways, over several splits into halves. A resample draws
items with replacement, the same for all evaluations and seeds (they are paired); an item drawn
twice stays in its half, so the choice never sees its own score.

The fall is what is lost *after* the chosen evaluation: the terminal level is the mean of those of
the last evaluations that come after it. Where it is the last one itself, nothing was lost yet and
the terminal level is its own. Several seeds are looked at one by one, since they peak and fall at
different times: the mean of curves that fall one after the other may not fall at all.

A resample needs the sum of the scores over all items and over one half per split; the other half is
the difference. That is one matrix product of the items' counts with a table of
`evaluations * (splits + 1)` columns.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Masks = npt.NDArray[np.bool_]

_AT_ONCE = 250
"""Resamples computed together, which bounds the memory and keeps the counts in the cache."""


class PeakAndTerminal(NamedTuple):
    """Accuracies of each seed: means over splits and both ways."""

    peak: Floats
    """(seeds, resamples)."""
    terminal: Floats
    """(lasts, seeds, resamples): for every number of last evaluations that was asked for."""

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
    """What the terminal level after each choice is the mean of: (evaluations, choices) weights."""
    weights = np.zeros((evaluations, evaluations))
    for chosen in range(evaluations):
        first = min(max(chosen + 1, evaluations - last), evaluations - 1)
        weights[first:, chosen] = 1 / (evaluations - first)
    return weights


def peak_and_terminal(runs: Floats, masks: Masks, lasts: Sequence[int]) -> PeakAndTerminal:
    """Of the scores as they are, one resample: `runs` is (seeds, evaluations, items).

    Every number of `lasts` is one of last evaluations that a terminal level is taken of.
    """
    size = masks.sum(axis=1, keepdims=True).astype(np.float64)[None]
    counted = masks.astype(np.float64).T
    found = [
        # Sums, not means: whole scores keep their ties, and the first of equals wins.
        _levels(run.sum(axis=1)[None], (run @ counted).T[None], size, runs.shape[2], lasts)
        for run in runs
    ]
    return _together([found])


def bootstrap(
    runs: Floats, masks: Masks, resamples: int, lasts: Sequence[int], rng: np.random.Generator
) -> PeakAndTerminal:
    """The same of `resamples` resamples. Sums are in float32: exact for whole scores."""
    evaluations, items = runs.shape[1:]
    tables = [_table(run, masks) for run in runs]
    found: list[list[PeakAndTerminal]] = []
    for start in range(0, resamples, _AT_ONCE):
        count = min(_AT_ONCE, resamples - start)
        drawn = _draw(items, count, rng)
        found.append([])
        for table in tables:
            sums = (drawn @ table).astype(np.float64)
            whole, half, size = np.split(sums, [evaluations, table.shape[1] - len(masks)], axis=1)
            half = half.reshape(count, len(masks), evaluations)
            found[-1].append(_levels(whole, half, size[:, :, None], items, lasts))
    return _together(found)


def item_drops(runs: Floats, masks: Masks, last: int) -> Floats:
    """What every item of every seed adds to the drop, (seeds, items); their mean is the drop.

    The item's score at the evaluation that the other half chose, less its terminal score after
    that, averaged over splits. (With an odd number of items the halves weigh a little differently
    in `peak_and_terminal`.)
    """
    weights = ends_after(runs.shape[1], last)
    found = np.zeros((len(runs), runs.shape[2]))
    for run, drops in zip(runs, found, strict=True):
        lost = run - weights.T @ run  # by the evaluation that is chosen
        for mask in masks:
            drops += np.where(mask, lost[(run @ ~mask).argmax()], lost[(run @ mask).argmax()])
    return found / len(masks)


def _table(scores: Floats, masks: Masks) -> npt.NDArray[np.float32]:
    """What the counts of items are multiplied with: (items, columns).

    Columns are the `scores` (evaluations, items), the same within every half, and the halves.
    """
    evaluations, items = scores.shape
    single, counted = scores.astype(np.float32), masks.astype(np.float32)
    inside = (counted[:, None, :] * single).reshape(len(masks) * evaluations, items)
    return np.concatenate([single, inside, counted]).T


def _draw(items: int, resamples: int, rng: np.random.Generator) -> npt.NDArray[np.float32]:
    """How often each item is drawn in `items` draws with replacement: (resamples, items)."""
    drawn = rng.integers(items, size=(resamples, items), dtype=np.int32)
    drawn += items * np.arange(resamples, dtype=np.int32)[:, None]
    counts = np.bincount(drawn.ravel(), minlength=resamples * items)
    return counts.reshape(resamples, items).astype(np.float32)


def _levels(
    whole: Floats, half: Floats, size: Floats, draws: int, lasts: Sequence[int]
) -> PeakAndTerminal:
    """From sums over all items (resamples, evaluations) and over halves (resamples, splits, same).

    `size` (resamples, splits, 1) is how many of the `draws` fell into each half. Without the axis
    of seeds.
    """
    one = half / size
    two = (whole[:, None] - half) / (draws - size)
    ways = [(one.argmax(axis=2)[:, :, None], two), (two.argmax(axis=2)[:, :, None], one)]
    weights = [ends_after(whole.shape[1], last) for last in lasts]

    def taken(level: Floats, chosen: npt.NDArray[np.intp]) -> Floats:
        return np.take_along_axis(level, chosen, axis=2)[:, :, 0].mean(axis=1) / 2

    peak = sum((taken(scored, chosen) for chosen, scored in ways), np.zeros(len(whole)))
    ends = [
        sum((taken(scored @ weight, chosen) for chosen, scored in ways), np.zeros(len(whole)))
        for weight in weights
    ]
    return PeakAndTerminal(peak, np.stack(ends))


def _together(found: Sequence[Sequence[PeakAndTerminal]]) -> PeakAndTerminal:
    """One of the parts of all seeds, chunk by chunk of the resamples."""
    peaks = [np.stack([one.peak for one in seeds]) for seeds in found]
    ends = [np.stack([one.terminal for one in seeds], axis=1) for seeds in found]
    return PeakAndTerminal(np.concatenate(peaks, axis=-1), np.concatenate(ends, axis=-1))
