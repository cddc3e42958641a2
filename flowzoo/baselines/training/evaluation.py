"""Evaluations of a run: its held-out problems, played under the noise that all runs have."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from flowzoo.agents import PolicyMap
from flowzoo.agents.evaluation.protocol import protocol_of
from flowzoo.agents.rollout.engine import Resolver, resolve_here
from flowzoo.agents.rollout.episodes import (
    EpisodeJob,
    Rollout,
    RolloutBatch,
    Sampler,
    concat_batches,
)
from flowzoo.agents.vllm.backend import EngineDeadError
from flowzoo.baselines.backends.backend import RunBackend
from flowzoo.baselines.backends.local import LocalRunBackend
from flowzoo.baselines.backends.plays import PlayPlan, players_of
from flowzoo.baselines.backends.shards import Shard, cut_shards
from flowzoo.baselines.engines.hf import Engines
from flowzoo.envs import EpisodeRecord, Problem, Workflow

PlayWith = Callable[[Sampler, Sequence[EpisodeJob]], RolloutBatch]
"""Plays jobs with a sampler."""

EVAL_SEED = 0
"""Seed of the sampling noise of all evaluations of all runs: what differs is the policies."""


def sample_shards(
    backend: RunBackend,
    size: int,
    play_with: PlayWith,
    plan: PlayPlan,
    sampler: Sampler,
    jobs: Sequence[EpisodeJob],
) -> RolloutBatch:
    """What `jobs` come to, `size` of them at a time (0: all), wherever `backend` plays them.

    `plan` says to other processes what `sampler` is.
    """

    def play(shard: Shard) -> RolloutBatch:
        return play_with(sampler, shard.jobs)

    return concat_batches(backend.play(plan, cut_shards(jobs, size), play))


def sample_jobs(engines: Engines, sampler: Sampler, jobs: Sequence[EpisodeJob]) -> RolloutBatch:
    """What `jobs` come to as one batch.

    An engine that dies takes all of them with it: they are played again from the start once it is
    back, so no group is ever trained on half filled.
    """
    while True:
        try:
            return sample_once(engines, sampler, jobs)
        except EngineDeadError as error:
            engines.recover(error)


def sample_once(engines: Engines, sampler: Sampler, jobs: Sequence[EpisodeJob]) -> RolloutBatch:
    """What `jobs` come to; an engine that dies is left to the caller."""
    engines.before_rollout()
    return sampler.sample(jobs)


def evaluation_sampler(
    workflow: Workflow,
    policy_map: PolicyMap,
    deterministic: bool,
    failures: Path,
    resolver: Resolver = resolve_here,
) -> Rollout:
    """What plays evaluations, under the noise that all of them have."""
    return Rollout(
        workflow, policy_map, seed=EVAL_SEED, deterministic=deterministic, failures=failures,
        resolver=resolver,
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Evaluation:
    """What a run is evaluated on; who plays is said every time."""

    workflow: Workflow
    problems: Sequence[Problem]
    engines: Engines
    deterministic: bool
    failures: Path
    """Where episodes whose script failed are kept."""
    samples: int = 1
    """Episodes of every problem, where nothing else is said."""
    backend: RunBackend = field(default_factory=LocalRunBackend)
    shard_jobs: int = 0
    """Episodes that are played as one batch; 0: all."""

    def play(self, policy_map: PolicyMap, samples: int | None = None) -> Sequence[EpisodeRecord]:
        """`samples` episodes of every problem, problem by problem.

        The noise belongs to the problem and the number of the sample: it is the same in every
        evaluation, and that of the first few is the same whatever `samples` is.
        """
        count = samples or self.samples
        rollout = evaluation_sampler(self.workflow, policy_map, self.deterministic, self.failures)
        jobs = [EpisodeJob(problem, number) for problem in self.problems for number in range(count)]
        play = partial(sample_jobs, self.engines)
        plan = PlayPlan("eval", players_of(policy_map))
        return sample_shards(self.backend, self.shard_jobs, play, plan, rollout, jobs).records

    def protocol(self, policy_map: PolicyMap, samples: int | None = None) -> dict[str, Any]:
        """What `play` measures under."""
        count = samples or self.samples
        return protocol_of(self.workflow, policy_map, self.problems, samples=count, seed=EVAL_SEED)
