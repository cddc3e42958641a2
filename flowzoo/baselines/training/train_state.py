"""State of a run: what training changes and a checkpoint holds."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict

import numpy as np

from flowzoo.agents.evaluation.intervals import Z
from flowzoo.agents.evaluation.summary import measure_name
from flowzoo.agents.problems import ProblemStream
from flowzoo.aliases import MetricRow
from flowzoo.baselines.advantages.compute import RunningMean
from flowzoo.baselines.backends.backend import LearnerProtocol, RunBackend
from flowzoo.baselines.diagnostics.pay import has_pay
from flowzoo.baselines.diagnostics.silence import silence_record
from flowzoo.baselines.diagnostics.watch import EVENTS, Watch
from flowzoo.baselines.engines.hf import LoadedPolicy
from flowzoo.baselines.run import checkpoint
from flowzoo.baselines.run.checkpoint import CheckpointRetention
from flowzoo.baselines.run.directory import RunDirectory, RunFollower
from flowzoo.baselines.settings.config import TrainConfig
from flowzoo.baselines.training import async_rollouts
from flowzoo.baselines.training.metrics import progress, set_evaluations
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
        self.watch = Watch()
        """Follows the evaluations up to it."""
        self.halted = ""
        """Reason why a callback, or a fall, ended the run, or empty."""
        self.begun: MetricRow = {}
        """Row of a step whose update is done and whose evaluation was dropped, or empty."""
        self.saved = -1
        """Step of the last checkpoint; -1: none."""
        self.saved_begun = False
        """True if that checkpoint has no evaluation of its step yet; see `begun`."""

    @property
    def finished(self) -> bool:
        """True if no step is left."""
        return self.ends(self.history)

    @property
    def stopped(self) -> str:
        """Reason why the run ends before its last step, or empty."""
        return self.halted or stop_reason(self.history, self._config)

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
        config, budget = self._config, self._config.token_budget
        spent = 0 < budget <= self.tokens and self.step >= 0
        stopped = bool(self.halted or stop_reason(rows, config))
        return not self.begun and (self.step >= config.steps or spent or stopped)

    def summary(self, plan: RunPlan, protocol: Mapping[str, object]) -> MetricRow:
        """First, best and last evaluation, and the paired gain of the last over step 0."""
        config = self._config
        unknown = sum(row.get("reward/unknown", 0) for row in self.history)
        return {
            "workflow": plan.workflow.name,
            "task": plan.workflow.task.name,
            "policies": plan.policies,
            "algorithm": config.algorithm,
            "seed": config.seed,
            "protocol": protocol,
            **progress(self.evaluations, config.eval_samples),
            "eval_sets": {
                name: progress(rows, config.eval_samples)
                for name, rows in set_evaluations(self.history).items()
            },
            **({"unknown": unknown} if unknown else {}),
            "stopped": self.stopped,
            "training_tokens": self.tokens,
            "updates": sum(self.versions.values()),
            "policy_updates": self.versions,
            "minutes": self.seconds / 60,
            "warnings": silence_record(self.history, vars(config)),
            "events": [event for row in self.history for event in row.get(EVENTS, ())],
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
                "begun": self.begun,
                "config": asdict(config),
            },
            score=score,
            keep=CheckpointRetention(config.keep_last, every=config.keep_every),
            models={name: policy.model for name, policy in self.trained.items()},
            texts={async_rollouts.FILE: async_rollouts.to_text(sampled)} if sampled else {},
            marks=backend.once(run.marks),
            backend=backend,
            again=step == self.saved,
        )
        self.saved, self.saved_begun = step, bool(self.begun)

    def resume(
        self, run: RunDirectory | RunFollower, backend: RunBackend
    ) -> list[async_rollouts.SampledStep]:
        """Load the last checkpoint and return the batches that it was saved with."""
        sampled: list[async_rollouts.SampledStep] = []
        info, damaged = checkpoint.recover(run.checkpoints, self.learners, backend)
        if info is not None:
            self.begun = info.state.get("begun", {})
            self.saved, self.saved_begun = info.step, bool(self.begun)
            self.step = info.step - self.saved_begun
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
        for row in self.history:
            self.watch.add(row)
        return sampled


def stop_reason(rows: Sequence[MetricRow], config: TrainConfig) -> str:
    """Reason to end a run after the last of `rows`, or empty.

    A run ends at an evaluation: if none of the last `stop_patience` (0: any number) was better than
    the last better one, beyond noise; if its accuracy is `stop_at`; or if it shows a fall on which
    the run stops.
    """
    at, patience = config.stop_at, config.stop_patience
    if not rows or "eval/scores" not in rows[-1]:
        return ""
    accuracy = rows[-1]["eval/reward/mean"]
    if at is not None and accuracy >= at:
        measure = measure_name(has_pay(rows[-1:]))
        return f"held-out {measure} {100 * accuracy:.1f} % reaches stop_at {at:g}"
    if config.on_collapse == "stop" and rows[-1].get(EVENTS):
        return f"{rows[-1][EVENTS][0]['text']} (on_collapse stop)"
    if not patience:
        return ""
    best, waited = None, 0
    for row in rows:
        if "eval/scores" not in row:
            continue
        # Against the last better one, so that many small gains add up to one.
        if best is None or beyond_noise(best["eval/scores"], row["eval/scores"]):
            best, waited = row, 0
        else:
            waited += 1
    if best is None or waited < patience:
        return ""
    return (
        f"none of the {waited} evaluations since step {best['step']} was better than its "
        f"{100 * best['eval/reward/mean']:.1f} % beyond noise (stop_patience {patience})"
    )


def beyond_noise(before: Sequence[float], after: Sequence[float]) -> bool:
    """True if the mean of `after - before` is above 0 by its normal 95 % interval over items."""
    gaps = np.asarray(after, np.float64) - np.asarray(before, np.float64)
    if len(gaps) < 2:
        return bool(gaps.mean() > 0)
    return bool(gaps.mean() > Z * gaps.std(ddof=1) / math.sqrt(len(gaps)))
