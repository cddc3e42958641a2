"""Gains, differences over seeds, and the variance between seeds."""

import math

import numpy as np
import pytest

from flowzoo.baselines.stats import MeanUncertainty, paired_gain, seed_variance, welch
from flowzoo.errors import UsageError


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
