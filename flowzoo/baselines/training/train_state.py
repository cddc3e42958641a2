"""State of a run: what training changes and a checkpoint holds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from flowzoo.agents.problems import ProblemStream
from flowzoo.baselines.advantages.compute import RunningMean
from flowzoo.baselines.backends.backend import LearnerProtocol, RunBackend
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
    """State of a run, without its files and the batches sampled ahead."""

    def __init__(
        self,
        config: TrainConfig,
        trained: Mapping[str, LoadedPolicy],
        learners: Mapping[str, LearnerProtocol],
        stream: ProblemStream,
    ) -> None:
        """Make the state of a new run.

        Args:
            config: the settings.
            trained: all loaded policies, frozen ones included.
            learners: learners by policy that is trained.
            stream: source of problems.
        """
        self._config = config
        self.trained, self.learners, self.stream = trained, learners, stream
        self.means = RunningMean()
        """Running means for `target` ema."""
        self.step = -1
        """Last step that is done; -1 in a new run."""
        self.history: list[MetricRow] = []
        """Rows of metrics up to it."""
        self.tokens = 0
        """Tokens that were sampled for training."""
        self.seconds = 0.0
        """Seconds of wall time, over all processes of the run."""
        self.halted = ""
        """Reason why a callback ended the run, or empty."""

    @property
    def finished(self) -> bool:
        """True if no step is left."""
        return self.ends(self.history)

    @property
    def stopped(self) -> str:
        """Reason why the run ends before its last step, or empty."""
        return self._stop_reason(self.history)

    @property
    def evaluations(self) -> list[MetricRow]:
        """Rows of metrics that have an evaluation."""
        return [row for row in self.history if "eval/scores" in row]

    @property
    def versions(self) -> dict[str, int]:
        """Optimizer steps so far, by policy."""
        return {name: learner.steps for name, learner in self.learners.items()}

    def ends(self, rows: Sequence[MetricRow]) -> bool:
        """True if `rows`, the metrics of all steps so far, complete the run."""
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

        `protocol` is that of its evaluations.
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
            {name: policy.tokenizer for name, policy in self.trained.items()},
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
            frozen={name: policy.path for name, policy in self.trained.items() if policy.frozen},
            texts={async_rollouts.FILE: async_rollouts.to_text(sampled)} if sampled else {},
            marks=backend.once(run.marks),
            backend=backend,
        )

    def resume(
        self, run: RunDirectory | RunFollower, backend: RunBackend
    ) -> list[async_rollouts.SampledStep]:
        """Load the last checkpoint and return the batches that it was saved with.

        Raises:
            DataError: the run directory is damaged, and no checkpoint can repair it.
        """
        sampled: list[async_rollouts.SampledStep] = []
        info, damaged = checkpoint.recover(run.checkpoints, self.learners, backend)
        if info is not None:
            self.step = info.step
            self.tokens = info.state["tokens"]
            self.seconds = info.state["seconds"]
            self.stream.cursor = info.state["cursor"]
            self.means.load_state_dict(info.state["baselines"])
            self.halted = info.state["halted"]
            sampled = async_rollouts.read(info.path)

        def begin() -> list[MetricRow]:
            assert isinstance(run, RunDirectory)
            return run.begin(info, damaged, finished=self.ends)

        self.history = backend.once(begin)
        return sampled
