"""The cross-fitted peak of a run's evaluations, and its bootstrap over items.

The best of many noisy evaluations is too good by chance. Here the evaluation is chosen on one half
of the items and scored on the other, both ways, over several splits into halves. A resample draws
items with replacement, the same for all evaluations and seeds (they are paired); an item drawn
twice stays in its half, so the choice never sees its own score.

A resample needs the sum of the scores over all items and over one half per split; the other half is
the difference. That is one matrix product of the items' counts with a table of
`evaluations * (splits + 1)` columns.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Masks = npt.NDArray[np.bool_]

_AT_ONCE = 250
"""Resamples computed together, which bounds the memory and keeps the counts in the cache."""


class PeakAndTerminal(NamedTuple):
    """Peak and terminal accuracy, (resamples,): means over splits and both ways."""

    peak: Floats
    terminal: Floats


def halves(items: int, splits: int, rng: np.random.Generator) -> Masks:
    """Random halves of the items, (splits, items); an odd item belongs to the first half."""
    masks = np.zeros((splits, items), np.bool_)
    for mask in masks:
        mask[rng.permutation(items)[: (items + 1) // 2]] = True
    return masks


def peak_and_terminal(runs: Floats, masks: Masks, last: int) -> PeakAndTerminal:
    """Of the scores as they are, one resample: `runs` is (seeds, evaluations, items).

    `terminal` is the mean of the `last` evaluations.
    """
    # Sums, not means, over the seeds: whole scores keep their ties, and the first of equals wins.
    total = runs.sum(axis=0)
    half = np.einsum("ei,si->se", total, masks.astype(np.float64))
    size = len(runs) * masks.sum(axis=1, keepdims=True).astype(np.float64)
    return _levels(total.sum(axis=1)[None], half[None], size[None], runs[:, 0].size, last)


def bootstrap(
    runs: Floats, masks: Masks, resamples: int, last: int, rng: np.random.Generator
) -> PeakAndTerminal:
    """The same of `resamples` resamples. Sums are in float32: exact for whole scores."""
    seeds, evaluations, items = runs.shape
    table = _table(runs.sum(axis=0), masks)
    found: list[PeakAndTerminal] = []
    for start in range(0, resamples, _AT_ONCE):
        count = min(_AT_ONCE, resamples - start)
        sums = (_draw(items, count, rng) @ table).astype(np.float64)
        whole, half, size = np.split(sums, [evaluations, table.shape[1] - len(masks)], axis=1)
        half = half.reshape(count, len(masks), evaluations)
        found.append(_levels(whole, half, seeds * size[:, :, None], seeds * items, last))
    return PeakAndTerminal(*(np.concatenate(parts) for parts in zip(*found, strict=True)))


def item_drops(runs: Floats, masks: Masks, last: int) -> Floats:
    """What every item of every seed adds to the drop, (seeds, items); their mean is the drop.

    The item's score at the evaluation that the other half chose, less its terminal score, averaged
    over splits. (With an odd number of items the halves weigh a little differently in
    `peak_and_terminal`.)
    """
    total = runs.sum(axis=0)
    found = np.zeros((len(runs), runs.shape[2]))
    for mask in masks:
        by_one, by_two = (total @ mask).argmax(), (total @ ~mask).argmax()
        found += np.where(mask, runs[:, by_two], runs[:, by_one])
    return found / len(masks) - runs[:, -last:].mean(axis=1)


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


def _levels(whole: Floats, half: Floats, size: Floats, draws: int, last: int) -> PeakAndTerminal:
    """From sums over all items (resamples, evaluations) and over halves (resamples, splits, same).

    `size` (resamples, splits, 1) is how many of the `draws`, over all seeds, fell into each half.
    """
    one = half / size
    two = (whole[:, None] - half) / (draws - size)
    peaks = [
        np.take_along_axis(scored, chosen.argmax(axis=2)[:, :, None], axis=2)[:, :, 0]
        for chosen, scored in ((one, two), (two, one))
    ]
    ends = one[:, :, -last:].mean(axis=2) + two[:, :, -last:].mean(axis=2)
    return PeakAndTerminal((peaks[0] + peaks[1]).mean(axis=1) / 2, ends.mean(axis=1) / 2)
