"""What a step is made of: its problems, drawn from the stream and played."""

from __future__ import annotations

from pathlib import Path

from flowzoo.agents.problems import ProblemStream
from flowzoo.agents.rollout.episodes import RolloutBatch, Sampler
from flowzoo.baselines.advantages.compute import RunningMean
from flowzoo.baselines.backends.plays import PlayPlan, players_of
from flowzoo.baselines.engines.hf import Engines
from flowzoo.baselines.training.advantage_computer import informative_jobs
from flowzoo.baselines.training.async_rollouts import PlayStep
from flowzoo.baselines.training.factories import make_sampler
from flowzoo.baselines.training.filters import FilterConfig, FilteredBatch, gather
from flowzoo.baselines.training.plan import RunPlan
from flowzoo.envs import Workflow
from flowzoo.seeding import key_int


class StepDraws:
    """Draws the problems of steps, and has them played."""

    def __init__(
        self, plan: RunPlan, engines: Engines, stream: ProblemStream, failures: Path
    ) -> None:
        """Draw nothing yet.

        Args:
            plan: what the settings come to.
            engines: whose players answer.
            stream: where problems come from.
            failures: where episodes whose script failed are kept.
        """
        self._plan, self._engines, self._stream = plan, engines, stream
        self._failures = failures

    def draw(self, step: int, play: PlayStep, means: RunningMean) -> FilteredBatch:
        """Draw the problems of `step` and play them; `play` is given the sampler and the jobs.

        What `--refill` puts back is found by `means`, which stay as they are.
        """
        plan, config = self._plan, self._plan.config
        workflow = plan.curriculum.at(step)
        sampler = self.sampler(workflow, key_int("train", config.seed, step))
        said = PlayPlan("train", players_of(sampler.policy_map), step)
        return gather(
            self._stream,
            workflow.task,
            lambda jobs: play(said, sampler, jobs),
            FilterConfig("drop" if config.refill else "keep", config.refill),
            problems=config.problems,
            samples=plan.samples,
            informative=lambda sampled: self.informative(sampled, means),
        )

    def informative(self, sampled: RolloutBatch, means: RunningMean) -> set[str]:
        """Keys of the jobs that some policy would learn from; `means` stay as they are."""
        values = self._plan.compute_advantages(sampled, means.copy()).values
        return informative_jobs(sampled.rows, values, self._plan.learners)

    def sampler(self, workflow: Workflow, seed: int) -> Sampler:
        """What plays training episodes of `workflow`; `seed` starts every request's key."""
        plan = self._plan
        return make_sampler(
            plan.config, plan.algorithm, workflow, plan.make_policy_map(self._engines.players),
            seed=seed, failures=self._failures,
        )  # fmt: skip
