"""Rollout specifications and shards, which other processes understand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from flowzoo.agents.policy_map import PolicyMap
from flowzoo.agents.rollout.episodes import EpisodeJob


@dataclass(frozen=True, slots=True)
class RolloutSpec:
    """Arguments from which a process with the same settings makes the same sampler; picklable."""

    mode: Literal["train", "eval"]
    policies: Mapping[str, tuple[str, bool | None]]
    """Policy and its thinking switch, by role or agent."""
    step: int = 0
    """Step of the training batch: it decides the stage of the curriculum and the noise."""
    eval_set: str = ""
    """Name of the evaluation set; empty: the held-out problems."""
    versions: Mapping[str, int] | None = None
    """Exact number of optimizer steps behind the weights, by policy; None: the newest."""


def policies_of(policy_map: PolicyMap) -> dict[str, tuple[str, bool | None]]:
    """Policies of `policy_map` in the format of `RolloutSpec`."""

    def say(policy: Any) -> tuple[str, bool | None]:
        return getattr(policy, "original", policy.name), getattr(policy, "thinking", None)

    # Every process makes its own judge.
    return {role: say(policy_map.policy(role)) for role in policy_map.entries}


class Shard(NamedTuple):
    """Jobs that are played as one batch."""

    number: int
    jobs: tuple[EpisodeJob, ...]


def cut_shards(jobs: Sequence[EpisodeJob], size: int) -> list[Shard]:
    """Shards of `size` jobs each, in order; the last may have fewer. 0: one shard of all."""
    size = size or max(1, len(jobs))
    starts = range(0, max(1, len(jobs)), size)
    return [Shard(n, tuple(jobs[start : start + size])) for n, start in enumerate(starts)]
