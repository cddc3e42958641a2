"""Numbers of problems and samples that tell two policies apart, planned before they are played.

Two policies play the same problems `k` times each. With `between`, the variance of a policy's
accuracies on the problems, `within`, the mean variance of the episodes of a problem, and a
correlation `r` of the accuracies of both policies, the mean difference over `n` problems has the
variance `(2 between (1 - r) + 2 within / k) / n` (Miller, arXiv 2411.00640, section 5).
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

from flowzoo.agents.evaluation.intervals import Z
from flowzoo.agents.evaluation.summary import mean, stderr
from flowzoo.errors import UsageError

POWER = 0.8
"""Probability with which a difference of the smallest detectable size is found."""
POWER_Z = 0.8416
"""Quantile of the normal distribution at `POWER`."""
CORRELATION = 0.5
"""Correlation of the accuracies of two policies on a problem that is assumed."""


class ScoreVariance(NamedTuple):
    """Variance of an episode's score in two parts."""

    between: float
    """Variance of the problems' accuracies."""
    within: float
    """Mean over problems of the variance of their episodes."""


EVEN = ScoreVariance(1 / 12, 1 / 6)
"""Variance of answers to problems whose accuracies are spread evenly from 0 to 1."""


def score_variance(groups: Sequence[Sequence[float]]) -> ScoreVariance:
    """The variance of scores by problem, none of them empty, estimated without bias.

    One episode of each problem does not tell the parts apart: they are as in `EVEN`, 1 to 2.

    Raises:
        UsageError: less than two problems, or scores that are all equal.
    """
    if len(groups) < 2:
        raise UsageError(f"a variance needs the scores of two problems or more, got {len(groups)}")
    total = _variance([mean(group) for group in groups])
    if len({score for group in groups for score in group}) == 1:
        raise UsageError(
            f"a variance needs scores that differ, and all are {groups[0][0]:g}: plan without "
            "--against"
        )
    repeated = [group for group in groups if len(group) > 1]
    if not repeated:
        return ScoreVariance(total / 3, 2 * total / 3)
    within = mean([_variance(group) for group in repeated])
    noise = within * mean([1 / len(group) for group in groups])
    return ScoreVariance(max(0.0, total - noise), within)


def _variance(values: Sequence[float]) -> float:
    return stderr(values) ** 2 * len(values)


def difference_variance(variance: ScoreVariance, samples: int) -> float:
    """Variance of the difference of two policies on one problem, each with `samples` episodes."""
    return 2 * variance.between * (1 - CORRELATION) + 2 * variance.within / samples


def problem_count(points: float, variance: ScoreVariance, samples: int) -> int:
    """Number of problems that find a difference of `points` percent with probability `POWER`.

    Raises:
        UsageError: `points` is not above 0 and at most 100.
    """
    if not 0 < points <= 100:
        raise UsageError(f"--detect takes points above 0 and at most 100, got {points:g}")
    ratio = 100 * (Z + POWER_Z) / points
    return max(2, math.ceil(ratio**2 * difference_variance(variance, samples)))


def detectable_points(problems: int, variance: ScoreVariance, samples: int) -> float:
    """The difference in points that `problems` find with probability `POWER`."""
    return 100 * (Z + POWER_Z) * math.sqrt(difference_variance(variance, samples) / problems)
