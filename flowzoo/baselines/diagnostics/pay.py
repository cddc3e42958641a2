"""Pay of the roles of a game, by evaluations: whether scores are pay, and who earns less."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from flowzoo.agents.evaluation.intervals import number_interval
from flowzoo.agents.evaluation.summary import paid_mean
from flowzoo.aliases import Floats
from flowzoo.baselines.diagnostics.checkers import Row
from flowzoo.baselines.stats import Gain, paired_gain

PAY_OF = "eval/pay_of/"
"""Prefix of the metric of a role's pay on every held-out problem."""
Level = tuple[float, float | None, float | None]


class PayChange(NamedTuple):
    """Pay of a role at two evaluations: each a mean and the ends of its 95 % interval, or None."""

    role: str
    before: Level
    after: Level
    gain: Gain | None
    """Paired over the problems in which it was paid at both; None with fewer than two."""
    shares: tuple[float, float] | None
    """Part of the sum of the roles' mean pay; None where some role earned less than 0."""


def has_pay(rows: Sequence[Row]) -> bool:
    """True if every evaluation that has scores of roles has their pay."""
    kinds = {
        any(name.startswith(PAY_OF) for name in row)
        for row in rows
        if any(name.startswith((PAY_OF, "eval/role_score/")) for name in row)
    }
    return kinds == {True}


def pay_changes(first: Row, last: Row) -> list[PayChange]:
    """The pay of every role at two evaluations of the same problems."""
    names = [name for name in first if name.startswith(PAY_OF) and name in last]
    pays = {
        name.removeprefix(PAY_OF): [
            np.array([math.nan if value is None else value for value in row[name]], np.float64)
            for row in (first, last)
        ]
        for name in names
    }
    means = {role: [paid_mean(pay.tolist()) for pay in both] for role, both in pays.items()}
    totals = [sum(values) for values in zip(*means.values(), strict=True)]
    gainful = all(mean >= 0 for both in means.values() for mean in both)
    shared = len(means) > 1 and gainful and all(total > 0 for total in totals)
    changes: list[PayChange] = []
    for role, (before, after) in pays.items():
        both = np.isfinite(before + after)
        pairs = before[both].tolist(), after[both].tolist()
        start, end = means[role]
        changes.append(
            PayChange(
                role, (start, *_ends(before)), (end, *_ends(after)),
                paired_gain(*pairs) if both.sum() > 1 else None,
                (start / totals[0], end / totals[1]) if shared else None,
            )
        )  # fmt: skip
    return changes


def _ends(pay: Floats) -> tuple[float | None, float | None]:
    paid = pay[np.isfinite(pay)]
    low, high = number_interval(paid) if len(paid) else (math.nan, math.nan)
    return (low, high) if math.isfinite(low) else (None, None)
