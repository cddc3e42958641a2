"""The models that a rollout worker samples with, and how it takes weights over."""

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
    """What a worker with transformers samples with: modules of its own, as the learner's are."""

    def __init__(self, config: TrainConfig, plan: RunPlan) -> None:
        """Load the models as a run with these settings starts with them."""
        task = plan.workflow.task.name
        self._loaded = load_policies(config, plan.names, task, config.frozen)
        self.engines = open_modules(config, self._loaded, plan.budgets.reply)

    def load(self, policy: str, version: int, weights: bytes) -> Loaded:
        """See `ShardPlayer`; the digest is of what the model computes with."""
        own = self._loaded[policy].weights
        own.put(from_file(weights), f"the driver's file for policy {policy!r}")
        return Loaded(digest(distinct(own.state())), version)

    def lost(self) -> Sequence[str]:
        """Nothing dies apart from the worker."""
        return ()

    def probes(self) -> Mapping[str, Sequence[Completion]]:
        """The digest says all."""
        return {}

    def play(self, sampler: Sampler, jobs: Sequence[EpisodeJob]) -> RolloutBatch:
        """What jobs come to."""
        return sample_jobs(self.engines, sampler, jobs)


class VLLMModels:
    """What a worker with vLLM samples with: engines in processes of their own."""

    def __init__(self, config: TrainConfig, plan: RunPlan) -> None:
        """Start the engines, with the weights of the models' files."""
        task = plan.workflow.task
        models = policy_models(config, plan.names, task.name, config.frozen)
        problems = distinct_problems(task, config.eval_split, config.eval_problems)
        self.engines = open_replica(config, models, problems, plan.budgets.reply)

    def load(self, policy: str, version: int, weights: bytes) -> Loaded:
        """See `ShardPlayer`; the digest is of what came, the log-probs are of what is there."""
        tensors = from_file(weights)
        logps = self.engines.take(policy, version, tensors)
        return Loaded(digest(distinct(tensors)), version, logps)

    def lost(self) -> Sequence[str]:
        """See `ShardPlayer`."""
        return self.engines.lost()

    def probes(self) -> Mapping[str, Sequence[Completion]]:
        """See `ShardPlayer`."""
        return self.engines.probes()

    def play(self, sampler: Sampler, jobs: Sequence[EpisodeJob]) -> RolloutBatch:
        """What jobs come to."""
        found = sample_jobs(self.engines, sampler, jobs)
        self.engines.played()
        return found


def open_models(config: TrainConfig, plan: RunPlan) -> LearnerModels | VLLMModels:
    """What the settings name, loaded or started."""
    return (VLLMModels if config.engine == "vllm" else LearnerModels)(config, plan)
