"""A role's own accuracy, given what it had to work with."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

GIVEN: Mapping[str, str] = {
    "aggregator": "any_correct", "synthesizer": "any_correct", "answerer": "evidence",
}  # fmt: skip
"""Roles that work on what others wrote: the fact without which they cannot be right."""
OTHERS_WORK = ("orchestrator",)
"""Roles whose role score is a mean of other roles' scores."""


def own_score(episode: Mapping[str, Any], call: Mapping[str, Any]) -> float | None:
    """Role score of a saved call; None if it says nothing about the role itself.

    An aggregator without a right candidate has no skill to show, and an orchestrator's score is
    that of its workers.
    """
    role, score = call["role"], call.get("role_score")
    if score is None or role in OTHERS_WORK:
        return None
    given = GIVEN.get(role)
    if given and not episode.get("facts", {}).get(given, True):
        return None
    return float(score)


def role_course(
    evaluations: Sequence[Mapping[str, Any]], measure: str, role: str
) -> tuple[list[float], list[int]]:
    """Mean of a role's measure at every evaluation, NaN without one, and its number of cases."""
    # An episode's calls resemble one another: no more cases than problems.
    values = [row.get(f"eval/{measure}/{role}", math.nan) for row in evaluations]
    cases = [min(row.get(f"eval/calls/{role}", 0), len(row["eval/scores"])) for row in evaluations]
    return values, cases
