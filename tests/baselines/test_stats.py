"""Paired gains."""

from __future__ import annotations

import numpy as np
import pytest

from flowzoo.baselines.stats import paired_gain
from flowzoo.errors import UsageError


def test_a_constant_gain_has_no_width() -> None:
    assert paired_gain([0.0, 0.5], [0.25, 0.75]) == (0.25, 0.25, 0.25, 2)


def test_the_interval_is_that_of_the_paired_differences() -> None:
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
def test_unpaired_items_are_refused(before: list[float], after: list[float]) -> None:
    with pytest.raises(UsageError, match="equally long"):
        paired_gain(before, after)
