"""Paired differences, printed beside accuracies."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from scipy.special import bdtrc

from flowzoo.errors import UsageError


class Gain(NamedTuple):
    """A paired difference of means with its 95 % interval; fractions, not percent."""

    mean: float
    low: float
    high: float
    n: int


def paired_gain(
    before: Sequence[float], after: Sequence[float], seed: int = 0, resamples: int = 10_000
) -> Gain:
    """Mean of `after - before` over paired items, with a percentile bootstrap over items.

    Raises:
        UsageError: the sequences differ in length or are empty.
    """
    if len(before) != len(after) or not before:
        raise UsageError(
            f"a paired gain needs two equally long sequences, got {len(before)} and {len(after)}"
        )
    difference = np.asarray(after, np.float64) - np.asarray(before, np.float64)
    rng = np.random.default_rng(seed)
    means = np.concatenate(
        [
            rng.choice(difference, (size, difference.size)).mean(axis=1)
            for size in _chunks(resamples, max(1, 10_000_000 // difference.size))
        ]
    )
    low, high = np.quantile(means, (0.025, 0.975))
    return Gain(float(difference.mean()), float(low), float(high), int(difference.size))


def at_least(count: int, trials: int, chance: float) -> float:
    """Probability of `count` or more successes of `trials`."""
    return float(bdtrc(count - 1, trials, chance)) if count > 0 else 1.0


def _chunks(total: int, most: int) -> list[int]:
    return [min(most, total - start) for start in range(0, total, most)]
