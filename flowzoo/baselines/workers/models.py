"""Models of a rollout worker, and how they load new weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from flowzoo.agents.policy import Completion
from flowzoo.agents.problems import distinct_problems
from flowzoo.agents.rollout.episodes import EpisodeJob, RolloutBatch, Sampler
from flowzoo.baselines.backends.ray.weights import digest, distinct, from_file
from flowzoo.baselines.backends.ray.worker import Loaded
from flowzoo.baselines.engines.hf import load_policies, policy_models
from flowzoo.baselines.settings.config import TrainConfig
from flowzoo.baselines.training.evaluation import sample_jobs
from flowzoo.baselines.training.factories import open_modules, open_replica
from flowzoo.baselines.training.plan import RunPlan


class LearnerModels:
    """Modules of a worker that samples with transformers."""

    def __init__(self, config: TrainConfig, plan: RunPlan) -> None:
        """Load the starting models of the run."""
        task = plan.workflow.task.name
        self._loaded = load_policies(config, plan.names, task, config.frozen)
        self.engines = open_modules(config, self._loaded, plan.budgets.reply)

    def load(self, policy: str, version: int, weights: bytes) -> Loaded:
        """See `ShardPlayer`; the digest is of the weights that the model computes with."""
        modules = self._loaded[policy].weights
        modules.put(from_file(weights), f"the driver's file for policy {policy!r}")
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

    def __init__(self, config: TrainConfig, plan: RunPlan) -> None:
        """Start the engines, with the weights of the models' files."""
        task = plan.workflow.task
        models = policy_models(config, plan.names, task.name, config.frozen)
        problems = distinct_problems(task, config.eval_split, config.eval_problems)
        self.engines = open_replica(config, models, problems, plan.budgets.reply)

    def load(self, policy: str, version: int, weights: bytes) -> Loaded:
        """See `ShardPlayer`; the digest is of the received weights, log-probs of loaded ones."""
        tensors = from_file(weights)
        logps = self.engines.take(policy, version, tensors)
        return Loaded(digest(distinct(tensors)), version, logps)

    def lost(self) -> Sequence[str]:
        """Names of the engines that died."""
        return self.engines.lost()

    def probes(self) -> Mapping[str, Sequence[Completion]]:
        """Completions that prove the loaded weights, by policy."""
        return self.engines.probes()

    def play(self, sampler: Sampler, jobs: Sequence[EpisodeJob]) -> RolloutBatch:
        """Play jobs as one batch."""
        batch = sample_jobs(self.engines, sampler, jobs)
        self.engines.played()
        return batch


def open_models(config: TrainConfig, plan: RunPlan) -> LearnerModels | VLLMModels:
    """Load the models or start the engines that the settings name."""
    return (VLLMModels if config.engine_traits.own_weights else LearnerModels)(config, plan)
