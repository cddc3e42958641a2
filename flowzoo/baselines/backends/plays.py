"""What is played, in words that another process understands."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from flowzoo.agents.policy_map import PolicyMap


@dataclass(frozen=True, slots=True)
class PlayPlan:
    """All that a process with the same settings needs to make the same sampler; picklable."""

    mode: Literal["train", "eval"]
    players: Mapping[str, tuple[str, bool | None]]
    """Role or agent -> its policy, and that one's switch for thoughts."""
    step: int = 0
    """Of the training batch: it decides the stage of the curriculum and the noise."""
    versions: Mapping[str, int] | None = None
    """Policy -> optimiser steps behind the weights to play with, exactly; None: the newest."""


def players_of(policy_map: PolicyMap) -> dict[str, tuple[str, bool | None]]:
    """Who plays in `policy_map`, as a `PlayPlan` says it."""

    def say(policy: Any) -> tuple[str, bool | None]:
        return getattr(policy, "original", policy.name), getattr(policy, "thinking", None)

    return {place: say(policy_map.policy(place)) for place in policy_map.entries}
