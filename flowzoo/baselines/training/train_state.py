"""Where a run stands: what a checkpoint holds of it, and whether that is its end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from flowzoo.agents.problems import ProblemStream
from flowzoo.baselines.advantages.compute import RunningMean
from flowzoo.baselines.backends.backend import RunBackend
from flowzoo.baselines.backends.like import LearnerLike
from flowzoo.baselines.diagnostics.silence import silence_record
from flowzoo.baselines.engines.hf import LoadedPolicy
from flowzoo.baselines.run import checkpoint
from flowzoo.baselines.run.directory import RunDirectory
from flowzoo.baselines.run.follower import RunFollower
from flowzoo.baselines.run.retention import CheckpointRetention
from flowzoo.baselines.run.stopping import stop_reason
from flowzoo.baselines.settings.config import TrainConfig
from flowzoo.baselines.training import async_rollouts
from flowzoo.baselines.training.metrics import MetricRow, progress
from flowzoo.baselines.training.plan import RunPlan


class RunState:
    """All of a run that training changes, but for its files and the batches sampled ahead."""

    def __init__(
        self,
        config: TrainConfig,
        trained: Mapping[str, LoadedPolicy],
        learners: Mapping[str, LearnerLike],
        stream: ProblemStream,
    ) -> None:
        """That of a run of which no step is done.

        Args:
            config: the settings.
            trained: every policy, frozen ones included, as it was loaded.
            learners: of every policy that is trained.
            stream: where problems come from.
        """
        self._config = config
        self.trained, self.learners, self.stream = trained, learners, stream
        self.means = RunningMean()
        """What `target` ema compares with."""
        self.step = -1
        """The last that is done."""
        self.history: list[MetricRow] = []
        """The rows of metrics up to it."""
        self.tokens = 0
        """That were sampled for training."""
        self.seconds = 0.0
        """Of wall time, over all processes that went on with the run."""
        self.halted = ""
        """Why a callback ended the run, or nothing."""

    @property
    def finished(self) -> bool:
        """Whether the last step was the last."""
        return self.ends(self.history)

    @property
    def stopped(self) -> str:
        """Why the run ends before its last step, or nothing."""
        return self._stop_reason(self.history)

    @property
    def evaluations(self) -> list[MetricRow]:
        """The rows of metrics that have an evaluation."""
        return [row for row in self.history if "eval/scores" in row]

    @property
    def versions(self) -> dict[str, int]:
        """Policy -> optimiser steps so far."""
        return {name: learner.steps for name, learner in self.learners.items()}

    def ends(self, rows: Sequence[MetricRow]) -> bool:
        """Whether `rows`, those of all steps so far, are those of the whole run."""
        budget = self._config.token_budget
        spent = 0 < budget <= self.tokens and self.step >= 0
        return self.step >= self._config.steps or spent or bool(self._stop_reason(rows))

    def _stop_reason(self, rows: Sequence[MetricRow]) -> str:
        config = self._config
        return self.halted or stop_reason(
            rows, config.stop_patience, config.stop_at, config.stop_on
        )

    def summary(self, plan: RunPlan, protocol: Mapping[str, Any]) -> MetricRow:
        """First, best and last evaluation, and the paired gain of the last over step 0.

        Of a run of `plan`, evaluated under `protocol`.
        """
        config = self._config
        return {
            "workflow": plan.workflow.name,
            "task": plan.workflow.task.name,
            "policies": plan.policies,
            "algorithm": config.algorithm,
            "seed": config.seed,
            "protocol": protocol,
            **progress(self.evaluations, config.eval_samples),
            "stopped": self.stopped,
            "training_tokens": self.tokens,
            "updates": sum(self.versions.values()),
            "policy_updates": self.versions,
            "minutes": self.seconds / 60,
            "warnings": silence_record(self.history, vars(config)),
        }

    def save(
        self,
        run: RunDirectory | RunFollower,
        backend: RunBackend,
        step: int,
        score: float | None,
        sampled: Sequence[async_rollouts.SampledStep],
    ) -> None:
        """Write the checkpoint of `step`, `sampled` being the batches of the next ones."""
        config = self._config
        checkpoint.save(
            run.checkpoints,
            step,
            self.learners,
            {name: one.tokenizer for name, one in self.trained.items()},
            state={
                "tokens": self.tokens,
                "seconds": self.seconds,
                "cursor": self.stream.cursor,
                "baselines": self.means.state_dict(),
                "halted": self.halted,
                "config": asdict(config),
            },
            score=score,
            keep=CheckpointRetention(config.keep_last, every=config.keep_every),
            frozen={name: one.path for name, one in self.trained.items() if one.frozen},
            texts={async_rollouts.FILE: async_rollouts.to_text(sampled)} if sampled else {},
            marks=backend.once(run.marks),
            backend=backend,
        )

    def resume(
        self, run: RunDirectory | RunFollower, backend: RunBackend
    ) -> list[async_rollouts.SampledStep]:
        """Go on from the last checkpoint; returns the batches that it was saved with.

        Raises:
            DataError: what the run directory holds is damaged, and no checkpoint can mend it.
        """
        sampled: list[async_rollouts.SampledStep] = []
        found, damaged = checkpoint.recover(run.checkpoints, self.learners, backend)
        if found is not None:
            self.step = found.step
            self.tokens = found.state["tokens"]
            self.seconds = found.state["seconds"]
            self.stream.cursor = found.state["cursor"]
            self.means.load_state_dict(found.state["baselines"])
            self.halted = found.state["halted"]
            sampled = async_rollouts.read(found.path)

        def begin() -> list[MetricRow]:
            assert isinstance(run, RunDirectory)
            return run.begin(found, damaged, finished=self.ends)

        self.history = backend.once(begin)
        return sampled
