"""Evaluations of a run: its held-out problems, played under the noise that all runs have."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flowzoo.agents import Roster
from flowzoo.agents.evaluation.protocol import protocol_of
from flowzoo.agents.rollout.episodes import EpisodeJob, Rollout, RolloutBatch, Sampler
from flowzoo.agents.vllm.backend import EngineDeadError
from flowzoo.baselines.engines.hf import Engines
from flowzoo.envs import EpisodeRecord, Problem, Workflow

EVAL_SEED = 0
"""Seed of the sampling noise of all evaluations of all runs: what differs is the policies."""


def sample_jobs(engines: Engines, sampler: Sampler, jobs: Sequence[EpisodeJob]) -> RolloutBatch:
    """What `jobs` come to.

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

    def play(self, roster: Roster, samples: int | None = None) -> Sequence[EpisodeRecord]:
        """`samples` episodes of every problem, problem by problem.

        The noise belongs to the problem and the number of the sample: it is the same in every
        evaluation, and that of the first few is the same whatever `samples` is.
        """
        count = samples or self.samples
        rollout = Rollout(
            self.workflow,
            roster,
            seed=EVAL_SEED,
            deterministic=self.deterministic,
            failures=self.failures,
        )
        jobs = [EpisodeJob(problem, number) for problem in self.problems for number in range(count)]
        return sample_jobs(self.engines, rollout, jobs).records

    def protocol(self, roster: Roster, samples: int | None = None) -> dict[str, Any]:
        """What `play` measures under."""
        count = samples or self.samples
        return protocol_of(self.workflow, roster, self.problems, samples=count, seed=EVAL_SEED)
