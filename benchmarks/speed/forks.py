"""Copies of an episode in progress, beside playing it from the start.

A fork replays the log: the script runs again over the replies that are known, and nothing is
asked or graded twice.
"""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.harness.record import Row
from benchmarks.harness.timing import Contender, Workload, race
from benchmarks.speed.bookkeeping import UngradedMath
from flowzoo.envs import make_workflow
from flowzoo.envs.api.aec import Guard, WorkflowEnv

CALLS = 6
LENGTH = 4_000
FORKS = 2_000


def measure(workload: Workload) -> Iterator[Row]:
    """One row: played so far, and forked."""
    workflow = make_workflow("eval_opt_v0", UngradedMath(), max_rounds=4)
    env, forks = Guard(WorkflowEnv(workflow)), workload.scaled(FORKS)

    def played() -> None:
        env.reset()
        for _ in range(CALLS):
            env.step("x" * LENGTH)

    def play() -> int:
        for _ in range(max(1, forks // 10)):
            played()
        return max(1, forks // 10)

    def fork() -> int:
        for _ in range(forks):
            env.fork()
        return forks

    played()
    found = race(
        [
            Contender("played from the start", play),
            Contender("fork", fork),
        ],
        workload.rounds,
    )
    yield {"case": f"{CALLS} calls of {LENGTH:,} characters", "unit": "episode", **found}
