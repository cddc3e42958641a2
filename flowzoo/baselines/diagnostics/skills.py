"""A role's own accuracy, given what it had to work with."""

from __future__ import annotations

from collections.abc import Mapping
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
    if not episode.get("facts", {}).get(GIVEN.get(role, ""), True):
        return None
    return float(score)
