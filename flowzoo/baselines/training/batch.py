"""Batch of a step: problems drawn from the stream, and their episodes."""

from __future__ import annotations

from pathlib import Path

from flowzoo.agents.problems import ProblemStream
from flowzoo.agents.rollout.episodes import RolloutBatch, Sampler
from flowzoo.baselines.advantages.compute import RunningMean
from flowzoo.baselines.backends.backend import RolloutSpec, policies_of
from flowzoo.baselines.engines.hf import Engines
from flowzoo.baselines.training.advantage_computer import informative_jobs
from flowzoo.baselines.training.async_rollouts import PlayStep
from flowzoo.baselines.training.factories import make_sampler
from flowzoo.baselines.training.filters import FilteredBatch, gather
from flowzoo.baselines.training.plan import RunPlan
from flowzoo.envs import Workflow
from flowzoo.seeding import key_int


class StepDraws:
    """Draws the problems of steps and plays them."""

    def __init__(
        self, plan: RunPlan, engines: Engines, stream: ProblemStream, failures: Path
    ) -> None:
        self._plan, self._engines, self._stream = plan, engines, stream
        self._failures = failures

    def draw(self, step: int, play: PlayStep, means: RunningMean) -> FilteredBatch:
        """Draw the problems of `step` and play them with `play`; `means` stay unchanged."""
        plan, config = self._plan, self._plan.config
        workflow = plan.curriculum.at(step)
        sampler = self.sampler(workflow, key_int("train", config.seed, step))
        spec = RolloutSpec("train", policies_of(sampler.policy_map), step)
        return gather(
            self._stream,
            workflow.task,
            lambda jobs: play(spec, sampler, jobs),
            refills=config.refill,
            problems=config.problems,
            samples=plan.samples,
            informative=lambda sampled: self.informative(sampled, means),
        )

    def informative(self, sampled: RolloutBatch, means: RunningMean) -> set[str]:
        """Keys of the jobs that some policy would learn from; `means` stay unchanged."""
        values = self._plan.compute_advantages(sampled, means.copy()).values
        return informative_jobs(sampled.rows, values, self._plan.learners)

    def sampler(self, workflow: Workflow, seed: int) -> Sampler:
        """Make the sampler of training episodes; `seed` is part of every request's key."""
        plan = self._plan
        policy_map = plan.make_policy_map(self._engines.train_policies, plan.budgets)
        return make_sampler(
            plan.config, plan.algorithm, workflow, policy_map, seed=seed, failures=self._failures,
        )  # fmt: skip
