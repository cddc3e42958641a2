"""The planted truths are what they say."""

import numpy as np
import pytest

from flowzoo.baselines.diagnostics.capture import find_captures
from studies.truth.simulation import (
    course,
    simulate,
    simulate_capture,
    simulate_gram,
    simulate_seeds,
)


@pytest.mark.parametrize("spread", [0.0, 1.0, 2.0])
def test_scores_have_the_expected_accuracy(spread):
    wanted = np.array([0.1, 0.5, 0.6, 0.95])
    rng = np.random.default_rng(0)
    found = np.mean([simulate(wanted, 500, rng, spread=spread) for _ in range(200)], axis=(0, 2))
    error = np.sqrt(wanted * (1 - wanted) / 100_000)
    assert np.all(np.abs(found - wanted) < 4 * error)


def test_seeds_share_the_difficulty_of_their_items():
    one, two = simulate_seeds([np.full(60, 0.5)] * 2, 300, np.random.default_rng(1))
    assert np.corrcoef(one.mean(axis=0), two.mean(axis=0))[0, 1] > 0.7


def test_course_rises_stays_and_falls():
    found = course(0.1, 20)
    assert found.shape == (20,)
    assert found[0] == pytest.approx(0.4)
    assert found[9:15] == pytest.approx(np.full(6, 0.6))
    assert found[15:] == pytest.approx(np.full(5, 0.5))


def test_gram_has_the_expected_products_and_noise():
    means = np.array([[1.0, 0.0], [0.5, 0.5]])
    rng = np.random.default_rng(2)
    grams = [simulate_gram(means, 0.5, 4, rng) for _ in range(400)]
    mean = np.mean(grams, axis=0)
    assert mean[:, 0, :, 1] == pytest.approx(means @ means.T, abs=0.1)
    whole = mean.sum(axis=(1, 3)) / 16
    assert np.diagonal(whole) == pytest.approx(np.array([1.25, 0.75]), abs=0.05)


@pytest.mark.parametrize(
    ("excess", "moved", "captured"),
    [(0.25, 0.8, True), (0.25, 0.0, False), (0.0, 0.8, False), (0.0, 0.0, False)],
)
def test_capture_is_found_where_both_halves_were_planted(excess, moved, captured):
    """Twenty runs of each kind; voters have 0.63 of the mass from noise alone."""
    rng = np.random.default_rng(3)
    for _ in range(20):
        run = simulate_capture(excess, moved, rng)
        found = {(one.by, one.of): one for one in find_captures(*run, draws=200)}
        assert found["generator", "aggregator"].captured == captured
        assert not found["aggregator", "generator"].captured
