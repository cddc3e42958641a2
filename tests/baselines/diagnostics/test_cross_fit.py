"""Cross-fitted peaks and their bootstrap beside the definition, item by item."""

from __future__ import annotations

import numpy as np
import pytest

from flowzoo.baselines.diagnostics.cross_fit import bootstrap, halves, item_drops, peak_and_terminal
from flowzoo.baselines.diagnostics.simulation import course, simulate_seeds

LAST = 3


def by_hand(runs: np.ndarray, masks: np.ndarray, drawn: np.ndarray) -> tuple[float, float]:
    """Peak and terminal of the items `drawn`, an item as often as it was drawn."""
    peaks, ends = [], []
    for mask in masks:
        parts = [runs[:, :, drawn[mask[drawn] == inside]].mean(axis=(0, 2)) for inside in (1, 0)]
        for chosen, scored in (parts, parts[::-1]):
            peaks.append(scored[chosen.argmax()])
            ends.append(scored[-LAST:].mean())
    return float(np.mean(peaks)), float(np.mean(ends))


@pytest.mark.parametrize("seeds", [1, 3])
@pytest.mark.parametrize("items", [40, 61])
def test_levels_and_bootstrap_follow_the_definition(seeds: int, items: int) -> None:
    """The estimate is equal; mean and spread of the resamples agree."""
    rng = np.random.default_rng(0)
    runs = np.stack(simulate_seeds([course(0.2, 12)] * seeds, items, rng))
    masks = halves(items, 4, rng)
    found = peak_and_terminal(runs, masks, LAST)
    assert (found.peak[0], found.terminal[0]) == pytest.approx(
        by_hand(runs, masks, np.arange(items))
    )
    mine = bootstrap(runs, masks, 600, LAST, rng)
    other = np.array([by_hand(runs, masks, rng.integers(items, size=items)) for _ in range(600)])
    for ours, theirs in zip(mine, other.T, strict=True):
        assert ours.mean() == pytest.approx(theirs.mean(), abs=0.2 * theirs.std())
        assert ours.std() == pytest.approx(theirs.std(), rel=0.1)


def test_halves_are_halves_and_differ() -> None:
    """An odd item is in the first."""
    masks = halves(61, 5, np.random.default_rng(0))
    assert masks.sum(axis=1).tolist() == [31] * 5
    assert len({mask.tobytes() for mask in masks}) == 5


@pytest.mark.parametrize("seeds", [1, 3])
def test_falls_add_up_to_the_drop(seeds: int) -> None:
    """Their mean over items and seeds is peak minus terminal."""
    rng = np.random.default_rng(1)
    runs = np.stack(simulate_seeds([course(0.2, 12)] * seeds, 60, rng))
    masks = halves(60, 6, rng)
    found = peak_and_terminal(runs, masks, LAST)
    mine = item_drops(runs, masks, LAST)
    assert mine.shape == (seeds, 60)
    assert mine.mean() == pytest.approx(found.peak[0] - found.terminal[0])


def test_scores_may_be_fractions() -> None:
    """Means over samples: the bootstrap's float32 sums are good enough."""
    rng = np.random.default_rng(2)
    runs = rng.random((1, 8, 50))
    masks = halves(50, 3, rng)
    mine = bootstrap(runs, masks, 400, LAST, rng)
    assert mine.terminal.mean() == pytest.approx(runs[0, -LAST:].mean(), abs=0.01)
