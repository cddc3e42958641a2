"""Held-out evaluation with sampling seeds shared by all runs."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from flowzoo.agents import PolicyMap
from flowzoo.agents.evaluation.protocol import protocol_of
from flowzoo.agents.evaluation.summary import attempts_of
from flowzoo.agents.rollout.engine import Resolver, resolve_here
from flowzoo.agents.rollout.episodes import (
    EpisodeJob,
    Rollout,
    RolloutBatch,
    Sampler,
    concat_batches,
)
from flowzoo.agents.vllm.backend import EngineDeadError
from flowzoo.baselines.backends.backend import (
    RolloutSpec,
    RunBackend,
    Shard,
    cut_shards,
    policies_of,
)
from flowzoo.baselines.diagnostics.swap import SwapRow, swap_probe
from flowzoo.baselines.engines.hf import Engines
from flowzoo.baselines.training.plan import RunPlan
from flowzoo.envs import EpisodeRecord, Problem, Workflow
from flowzoo.errors import UsageError

EVAL_SEED = 0
"""Seed of the sampling noise of all evaluations of all runs: only the policies differ."""


def sample_shards(
    backend: RunBackend,
    size: int,
    play_with: Callable[[Sampler, Sequence[EpisodeJob]], RolloutBatch],
    plan: RolloutSpec,
    sampler: Sampler,
    jobs: Sequence[EpisodeJob],
) -> RolloutBatch:
    """Play `jobs` in shards of `size` (0: all); `plan` describes `sampler` to other processes."""

    def play(shard: Shard) -> RolloutBatch:
        return play_with(sampler, shard.jobs)

    return concat_batches(backend.play(plan, cut_shards(jobs, size), play))


def sample_jobs(engines: Engines, sampler: Sampler, jobs: Sequence[EpisodeJob]) -> RolloutBatch:
    """Play `jobs` as one batch, and again if an engine dies."""
    while True:
        try:
            return sample_once(engines, sampler, jobs)
        except EngineDeadError as error:
            # All jobs again, so that no group is trained on half filled.
            engines.recover(error)


def sample_once(engines: Engines, sampler: Sampler, jobs: Sequence[EpisodeJob]) -> RolloutBatch:
    """Play `jobs`; the death of an engine is raised."""
    engines.before_rollout()
    return sampler.sample(jobs)


def evaluation_sampler(
    workflow: Workflow,
    policy_map: PolicyMap,
    deterministic: bool,
    failures: Path,
    resolver: Resolver = resolve_here,
) -> Rollout:
    """Make the sampler of evaluations."""
    return Rollout(
        workflow, policy_map, seed=EVAL_SEED, deterministic=deterministic, failures=failures,
        resolver=resolver, on_error="ungraded",
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Held-out problems of a run and how they are played; policies are given to each call."""

    workflow: Workflow
    problems: Sequence[Problem]
    engines: Engines
    deterministic: bool
    failures: Path
    """File for episodes whose script failed."""
    samples: int = 1
    """Default number of episodes of every problem."""
    backend: RunBackend = field(default_factory=RunBackend)
    shard_jobs: int = 0
    """Episodes that are played as one batch; 0: all."""
    name: str = ""
    """Name of the evaluation set; empty: the held-out problems."""

    def play(self, policy_map: PolicyMap, samples: int | None = None) -> Sequence[EpisodeRecord]:
        """Play `samples` episodes of every problem, problem by problem.

        A problem with an unknown verdict is left out.

        Raises:
            UsageError: no problem is left.
        """
        count = samples or self.samples
        rollout = evaluation_sampler(self.workflow, policy_map, self.deterministic, self.failures)
        # The noise depends on problem and number alone: it is the same in every evaluation, and the
        # first samples do not depend on `samples`.
        jobs = [EpisodeJob(problem, number) for problem in self.problems for number in range(count)]
        play = partial(sample_jobs, self.engines)
        plan = RolloutSpec("eval", policies_of(policy_map), eval_set=self.name)
        records = sample_shards(self.backend, self.shard_jobs, play, plan, rollout, jobs).records
        if len(records) == len(jobs):
            return records
        groups = attempts_of(records)
        whole = [record for record in records if len(groups[record.problem]) == count]
        if not whole:
            raise UsageError(
                f"the verdicts on all {len(self.problems)} held-out problems are unknown; "
                f"{self.failures} has the reasons"
            )
        return whole

    @property
    def names(self) -> list[str]:
        """Ids of the problems."""
        return [problem.id for problem in self.problems]

    def protocol(self, policy_map: PolicyMap, samples: int | None = None) -> dict[str, object]:
        """Protocol that `play` measures under."""
        count = samples or self.samples
        return protocol_of(self.workflow, policy_map, self.problems, samples=count, seed=EVAL_SEED)


def swapped_scores(plan: RunPlan, evaluation: Evaluation, before: Sequence[float]) -> list[SwapRow]:
    """Repeat an evaluation, which had the scores `before`, with each pair of roles exchanged."""
    return swap_probe(
        evaluation.play, plan.roles, plan.policies, evaluation.engines.eval_policies,
        plan.eval_budgets.roles, before, plan.judge, evaluation.names,
    )  # fmt: skip
