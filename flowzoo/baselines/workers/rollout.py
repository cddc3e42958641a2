"""Rollouts in another process of a run, built from settings."""

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
from flowzoo.baselines.training.plan import resolve
from flowzoo.seeding import key_int
from flowzoo.waits import LIMITS


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
        LIMITS.put(config.wait_limit, config.function_limit)
        self._config, self._graders = config, graders
        self._plan = run = resolve(config)
        models = policy_models(config, run.models, run.workflow.task.name, began)
        self._replicas: Any = None
        """Engines in other processes, which receive weights; None: transformers."""
        if config.engine_traits.own_weights:
            self._replicas = open_replica(config, models, run.held_out, run.replies)
            self._engines: Engines = self._replicas
        else:
            self._loaded = load_policies(config, models)
            self._engines = TransformersEngines(
                config, self._loaded, *samplings(config, self._loaded, run.replies)
            )

    def play(self, plan: RolloutSpec, jobs: Sequence[EpisodeJob]) -> RolloutBatch:
        """Play jobs as one batch."""
        batch = sample_jobs(self._engines, self._sampler(plan), jobs)
        if self._replicas is not None:
            self._replicas.played()
        return batch

    def load(self, policy: str, version: int, weights: bytes) -> Loaded:
        """See `ShardPlayer`; the digest is of the weights that a model here computes with."""
        tensors = from_file(weights)
        if self._replicas is not None:  # the engine's log-probs are the proof
            logps = self._replicas.take(policy, version, tensors)
            return Loaded(digest(distinct(tensors)), version, logps)
        modules = self._loaded[policy].weights
        modules.put(tensors, f"the driver's file for policy {policy!r}")
        self._engines.sync()
        return Loaded(digest(distinct(modules.state())), version)

    def lost(self) -> Sequence[str]:
        """Policies whose engine has died since their weights were loaded."""
        return () if self._replicas is None else self._replicas.lost()

    def probes(self) -> Mapping[str, Sequence[Completion]]:
        """Rows whose log-probs prove weights; none where the digest is proof enough."""
        return {} if self._replicas is None else self._replicas.probes()

    def grading(self) -> Mapping[str, Any]:
        """Versions of what grades answers here; empty if graders do."""
        return {} if self._graders else self._plan.workflow.grading()

    def _sampler(self, plan: RolloutSpec) -> Sampler:
        config, run = self._config, self._plan
        failures = failures_path(config.directory)
        train = plan.mode == "train"
        policy_map = self._policy_map(plan, train)
        resolver = self._graders(plan) if self._graders else resolve_here
        if not train:
            workflow = run.eval_workflows[plan.eval_set]
            return evaluation_sampler(
                workflow, policy_map, config.deterministic, failures, resolver
            )
        return make_sampler(
            config, run.algorithm, run.curriculum.at(plan.step), policy_map,
            seed=key_int("train", config.seed, plan.step), failures=failures, resolver=resolver,
        )  # fmt: skip

    def _policy_map(self, plan: RolloutSpec, train: bool) -> PolicyMap:
        """Make the policy map; a substitute of another role uses that role's `thinking`."""
        policies, budgets = self._engines.eval_policies, self._plan.eval_budgets
        if train:
            policies, budgets = self._engines.train_policies, self._plan.budgets
        switched: dict[tuple[str, bool | None], Policy] = {}
        for name, thinking in plan.policies.values():
            policy: Any = policies[name]
            if (name, thinking) not in switched:
                same = policy.thinking == thinking
                switched[name, thinking] = policy if same else policy.thinking_as(thinking)
        entries = {agent: switched[player] for agent, player in plan.policies.items()}
        policy_map, judge = PolicyMap(entries, budgets.roles), self._plan.judge
        return policy_map if judge is None else policy_map.with_judge(judge)
