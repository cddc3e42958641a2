"""Rollouts in another process of a run: its sampler, task, grader and engine, built from settings.

Settings and a `RolloutSpec` are plain values, so a restarted process plays the same.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from flowzoo.agents import Policy, PolicyMap
from flowzoo.agents.rollout.engine import Resolver, resolve_here
from flowzoo.agents.rollout.episodes import EpisodeJob, RolloutBatch, Sampler
from flowzoo.baselines.backends.rollout_spec import RolloutSpec
from flowzoo.baselines.run.directory import failures_path
from flowzoo.baselines.settings.config import TrainConfig
from flowzoo.baselines.training.evaluation import evaluation_sampler
from flowzoo.baselines.training.factories import make_sampler
from flowzoo.baselines.training.plan import resolve
from flowzoo.seeding import key_int


class RunPlayer:
    """Plays shards of a `RolloutSpec` with a copy of the weights; see `ShardPlayer`."""

    def __init__(
        self, config: TrainConfig, graders: Callable[[RolloutSpec], Resolver] | None = None
    ) -> None:
        """Load the models, or start the engines.

        `graders` returns the resolver of the effects of a plan; None: this process resolves them.
        """
        # `device` is the learner's, which may differ.
        config = replace(config, device="cuda" if config.rollout_gpus else "cpu")
        torch.set_num_threads(config.threads or int(os.environ.get("OMP_NUM_THREADS", "1")))
        self._config, self._plan, self._graders = config, resolve(config), graders
        from flowzoo.baselines.workers.models import (
            open_models,  # late: vLLM and Ray only if needed
        )

        self._models = open_models(config, self._plan)
        self.load, self.lost, self.probes = (
            self._models.load, self._models.lost, self._models.probes
        )  # fmt: skip

    def play(self, plan: RolloutSpec, jobs: Sequence[EpisodeJob]) -> RolloutBatch:
        """Play jobs as one batch."""
        return self._models.play(self._sampler(plan), jobs)

    def grading(self) -> Mapping[str, Any]:
        """Versions of what grades answers here; empty if graders do."""
        return {} if self._graders else self._plan.workflow.grading()

    def _sampler(self, plan: RolloutSpec) -> Sampler:
        config, run = self._config, self._plan
        failures = failures_path(config.directory)
        train = plan.mode == "train"
        engines = self._models.engines
        policy_map = self._policy_map(
            plan, engines.train_policies if train else engines.eval_policies
        )
        resolver = self._graders(plan) if self._graders else resolve_here
        if not train:
            return evaluation_sampler(
                run.workflow, policy_map, config.deterministic, failures, resolver
            )
        return make_sampler(
            config, run.algorithm, run.curriculum.at(plan.step), policy_map,
            seed=key_int("train", config.seed, plan.step), failures=failures, resolver=resolver,
        )  # fmt: skip

    def _policy_map(self, plan: RolloutSpec, policies: Mapping[str, Policy]) -> PolicyMap:
        """Make the policy map; a substitute takes over the switch for thoughts."""
        switched: dict[tuple[str, bool | None], Policy] = {}
        for name, thinking in plan.policies.values():
            policy: Any = policies[name]
            if (name, thinking) not in switched:
                same = policy.thinking == thinking
                switched[name, thinking] = policy if same else policy.thinking_as(thinking)
        entries = {agent: switched[player] for agent, player in plan.policies.items()}
        return PolicyMap(entries, self._plan.budgets.roles)
