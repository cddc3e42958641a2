"""Statistics printed beside accuracies."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from flowzoo.errors import UsageError

Floats = npt.NDArray[np.float64]

Z = 1.959964
"""97.5 % quantile of the normal distribution."""


class Gain(NamedTuple):
    """A paired difference of means with its 95 % interval; fractions, not percent."""

    mean: float
    low: float
    high: float
    n: int


def interval(scores: Floats) -> tuple[float, float]:
    """95 % interval of the mean of independent `scores` (items,).

    Wilson's for scores of 0 and 1, which holds near the ends; the normal one for others.
    """
    n, p = len(scores), float(scores.mean())
    if not np.isin(scores, (0.0, 1.0)).all():
        half = Z * float(scores.std(ddof=1)) / math.sqrt(n) if n > 1 else math.inf
        return p - half, p + half
    centre = (p + Z**2 / (2 * n)) / (1 + Z**2 / n)
    half = Z * math.sqrt(p * (1 - p) / n + Z**2 / (4 * n**2)) / (1 + Z**2 / n)
    return max(0.0, centre - half), min(1.0, centre + half)


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


def _chunks(total: int, most: int) -> list[int]:
    return [min(most, total - start) for start in range(0, total, most)]
