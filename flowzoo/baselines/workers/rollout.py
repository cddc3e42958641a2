"""Rollouts in another process of a run, built from settings."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from flowzoo.agents import Policy, PolicyMap
from flowzoo.agents.hf.process import prepare_process
from flowzoo.agents.identity import ModelIdentity
from flowzoo.agents.policy import Completion
from flowzoo.agents.rollout.engine import Resolver, resolve_here
from flowzoo.agents.rollout.episodes import EpisodeJob, RolloutBatch, Sampler
from flowzoo.baselines.backends.backend import RolloutSpec
from flowzoo.baselines.backends.ray.weights import digest, distinct, from_file
from flowzoo.baselines.backends.ray.worker import Loaded
from flowzoo.baselines.engines.hf import Engines, TransformersEngines, load_policies, policy_models
from flowzoo.baselines.run.directory import failures_path
from flowzoo.baselines.settings.config import TrainConfig
from flowzoo.baselines.training.evaluation import evaluation_sampler, sample_jobs
from flowzoo.baselines.training.factories import make_sampler, open_replica, samplings
from flowzoo.baselines.training.plan import RunPlan, resolve
from flowzoo.seeding import key_int


class RunPlayer:
    """Plays shards of a `RolloutSpec` with a copy of the weights; see `ShardPlayer`.

    `began` has the models of the driver, which must be the same here.
    """

    def __init__(
        self,
        config: TrainConfig,
        began: Mapping[str, ModelIdentity],
        graders: Callable[[RolloutSpec], Resolver] | None = None,
    ) -> None:
        # `device` is the learner's, which may differ.
        config = replace(config, device="cuda" if config.rollout_gpus else "cpu")
        prepare_process(config.threads or int(os.environ.get("OMP_NUM_THREADS", "1")))
        self._config, self._plan, self._graders = config, resolve(config), graders
        models = VLLMModels if config.engine_traits.own_weights else LearnerModels
        self._models = models(config, self._plan, began)
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
        policy_map = self._policy_map(plan, engines, train)
        resolver = self._graders(plan) if self._graders else resolve_here
        if not train:
            return evaluation_sampler(
                run.eval_workflows[plan.eval_set],
                policy_map,
                config.deterministic,
                failures,
                resolver,
            )
        return make_sampler(
            config, run.algorithm, run.curriculum.at(plan.step), policy_map,
            seed=key_int("train", config.seed, plan.step), failures=failures, resolver=resolver,
        )  # fmt: skip

    def _policy_map(self, plan: RolloutSpec, engines: Engines, train: bool) -> PolicyMap:
        """Make the policy map; a substitute of another role uses that role's `thinking`."""
        policies, budgets = engines.eval_policies, self._plan.eval_budgets
        if train:
            policies, budgets = engines.train_policies, self._plan.budgets
        switched: dict[tuple[str, bool | None], Policy] = {}
        for name, thinking in plan.policies.values():
            policy: Any = policies[name]
            if (name, thinking) not in switched:
                same = policy.thinking == thinking
                switched[name, thinking] = policy if same else policy.thinking_as(thinking)
        entries = {agent: switched[player] for agent, player in plan.policies.items()}
        policy_map, judge = PolicyMap(entries, budgets.roles), self._plan.judge
        return policy_map if judge is None else policy_map.with_judge(judge)


class LearnerModels:
    """Modules of a worker that samples with transformers."""

    def __init__(
        self, config: TrainConfig, plan: RunPlan, began: Mapping[str, ModelIdentity]
    ) -> None:
        models = policy_models(config, plan.models, plan.workflow.task.name, began)
        self._loaded = load_policies(config, models)
        self.engines = TransformersEngines(
            config, self._loaded, *samplings(config, self._loaded, plan.replies)
        )

    def load(self, policy: str, version: int, weights: bytes) -> Loaded:
        """See `ShardPlayer`; the digest is of the weights that the model computes with."""
        modules = self._loaded[policy].weights
        modules.put(from_file(weights), f"the driver's file for policy {policy!r}")
        self.engines.sync()
        return Loaded(digest(distinct(modules.state())), version)

    def lost(self) -> Sequence[str]:
        """Return an empty list: nothing can die apart from the worker."""
        return ()

    def probes(self) -> Mapping[str, Sequence[Completion]]:
        """Return an empty map: the digest is proof enough."""
        return {}

    def play(self, sampler: Sampler, jobs: Sequence[EpisodeJob]) -> RolloutBatch:
        """Play jobs as one batch."""
        return sample_jobs(self.engines, sampler, jobs)


class VLLMModels:
    """Engines of a worker that samples with vLLM, in separate processes."""

    def __init__(
        self, config: TrainConfig, plan: RunPlan, began: Mapping[str, ModelIdentity]
    ) -> None:
        models = policy_models(config, plan.models, plan.workflow.task.name, began)
        self.engines = open_replica(config, models, plan.held_out, plan.replies)
        self.lost, self.probes = self.engines.lost, self.engines.probes

    def load(self, policy: str, version: int, weights: bytes) -> Loaded:
        """See `ShardPlayer`; the digest is of the received weights, log-probs of loaded ones."""
        tensors = from_file(weights)
        logps = self.engines.take(policy, version, tensors)
        return Loaded(digest(distinct(tensors)), version, logps)

    def play(self, sampler: Sampler, jobs: Sequence[EpisodeJob]) -> RolloutBatch:
        """Play jobs as one batch."""
        batch = sample_jobs(self.engines, sampler, jobs)
        self.engines.played()
        return batch
