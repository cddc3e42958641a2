"""Pay of the roles of a game, by evaluations: whether scores are pay, and who earns less."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from flowzoo.agents.evaluation.intervals import number_interval
from flowzoo.agents.evaluation.summary import paid_mean
from flowzoo.baselines.stats import Gain, paired_gain

PAY_OF = "eval/pay_of/"
"""Prefix of the metric of a role's pay on every held-out problem."""
Row = Mapping[str, Any]
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
    roles = [
        name.removeprefix(PAY_OF) for name in first if name.startswith(PAY_OF) and name in last
    ]
    pays = [{role: _values(row, role) for role in roles} for row in (first, last)]
    parts = [_shares(values) for values in pays]
    return [
        PayChange(
            role,
            _level(pays[0][role]),
            _level(pays[1][role]),
            _gain(pays[0][role], pays[1][role]),
            None if None in parts else tuple(part[role] for part in parts if part),  # type: ignore[arg-type]
        )
        for role in roles
    ]


def _values(row: Row, role: str) -> list[float]:
    values = row[f"{PAY_OF}{role}"]
    return [math.nan if value is None else float(value) for value in values]


def _level(values: Sequence[float]) -> Level:
    paid = [value for value in values if math.isfinite(value)]
    low, high = number_interval(np.array(paid)) if paid else (math.nan, math.nan)
    if not math.isfinite(low):
        return paid_mean(values), None, None
    return paid_mean(values), low, high


def _gain(first: Sequence[float], last: Sequence[float]) -> Gain | None:
    pairs = [pair for pair in zip(first, last, strict=True) if all(map(math.isfinite, pair))]
    if len(pairs) < 2:
        return None
    return paired_gain([before for before, _ in pairs], [after for _, after in pairs])


def _shares(pays: Mapping[str, Sequence[float]]) -> dict[str, float] | None:
    means = {role: paid_mean(values) for role, values in pays.items()}
    total = sum(means.values())
    if len(means) < 2 or not total > 0 or not all(mean >= 0 for mean in means.values()):
        return None
    return {role: mean / total for role, mean in means.items()}
