"""Steps of an environment beside PettingZoo's bookkeeping.

A unit is a live step, an agent's turn. Each episode also has a dead step of every agent, whose time
is included. `guarded` is what `voting_v0.env()` returns, `unguarded` the environment inside it.
"""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.harness.record import Row
from benchmarks.harness.timing import Contender, Workload, race
from benchmarks.speed.bookkeeping import FloorEnv, UngradedMath, play_through
from flowzoo.envs import make_workflow
from flowzoo.envs.api.aec import Guard, WorkflowEnv

EPISODES = 1_000


def measure(workload: Workload) -> Iterator[Row]:
    """One row: floor, unguarded, guarded."""
    workflow = make_workflow("voting_v0", UngradedMath())
    floor, raw, guarded = FloorEnv(), WorkflowEnv(workflow), Guard(WorkflowEnv(workflow))
    episodes = workload.scaled(EPISODES)
    found = race(
        [
            Contender("floor", lambda: play_through(floor, episodes)),
            Contender("unguarded", lambda: play_through(raw, episodes)),
            Contender("guarded", lambda: play_through(guarded, episodes)),
        ],
        workload.rounds,
    )
    yield {"case": "steps of voting", "unit": "live step", **found}
