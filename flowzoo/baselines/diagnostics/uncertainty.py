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

import numpy as np
import numpy.typing as npt
from scipy.special import stdtr, stdtrit

Floats = npt.NDArray[np.float64]


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


@dataclass(frozen=True, slots=True)
class MeanUncertainty:
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
        return float(stdtrit(self.freedom, 0.975)) * self.se

    @property
    def detectable(self) -> float:
        """Smallest value whose interval excludes 0 with probability 0.8."""
        return self.half_width + float(stdtrit(self.freedom, 0.8)) * self.se

    def p_value(self, value: float) -> float:
        """One-sided, of nothing at all where `value` was found."""
        if self.se == 0:
            return float(value <= 0)
        return float(stdtr(self.freedom, -value / self.se))
