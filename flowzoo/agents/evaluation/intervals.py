"""95 % intervals of means, shares and paired differences: one rule for all of them.

Values come in groups whose members depend on each other, such as the episodes of a problem. With
`n` values of mean `s` in `G` groups, the variance of the mean is that of Miller (arXiv 2411.00640,
clustered standard errors), with the usual correction for few groups:

    SE^2 = G / (G - 1) * sum over groups of (sum of (value - s) over the group)^2 / n^2

* Independent values of 0 or 1 have Wilson's interval.
* Other values from 0 to 1 have it for as many independent cases as have this variance,
  `s (1 - s) / SE^2`, with Student's t of `G - 1` degrees of freedom: it holds near 0 and 1.
* Numbers of any size have `s - t SE` to `s + t SE`.
* Pairs of scores of 0 or 1 have Newcombe's interval, others that of their differences.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from flowzoo.agents.evaluation.summary import (
    attempt_values,
    attempts_of,
    role_pay,
    role_shares,
)
from flowzoo.aliases import Floats
from flowzoo.envs import Call, EpisodeRecord

Z = 1.959964
"""97.5 % quantile of the normal distribution."""
_EXPANSION = (
    (Z**3 + Z) / 4,
    (5 * Z**5 + 16 * Z**3 + 3 * Z) / 96,
    (3 * Z**7 + 19 * Z**5 + 17 * Z**3 - 15 * Z) / 384,
    (79 * Z**9 + 776 * Z**7 + 1482 * Z**5 - 1920 * Z**3 - 945 * Z) / 92160,
)

Ends = tuple[float, float]

RATES: Mapping[str, Callable[[Call], float | None]] = {
    "role_score": lambda call: call.role_score,
    "strict": lambda call: float(call.strict),
    "lenient": lambda call: float(call.lenient),
    "truncated": lambda call: float(call.finish == "length"),
}
"""Name in `role_summary` -> the value of one call; None: it has none."""


class ShareInterval(NamedTuple):
    """A share of `of` independent cases, with its 95 % interval."""

    share: float
    low: float
    high: float
    of: float


def share_interval(share: float, of: float, z: float = Z) -> ShareInterval:
    """Wilson's interval of `share` of `of` > 0 cases; `of` need not be whole.

    Source: Wilson, J. Am. Stat. Assoc. 22 (1927) 209; it holds near 0 and 1.
    """
    center = (share + z**2 / (2 * of)) / (1 + z**2 / of)
    half = z * math.sqrt(share * (1 - share) / of + z**2 / (4 * of**2)) / (1 + z**2 / of)
    return ShareInterval(share, max(0.0, center - half), min(1.0, center + half), of)


def t_limit(freedom: int) -> float:
    """97.5 % quantile of Student's t, without scipy; at most 0.13 % off.

    Source: Abramowitz and Stegun 26.7.5; exact for 1 and 2 degrees of freedom.
    """
    if freedom < 3:
        return math.tan(0.475 * math.pi) if freedom == 1 else 0.95 * math.sqrt(2 / 0.0975)
    return Z + sum(term / freedom**power for power, term in enumerate(_EXPANSION, start=1))


def grouped_share(
    hits: Sequence[float], cases: Sequence[int], squares: float | None = None
) -> ShareInterval:
    """The share of cases, from the sum of their values and their number in every group.

    `squares` is the sum of the values' squared distances from the share; None: all are 0 or 1.
    """
    total, groups = sum(cases), len(cases)
    share = sum(hits) / total
    spread = _spread(hits, cases)
    bernoulli = share * (1 - share) * total
    if spread <= 1e-12 * total:  # equal shares: nothing says how far groups differ
        return share_interval(share, groups)
    if total == groups and math.isclose(spread, bernoulli, rel_tol=1e-9):
        return share_interval(share, total)
    of = bernoulli * total * (groups - 1) / (spread * groups)
    # Members of a group that seem to differ more than strangers do so by chance.
    strangers = bernoulli * total / (bernoulli if squares is None else squares)
    most = of if total == groups else strangers
    return share_interval(share, min(of, most), t_limit(groups - 1))


def _spread(sums: Sequence[float], cases: Sequence[int]) -> float:
    middle = sum(sums) / sum(cases)
    return sum((each - middle * of) ** 2 for each, of in zip(sums, cases, strict=True))


def values_share(groups: Sequence[Sequence[float]]) -> ShareInterval:
    """The mean of values from 0 to 1 in groups, of which some may be empty."""
    filled = [group for group in groups if group]
    values = np.array([value for group in filled for value in group])
    squares = float(((values - values.mean()) ** 2).sum())
    return grouped_share(
        [sum(group) for group in filled], [len(group) for group in filled], squares
    )


def mean_interval(groups: Sequence[Sequence[float]]) -> Ends:
    """95 % interval of the mean of values in groups, none of them empty.

    Infinite where all groups have one mean that is not 0 or 1: nothing says how far they differ.
    """
    means = np.array([sum(group) / len(group) for group in groups])
    if not all(0 <= value <= 1 for group in groups for value in group):
        return _number_interval(groups)
    if np.ptp(means) == 0 and means[0] not in (0.0, 1.0):
        return -math.inf, math.inf
    share = values_share(groups)
    return share.low, share.high


def interval(scores: Floats) -> Ends:
    """95 % interval of the mean of independent `scores` (items,); see `mean_interval`."""
    return mean_interval(scores[:, None].tolist())


def number_interval(values: Floats) -> Ends:
    """95 % interval of the mean of independent numbers of any size, such as pay.

    Infinite where all are equal: nothing says how far they may differ.
    """
    return _number_interval(values[:, None].tolist())


def _number_interval(groups: Sequence[Sequence[float]]) -> Ends:
    sums, cases = [sum(group) for group in groups], [len(group) for group in groups]
    count, total = len(groups), sum(cases)
    if np.ptp(np.array(sums) / cases) == 0:
        return -math.inf, math.inf
    half = t_limit(count - 1) * math.sqrt(count / (count - 1) * _spread(sums, cases)) / total
    return sum(sums) / total - half, sum(sums) / total + half


def paired_interval(before: Sequence[float], after: Sequence[float]) -> Ends | None:
    """95 % interval of the mean of `after - before`, scores of the same problems.

    Newcombe's method 10 (Stat. Med. 17 (1998) 2635) where all scores are 0 or 1, which holds where
    few problems differ; else that of the differences. None: all differ by one number, and some
    score is not 0 or 1.
    """
    first, second = np.array(before), np.array(after)
    if np.isin([first, second], (0.0, 1.0)).all():
        return _newcombe(first, second)
    low, high = number_interval(second - first)
    if math.isinf(low):
        return None
    scores = np.concatenate([first, second])
    most = 1.0 if ((scores >= 0) & (scores <= 1)).all() else math.inf  # of shares
    return max(-most, low), min(most, high)


def _newcombe(first: Floats, second: Floats) -> Ends:
    # Wilson's two intervals, added as squares, less what the correlation of the scores makes up.
    count = len(first)
    x, y = (share_interval(float(scores.mean()), count) for scores in (first, second))
    excess = float((first * second).sum()) - count * x.share * y.share  # covariance times count
    if excess > 0:
        excess = max(excess - 0.5, 0.0)  # continuity, in the direction of no correlation
    spread = count * math.sqrt(x.share * (1 - x.share) * y.share * (1 - y.share))
    phi = excess / spread if spread else 0.0

    def distance(one_side: float, other_side: float) -> float:
        return math.sqrt(one_side**2 - 2 * phi * one_side * other_side + other_side**2)

    gap = y.share - x.share
    return (
        gap - distance(y.share - y.low, x.high - x.share),
        gap + distance(y.high - y.share, x.share - x.low),
    )


def evaluation_intervals(records: Sequence[EpisodeRecord]) -> dict[str, Any]:
    """The 95 % intervals of the values of `summarize`, each as `[low, high]`.

    Returns:
        `accuracy`, `avg@k` and `pass@k` (of means over problems), `roles` (role -> name -> ends),
        `shares`, and `pay` (role -> ends) where scores are pay. What has no interval, as one
        problem with several episodes, is left out.
    """
    groups = list(attempts_of(records).values())
    scores = [[record.score for record in group] for group in groups]
    intervals: dict[str, Any] = _known_intervals(attempt_values(records), interval)
    if scores and math.isfinite((ends := mean_interval(scores))[0]):
        intervals = {"accuracy": list(ends), **intervals}
    pay = _known_intervals(role_pay(records), number_interval)
    intervals |= {"pay": pay} if pay else {}
    shares: dict[str, list[tuple[float, int]]] = {}
    for group in groups:
        for name, (share, of) in role_shares(group).items():
            shares.setdefault(name, []).append((share * of, of))
    ends = {
        name: grouped_share([hits for hits, _ in sums], [of for _, of in sums])
        for name, sums in shares.items()
    }
    return intervals | {
        "roles": _role_intervals(groups),
        "shares": {name: [share.low, share.high] for name, share in ends.items()},
    }


def _known_intervals(
    means: Mapping[str, Sequence[float]], find: Callable[[Floats], Ends]
) -> dict[str, list[float]]:
    finite = {name: np.array([v for v in values if v == v]) for name, values in means.items()}
    ends = {name: find(values) for name, values in finite.items() if len(values)}
    return {name: list(pair) for name, pair in ends.items() if math.isfinite(pair[0])}


def _role_intervals(groups: Sequence[Sequence[EpisodeRecord]]) -> dict[str, dict[str, list[float]]]:
    calls = [[call for record in group for call in record.calls] for group in groups]
    intervals: dict[str, dict[str, list[float]]] = {}
    for role in sorted({call.role for group in calls for call in group}):
        intervals[role] = {}
        for name, rate in sorted(RATES.items()):
            rates = [[rate(call) for call in group if call.role == role] for group in calls]
            values = [[value for value in group if value is not None] for group in rates]
            if any(values):
                share = values_share(values)
                intervals[role][name] = [share.low, share.high]
    return intervals
