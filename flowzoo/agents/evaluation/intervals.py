"""95 % intervals of means and shares: Wilson's for shares, the normal one for other means."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from flowzoo.agents.evaluation.summary import (
    attempt_values,
    attempts_of,
    problem_scores,
    role_pay,
    role_shares,
)
from flowzoo.aliases import Floats
from flowzoo.envs import Call, EpisodeRecord

Z = 1.959964
"""97.5 % quantile of the normal distribution."""

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


def interval(scores: Floats) -> Ends:
    """95 % interval of the mean of independent `scores` (items,); infinite where none is known."""
    if np.isin(scores, (0.0, 1.0)).all():
        wilson = share_interval(float(scores.mean()), len(scores))
        return wilson.low, wilson.high
    low, high = number_interval(scores)
    if math.isfinite(low) and ((scores >= 0) & (scores <= 1)).all():
        return max(0.0, low), min(1.0, high)  # a mean of shares is a share
    return low, high


def number_interval(values: Floats) -> Ends:
    """95 % interval of the mean of independent numbers of any size, such as pay.

    Infinite where all are equal: nothing says how far they may differ.
    """
    if np.ptp(values) == 0:
        return -math.inf, math.inf
    middle, half = float(values.mean()), Z * float(values.std(ddof=1)) / math.sqrt(len(values))
    return middle - half, middle + half


def grouped_share(hits: Sequence[float], cases: Sequence[int]) -> ShareInterval:
    """The share of cases, from the sum of their values and their number in every group."""
    # Cases of one problem depend on each other: the share is taken for one of as many independent
    # cases as have the variance that is seen between groups.
    total = sum(cases)
    share = sum(hits) / total
    spread = sum((hit - share * of) ** 2 for hit, of in zip(hits, cases, strict=True))
    if spread > 1e-12 * total:
        of = min(float(total), share * (1 - share) * total**2 / spread)
    else:  # every group has the same share: nothing says how far groups differ
        of = float(len(cases))
    return share_interval(share, of)


def values_share(groups: Sequence[Sequence[float]]) -> ShareInterval:
    """The mean of values from 0 to 1 in groups, of which some may be empty."""
    filled = [group for group in groups if group]
    return grouped_share([sum(group) for group in filled], [len(group) for group in filled])


def evaluation_intervals(records: Sequence[EpisodeRecord]) -> dict[str, Any]:
    """The 95 % intervals of the values of `summarize`, each as `[low, high]`.

    Returns:
        `accuracy`, `avg@k` and `pass@k` (of means over problems), `roles` (role -> name -> ends),
        `shares`, and `pay` (role -> ends) where scores are pay. What has no interval, as one
        problem with several episodes, is left out.
    """
    groups = list(attempts_of(records).values())
    means = {"accuracy": problem_scores(records), **attempt_values(records)}
    intervals: dict[str, Any] = _known_intervals(means, interval)
    pay = _known_intervals(role_pay(records), number_interval)
    intervals |= {"pay": pay} if pay else {}
    shares: dict[str, list[tuple[float, int]]] = {}
    for group in groups:
        for name, (share, of) in role_shares(group).items():
            shares.setdefault(name, []).append((share * of, of))
    ends = {name: grouped_share(*zip(*sums, strict=True)) for name, sums in shares.items()}
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
