"""How far a mean over a few seeds may be off because seeds differ, and Student's t for it.

Seeds and items cross: every seed is scored on the same items. With `values` (seeds, items) whose
mean is the estimate, its variance has a part from the items, which a bootstrap over items sees, and
a part from the seeds, estimated by the analysis of variance of the two-way table:

    seeds' part = max(0, MS_seeds - MS_rest) / (seeds * items)

`MS_seeds` is `items` times the variance of the seeds' means and `MS_rest` the mean square of what
seed and item effects leave. Three seeds know this part badly; the sum of both parts then has
Satterthwaite's degrees of freedom (Biometrics Bulletin 2 (1946) 110), the seeds' part having
`seeds - 1` and the items' part many. Resampling three seeds with replacement instead finds two
thirds of their variance and takes it for exact.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

_MANY = 1e4
"""Degrees of freedom from which on Student's t is the normal distribution."""


def seed_variance(values: Floats) -> float:
    """The seeds' part of the variance of the mean of `values` (seeds, items); 0 for one seed."""
    seeds, items = values.shape
    if seeds == 1:
        return 0.0
    means = values.mean(axis=1)
    rest = values - values.mean(axis=0) - means[:, None] + values.mean()
    between = items * float(means.var(ddof=1))
    within = float(np.sum(rest**2)) / ((seeds - 1) * (items - 1))
    return max(0.0, between - within) / (seeds * items)


def student_quantile(probability: float, freedom: float) -> float:
    """The quantile of Student's t with `freedom` >= 1 degrees of freedom, to about 1e-5."""
    if freedom > _MANY:
        return NormalDist().inv_cdf(probability)
    angles, below = _student(freedom)
    return math.sqrt(freedom) * math.tan(float(np.interp(probability, below, angles)))


def student_tail(value: float, freedom: float) -> float:
    """Probability that Student's t exceeds `value`, to about 1e-7."""
    if freedom > _MANY:
        return 1 - NormalDist().cdf(value)
    angles, below = _student(freedom)
    angle = math.atan(value / math.sqrt(freedom))
    return 1 - float(np.interp(angle, angles, below))


def _student(freedom: float) -> tuple[Floats, Floats]:
    """Angles with tan(angle) = t / sqrt(freedom), and the probability below each."""
    # The angle has density cos(angle) ** (freedom - 1); beyond the edge that is 0.
    edge = min(math.pi / 2, 9 / math.sqrt(freedom))
    angles = np.linspace(-edge, edge, 8001)
    density = np.cos(angles) ** (freedom - 1)
    below = np.concatenate([[0.0], np.cumsum((density[1:] + density[:-1]) / 2)])
    return angles, below / below[-1]


@dataclass(frozen=True, slots=True)
class Spread:
    """The uncertainty of a mean over items and seeds."""

    of_items: float
    """Variance from the items."""
    of_seeds: float
    """Variance from seeds that differ."""
    seeds: int

    @property
    def se(self) -> float:
        """Standard error."""
        return math.sqrt(self.of_items + self.of_seeds)

    @property
    def freedom(self) -> float:
        """Degrees of freedom of the variance; infinite where seeds do not differ."""
        if self.of_seeds == 0:
            return math.inf
        return (self.seeds - 1) * ((self.of_items + self.of_seeds) / self.of_seeds) ** 2

    @property
    def half_width(self) -> float:
        """Half of the 95 % interval."""
        return student_quantile(0.975, self.freedom) * self.se

    @property
    def detectable(self) -> float:
        """Smallest value whose interval excludes 0 with probability 0.8."""
        return self.half_width + student_quantile(0.8, self.freedom) * self.se

    def p_value(self, value: float) -> float:
        """One-sided, of nothing at all where `value` was found."""
        if self.se == 0:
            return float(value <= 0)
        return student_tail(value / self.se, self.freedom)
