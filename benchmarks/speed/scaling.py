"""How the cost of rollouts grows, beside the law that is expected of it.

Episodes of voting (turns: of the evaluator-optimizer) with an instant policy and without grading.
The exponent is the slope of the logarithm of CPU time over the logarithm of the size, by least
squares over the medians of the rounds; sizes take turns like contenders. Expected is 1 where twice
as much is twice the work, and 0 where it should make no difference.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np

from benchmarks.harness.record import Row
from benchmarks.harness.timing import Contender, Workload, digits, race
from benchmarks.speed.bookkeeping import REPLY, InstantPolicy, UngradedMath
from flowzoo.agents import PolicyMap
from flowzoo.agents.rollout.episodes import EpisodeJob, Rollout
from flowzoo.agents.rollout.settings import TreeSettings
from flowzoo.agents.rollout.tree import TreeRollout
from flowzoo.baselines.advantages.columns import CallColumns
from flowzoo.baselines.advantages.compute import compute
from flowzoo.envs import Workflow, make_workflow

EPISODES = 400


def rolled(
    workflow: Workflow, problems: int, samples: int = 1, reply: str = REPLY
) -> Callable[[], int]:
    """Work: a rollout."""
    policy_map = PolicyMap.shared(InstantPolicy(reply), workflow.role_counts())
    jobs = [
        EpisodeJob(workflow.task.problem(index), sample)
        for index in range(problems)
        for sample in range(samples)
    ]

    def work() -> int:
        Rollout(workflow, policy_map).run(jobs)
        return 1

    return work


def grown(candidates: int, episodes: int) -> Callable[[], int]:
    """Work: trees with so many candidates a turn."""
    workflow = make_workflow("voting_v0", UngradedMath())
    policy_map = PolicyMap.shared(InstantPolicy(), workflow.role_counts())
    jobs = [EpisodeJob(workflow.task.problem(index)) for index in range(episodes)]

    def work() -> int:
        tree = TreeRollout(workflow, policy_map, TreeSettings(candidates=candidates))
        tree.sample(jobs)
        return 1

    return work


def valued(episodes: int) -> Callable[[], int]:
    """Work: the advantages of so many voting episodes, eight of a problem."""
    workflow = make_workflow("voting_v0", UngradedMath())
    policy_map = PolicyMap.shared(InstantPolicy(), workflow.role_counts())
    jobs = [EpisodeJob(workflow.task.problem(row // 8), row % 8) for row in range(episodes)]
    records = Rollout(workflow, policy_map).run(jobs)
    columns = CallColumns([call for record in records for call in record.calls])

    def work() -> int:
        compute(columns, "dr_mas")
        return 1

    return work


def curves(workload: Workload) -> dict[str, tuple[float, str, Mapping[int, Callable[[], int]]]]:
    """Curve -> expected exponent, what grows, and works by size."""
    voting, most = make_workflow("voting_v0", UngradedMath()), workload.scaled(EPISODES, 8)
    sizes = [max(1, most // step) for step in (8, 4, 2, 1)]
    turns = (2, 4, 8, 16)

    def votes(number: int) -> Workflow:
        return make_workflow("voting_v0", UngradedMath(), n_votes=number)

    def rounds(number: int) -> Workflow:
        return make_workflow("eval_opt_v0", UngradedMath(), max_rounds=number)

    few, small = max(1, most // 8), max(1, most // 20)
    return {
        "problems": (1, "episodes of one problem each", {n: rolled(voting, n) for n in sizes}),
        "samples": (
            1, "episodes of a problem, 20 problems", {n: rolled(voting, small, n) for n in turns},
        ),
        "agents": (1, "voters of an episode", {n: rolled(votes(n), few) for n in (4, 8, 16, 32)}),
        "turns": (1, "attempts of an episode", {n: rolled(rounds(n), few) for n in turns}),
        "lengths": (
            0, "characters of a reply",
            {n: rolled(voting, few, reply="1" * n) for n in (10, 100, 1_000, 10_000)},
        ),
        "candidates": (1, "candidates of a turn", {n: grown(n, small) for n in turns}),
        "calls": (
            1, "calls whose advantages are computed",
            {4 * n: valued(n) for n in (8 * most, 16 * most, 32 * most)},
        ),
    }  # fmt: skip


def exponent(sizes: Sequence[int], times: Sequence[float]) -> float:
    """Slope of log time over log size."""
    slope, _ = np.polyfit([math.log(n) for n in sizes], [math.log(t) for t in times], 1)
    return float(slope)


def measure(workload: Workload) -> Iterator[Row]:
    """A row a curve: times by size, and the exponent with its quartiles over the rounds."""
    for name, (expected, what, works) in curves(workload).items():
        for work in works.values():
            work()
        found = race([Contender(str(n), work) for n, work in works.items()], workload.rounds)
        laps = [row["laps"] for row in found["contenders"].values()]
        each = [
            exponent(list(works), [max(own[number][1], 1e-6) for own in laps])
            for number in range(workload.rounds)
        ]
        low, high = min(each), max(each)
        yield {
            "case": name, "unit": "run", "what": what, "expected": expected,
            "exponent": {
                "median": digits(statistics.median(each)), "low": digits(low), "high": digits(high)
            },
            **found,
        }  # fmt: skip
