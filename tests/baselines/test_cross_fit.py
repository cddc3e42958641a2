"""Cross-fitted peaks and their bootstrap beside the definition, item by item."""

import numpy as np
import pytest

from flowzoo.baselines.stats import bootstrap, ends_after, halves, item_drops, peak_and_terminal
from studies.truth.simulation import course, simulate_seeds

LAST = 3


def by_hand(runs: np.ndarray, masks: np.ndarray, drawn: np.ndarray) -> tuple[float, float]:
    """Peak and terminal of the items `drawn`, an item as often as it was drawn."""
    peaks, ends = [], []
    for run in runs:
        for mask in masks:
            parts = [run[:, drawn[mask[drawn] == inside]].mean(axis=1) for inside in (1, 0)]
            for chosen, scored in (parts, parts[::-1]):
                best = int(chosen.argmax())
                peaks.append(scored[best])
                ends.append(scored[max(best + 1, len(scored) - LAST) :].mean()
                            if best + 1 < len(scored) else scored[best])  # fmt: skip
    return float(np.mean(peaks)), float(np.mean(ends))


@pytest.mark.parametrize("seeds", [1, 3])
@pytest.mark.parametrize("items", [40, 61])
def test_levels_and_bootstrap_follow_the_definition(seeds, items):
    """The estimate is equal; mean and spread of the resamples agree."""
    rng = np.random.default_rng(0)
    runs = np.stack(simulate_seeds([course(0.2, 12)] * seeds, items, rng))
    masks = halves(items, 4, rng)
    found = peak_and_terminal(runs, masks, [LAST])
    assert (found.peak.mean(), found.terminal.mean()) == pytest.approx(
        by_hand(runs, masks, np.arange(items))
    )
    mine = bootstrap(runs, masks, 600, [LAST], rng)
    other = np.array([by_hand(runs, masks, rng.integers(items, size=items)) for _ in range(600)])
    levels = mine.peak.mean(axis=0), mine.terminal[0].mean(axis=0)
    for ours, theirs in zip(levels, other.T, strict=True):
        assert ours.mean() == pytest.approx(theirs.mean(), abs=0.2 * theirs.std())
        assert ours.std() == pytest.approx(theirs.std(), rel=0.1)


def test_halves_are_halves_and_differ():
    """An odd item is in the first."""
    masks = halves(61, 5, np.random.default_rng(0))
    assert masks.sum(axis=1).tolist() == [31] * 5
    assert len({mask.tobytes() for mask in masks}) == 5


@pytest.mark.parametrize("seeds", [1, 3])
def test_falls_add_up_to_the_drop(seeds):
    """Their mean over items and seeds is peak minus terminal."""
    rng = np.random.default_rng(1)
    runs = np.stack(simulate_seeds([course(0.2, 12)] * seeds, 60, rng))
    masks = halves(60, 6, rng)
    found = peak_and_terminal(runs, masks, [LAST])
    mine = item_drops(runs, masks, LAST)
    assert mine.shape == (seeds, 60)
    assert mine.mean() == pytest.approx(found.drop[0, 0])


def test_a_fall_is_what_was_lost_after_the_peak():
    """Weights of the terminal level by the evaluation that is chosen: rows are evaluations."""
    assert ends_after(4, 2).T.tolist() == [
        [0, 0, 0.5, 0.5], [0, 0, 0.5, 0.5], [0, 0, 0, 1], [0, 0, 0, 1],
    ]  # fmt: skip


def test_scores_may_be_fractions():
    """Means over samples: the bootstrap's float32 sums are good enough."""
    rng = np.random.default_rng(2)
    runs = rng.random((1, 8, 50))
    masks = halves(50, 3, rng)
    mine = bootstrap(runs, masks, 400, [LAST], rng)
    assert mine.terminal.shape == (1, 1, 400)
    assert mine.drop.mean() == pytest.approx(0, abs=0.1)
