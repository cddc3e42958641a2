"""Calls of a rollout and candidates of a tree, beside PettingZoo's bookkeeping.

A unit is a call, or a candidate of a tree of four at every turn; of the floor it is a live step.
Voting episodes with an instant policy and without grading: what is left is the engine.
"""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.harness.record import Row
from benchmarks.harness.timing import Contender, Workload, race
from benchmarks.speed.bookkeeping import FloorEnv, InstantPolicy, UngradedMath, play_through
from flowzoo.agents import PolicyMap
from flowzoo.agents.rollout.episodes import EpisodeJob, Rollout
from flowzoo.agents.rollout.tree import TreeRollout
from flowzoo.envs import make_workflow

EPISODES = 1_000


def measure(workload: Workload) -> Iterator[Row]:
    """One row: floor, rollout in canonical order and in order of arrival, tree."""
    workflow = make_workflow("voting_v0", UngradedMath())
    policy_map, floor = PolicyMap.shared(InstantPolicy(), workflow.role_counts()), FloorEnv()
    episodes = workload.scaled(EPISODES, 4)
    jobs = [EpisodeJob(workflow.task.problem(index)) for index in range(episodes)]

    def rolled(deterministic: bool) -> int:
        rollout = Rollout(workflow, policy_map, deterministic=deterministic)
        return sum(len(record.calls) for record in rollout.run(jobs))

    def grown() -> int:
        tree = TreeRollout(workflow, policy_map)
        return len(tree.sample(jobs[: episodes // 4]).rows)

    found = race(
        [
            Contender("floor", lambda: play_through(floor, episodes)),
            Contender("rollout", lambda: rolled(True)),
            Contender("rollout, order of arrival", lambda: rolled(False)),
            Contender("tree of 4", grown),
        ],
        workload.rounds,
    )
    yield {"case": "calls of voting", "unit": "call", **found}
