"""Gains, differences over seeds, the variance between seeds, and cross-fitted peaks."""

import math

import numpy as np
import pytest

from flowzoo.baselines.stats import (
    MeanUncertainty,
    bootstrap,
    ends_after,
    halves,
    item_drops,
    mean_over_seeds,
    paired_gain,
    peak_and_terminal,
    seed_variance,
    welch,
)
from flowzoo.errors import UsageError
from studies.truth.simulation import course, simulate_seeds


def test_a_constant_gain_has_no_width():
    assert paired_gain([0.0, 0.5], [0.25, 0.75]) == (0.25, 0.25, 0.25, 2)


def test_the_interval_is_that_of_the_paired_differences():
    rng = np.random.default_rng(0)
    before = (rng.random(400) < 0.4).astype(float)
    after = np.where(rng.random(400) < 0.2, 1.0, before)
    gain = paired_gain(before.tolist(), after.tolist())
    difference = after - before
    error = difference.std(ddof=1) / np.sqrt(400)
    assert gain.mean == pytest.approx(difference.mean())
    assert gain.low == pytest.approx(difference.mean() - 1.96 * error, abs=0.006)
    assert gain.high == pytest.approx(difference.mean() + 1.96 * error, abs=0.006)


@pytest.mark.parametrize(("before", "after"), [([], []), ([1.0], [1.0, 0.0])])
def test_unpaired_items_are_refused(before, after):
    with pytest.raises(UsageError, match="equally long"):
        paired_gain(before, after)


def test_interval_over_three_seeds_is_students():
    mean, low, high = mean_over_seeds([0.1, 0.2, 0.3])
    assert (mean, high - low) == pytest.approx((0.2, 2 * 4.3027 * 0.1 / math.sqrt(3)), rel=1e-4)
    assert math.isnan(mean_over_seeds([0.1])[1])


def test_welch_agrees_with_the_textbook():
    # Equal variances and sizes: t with n1 + n2 - 2 = 4 degrees of freedom.
    low, high = welch([1.0, 2.0, 3.0], [4.0, 5.0, 6.0])
    half = 2.776 * (2 / 3) ** 0.5
    assert (low, high) == pytest.approx((3 - half, 3 + half), abs=1e-3)
    assert welch([1.0], [2.0, 3.0]) == (None, None)
    assert welch([1.0, 1.0], [3.0, 3.0]) == (2.0, 2.0)


def test_seed_variance_is_that_of_the_seeds():
    """Seeds of deviation 0.1 and noise on every score: 0.1 ** 2 / 3 on average."""
    rng = np.random.default_rng(0)
    found = [
        seed_variance(0.1 * rng.standard_normal((3, 1)) + rng.normal(0, 0.4, (3, 400)))
        for _ in range(400)
    ]
    assert np.mean(found) == pytest.approx(0.01 / 3, rel=0.2)


def test_no_seed_effect_is_hardly_any_variance():
    """Noise and difficult items alone: far less than the noise of the mean itself."""
    rng = np.random.default_rng(1)
    found = [
        seed_variance(rng.standard_normal((1, 400)) + rng.standard_normal((3, 400)))
        for _ in range(400)
    ]
    assert np.mean(found) < 0.5 / 1200
    assert np.mean(np.array(found) == 0) > 0.5
    assert seed_variance(rng.standard_normal((1, 400))) == 0


def test_three_seeds_alone_have_the_quantile_of_two_degrees():
    """4.303 standard errors; without a seed effect 1.960, and between them in between."""
    assert MeanUncertainty(0.0, 1.0, 3).half_width == pytest.approx(4.3027, abs=1e-4)
    assert MeanUncertainty(1.0, 0.0, 3).half_width == pytest.approx(1.9600, abs=1e-4)
    assert MeanUncertainty(1.0, 1.0, 3).freedom == pytest.approx(8)
    assert MeanUncertainty(1.0, 1.0, 3).se == pytest.approx(math.sqrt(2))


def test_p_values_are_those_of_the_interval():
    """A value at the end of its 95 % interval has 0.025; without any variance it is sure."""
    spread = MeanUncertainty(0.5, 0.2, 3)
    assert spread.p_value(spread.half_width) == pytest.approx(0.025)
    assert spread.p_value(0.0) == pytest.approx(0.5)
    assert (MeanUncertainty(0, 0, 1).p_value(0.1), MeanUncertainty(0, 0, 1).p_value(0.0)) == (
        0.0,
        1.0,
    )
    assert MeanUncertainty(1.0, 0.0, 1).detectable == pytest.approx(2.8016, abs=1e-4)


# -- cross-fitted peaks ----------------------------------------------------------------------------

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
