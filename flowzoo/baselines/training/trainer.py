"""The trainer: multi-agent RL over any workflow, with any map from roles to policies.

`algorithm` names the groups, the sampling and the loss; see `settings.algorithms`.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial

from flowzoo.agents import PolicyMap
from flowzoo.agents.evaluation.alarms import Alarm, replies_of
from flowzoo.agents.rollout.episodes import RolloutBatch
from flowzoo.baselines.advantages.compute import Advantages
from flowzoo.baselines.backends.backend import LearnersLostError, NoRoomError
from flowzoo.baselines.backends.sync_check import check_bound, row_gaps
from flowzoo.baselines.diagnostics.forms import form_metrics
from flowzoo.baselines.diagnostics.probe import probe_metrics, slot_grams
from flowzoo.baselines.diagnostics.silence import Silence, silences, start_alarms
from flowzoo.baselines.diagnostics.swap import swap_probe
from flowzoo.baselines.learner.loss import NonFiniteError
from flowzoo.baselines.run.directory import row_key
from flowzoo.baselines.settings.config import TrainConfig
from flowzoo.baselines.settings.hooks import StepControl
from flowzoo.baselines.training.advantage_computer import trained_rows
from flowzoo.baselines.training.async_rollouts import SampledStep
from flowzoo.baselines.training.build import RunParts, open_run
from flowzoo.baselines.training.factories import learner_notes
from flowzoo.baselines.training.filters import FilteredBatch
from flowzoo.baselines.training.metrics import (
    MetricRow,
    advantage_metrics,
    evaluation_metrics,
    mean_staleness,
    of_set,
    role_metrics,
    spike,
)
from flowzoo.envs import Call
from flowzoo.errors import FlowzooError, UsageError

logger = logging.getLogger("flowzoo")

MOST_LOSSES = 3
"""Most losses of learners in a row without a checkpoint in between."""
AGAIN_S = 20.0
"""Seconds before learners that were lost during their start are started again: a preempted node is
gone for longer than one start."""


class Trainer:
    """One run. `train(config)` is the usual way in."""

    def __init__(
        self, config: TrainConfig, *, restart: bool = False, accept_base: bool = False
    ) -> None:
        self._asked = config
        self._warned: set[str] = set()
        self._losses = 0
        self._take(open_run(config, restart=restart, accept_base=accept_base))

    def _take(self, parts: RunParts) -> None:
        self._parts, self.backend, self.state = parts, parts.backend, parts.state
        self.plan, self.config, self.workflow = parts.plan, parts.plan.config, parts.plan.workflow
        self.run, self.board, self.learners = parts.run, parts.board, parts.state.learners
        self.engines, self.draws, self.batches = parts.engines, parts.draws, parts.batches
        self.evaluation, self.eval_sets = parts.evaluation, parts.eval_sets

    # -- the loop ------------------------------------------------------------------------------

    def train(self, on_step: Callable[[MetricRow], None] = lambda row: None) -> MetricRow:
        """Run to the last step and return the summary; `on_step` sees every row of metrics."""
        started = time.perf_counter() - self.state.seconds
        try:
            while not self.state.finished:
                try:
                    row = self._advance(self.state.step + 1, started)
                # Repeat the steps since the last checkpoint.
                except LearnersLostError as lost:
                    self._open_again(lost)
                    started = time.perf_counter() - self.state.seconds
                else:
                    on_step(row)
            summary = self.summary()
            if self.config.swap_probe:
                summary["swaps"] = self.swaps()
        finally:
            self.close()
        self.run.save_summary(summary)
        return summary

    def _advance(self, step: int, started: float) -> MetricRow:
        config = self.config
        row: MetricRow = {"step": step}
        if step > 0:
            row |= self.iterate(step)
        self.state.step = step
        if step == 0 or self.state.finished or config.evaluates(step):
            row |= self.evaluate(step)
        row |= self.call_back(row)
        if self.state.finished and "eval/scores" not in row:  # a callback ended the run
            row |= self.evaluate(step)
        row["tokens/total"] = self.state.tokens
        self.state.seconds = time.perf_counter() - started
        row["time/total"] = self.state.seconds
        self.run.log(row)
        self.board.add(row)
        self.state.history.append(row)
        self._tell(silences(self.state.history, vars(config)))
        listed = step in config.eval_at
        if step == 0 or self.state.finished or listed or step % config.checkpoint_every == 0:
            self.save(step, row.get("eval/reward/mean"))
        return row

    def iterate(self, step: int) -> MetricRow:
        """Run one iteration: rollouts, advantages, the optimizer steps of every policy."""
        config, plan = self.config, self.plan
        began = time.perf_counter()
        if config.max_staleness:
            self.batches.run_ahead(step - 1, min(step + config.max_staleness, config.steps))
        batch = self.batches.take(step)
        taken_at = time.perf_counter()
        self.engines.before_learning()
        sampled_at = time.perf_counter()
        gathered, sampled = batch.gathered, batch.gathered.sampled
        self._require_rewards(step, sampled)
        row = self._version_metrics(batch)
        advantages = plan.compute_advantages(sampled, self.state.means)
        row |= self._batch_metrics(step, gathered, advantages)
        spec, dropped = plan.compute_advantages.spec, config.drop_groups
        trained = trained_rows(gathered, spec, self.learners, dropped)
        row |= {"filter/rows": trained.count(False)} if dropped else {}
        row |= self._learn(step, sampled.rows, trained, advantages)
        # Rows of the newest weights prove the last sync in steps without a probe.
        gaps = row_gaps(row, self.learners)
        self.engines.compare(gaps)
        check_bound(gaps, step, config)
        learned_at = time.perf_counter()
        if self.batches.lone:  # an engine has weights of one version
            self.batches.wait()
        idle_at = time.perf_counter()
        row |= self.engines.sync(step % config.probe_distance == 0)
        row |= self.backend.publish(self.learners)
        tokens = sum(len(call.output_ids) for call in sampled.rows) + sampled.value_tokens
        self.state.tokens += tokens
        if plan.algorithm.sampling == "tree":
            row["tree/value_calls"] = sampled.value_calls
            row["tree/value_tokens"] = sampled.value_tokens
        row["time/rollout"], row["time/learn"] = batch.seconds, learned_at - sampled_at
        if config.max_staleness:
            row["time/wait"] = idle_at - learned_at + taken_at - began
        row["perf/tok_s"] = tokens / (time.perf_counter() - began)
        if step % config.transcripts_every == 0:
            values = zip(sampled.rows, advantages.values.tolist(), trained, strict=True)
            signals = {row_key(call): value for call, value, used in values if used}
            self.run.save_transcripts("train", step, sampled.records, signals)
        return row

    def _require_rewards(self, step: int, sampled: RolloutBatch) -> None:
        if sampled.failed and not sampled.records:
            cause = "every verdict is unknown"
            if self.plan.judge is not None:
                cause = f"no verdict of the judge {self.config.judge} could be read"
            raise UsageError(
                f"none of the {sampled.failed} episodes of step {step} has a reward: {cause}. "
                f"{self.run.failures} has the episodes and the reasons"
            )

    def _version_metrics(self, batch: SampledStep) -> MetricRow:
        row: MetricRow = {f"version/{name}": steps for name, steps in batch.versions.items()}
        now = self.state.versions
        if self.config.max_staleness:
            row |= {f"staleness/{name}": now[name] - batch.versions[name] for name in now}
        if self.config.updates_in_flight:
            row |= mean_staleness(batch.gathered.sampled.rows, now)
        return row

    def _batch_metrics(
        self, step: int, gathered: FilteredBatch, advantages: Advantages
    ) -> MetricRow:
        sampled, plan = gathered.sampled, self.plan
        row: MetricRow = {}
        played = [call for record in sampled.records for call in record.calls]
        scores = role_metrics(sampled.records)
        if plan.hooks.reward:  # a score of 1 need not mean a right answer
            prefixes = ("pass@", "group/solve_")
            scores = {key: x for key, x in scores.items() if not key.startswith(prefixes)}
        if plan.judge is not None:
            row["judge/ungraded"] = sampled.failed
        if sampled.failed:
            row["reward/unknown"] = sampled.failed
            self._tell([Alarm("unknown", f"step {step}: {self._unknown_text(sampled)}")])
        row |= scores | form_metrics(played)
        row |= advantage_metrics(advantages, sampled.rows) | plan.curriculum.metrics(step)
        if step == 1:
            taught = float((advantages.values != 0).mean())
            self._tell(start_alarms(row, vars(self.config), replies_of(played), taught))
        return row | gathered.counts if self.config.refill else row

    def _unknown_text(self, sampled: RolloutBatch) -> str:
        jobs = sampled.failed + len(sampled.records)
        return (
            f"the verdicts on {sampled.failed} of {jobs} episodes are unknown, so they are not "
            f"trained on; {self.run.failures} has the reasons"
        )

    def _learn(
        self, step: int, rows: Sequence[Call], trained: Sequence[bool], advantages: Advantages
    ) -> MetricRow:
        row: MetricRow = {}
        works: dict[str, Callable[[], MetricRow]] = {}
        for name in self.learners:
            indices = [
                index for index, call in enumerate(rows) if call.policy == name and trained[index]
            ]
            calls = [rows[index] for index in indices]
            values = advantages.values[indices].tolist()
            works[name] = partial(self.update, step, name, calls, values)
        for name, learned in self.backend.together(works).items():
            row |= {f"{key}/{name}": value for key, value in learned.items()}
            if "learn/grad_norm" in learned:
                norm = f"learn/grad_norm/{name}"
                earlier = [past[norm] for past in self.state.history if norm in past]
                row[f"grad/spike/{name}"] = float(spike(learned["learn/grad_norm"], earlier))
        return row

    def update(
        self, step: int, policy: str, calls: Sequence[Call], advantages: Sequence[float]
    ) -> MetricRow:
        """Update one learner; the rows of a non-finite loss are saved before the run stops."""
        every, learner = self.config.probe_every, self.learners[policy]
        began = time.perf_counter()
        try:
            row: MetricRow = {}
            if every and (step - 1) % every == 0:
                row |= probe_metrics(learner.apply(slot_grams, calls, advantages))
            row |= learner.update(calls, advantages)
            return row | {"time/learn": time.perf_counter() - began}
        except NonFiniteError as error:
            path = self.run.save_rows(step, error.calls)
            error.add_note(f"step {step}, policy {policy}: the rows are saved in {path}")
            raise

    def call_back(self, row: MetricRow) -> MetricRow:
        """Run the callbacks, apply their changes and return the metrics that they log."""
        scales = {name: learner.lr_scale for name, learner in self.learners.items()}

        def call() -> tuple[MetricRow, str, dict[str, float]]:
            logged, halted, now = MetricRow(), self.state.halted, scales
            for callback in self.plan.hooks.callbacks:
                control = StepControl(
                    self.state.step, row | logged, self.state.history, self.config, now
                )
                callback(control)
                logged |= control.logged
                halted, now = halted or control.stopped, control.scales
            return logged, halted, now

        logged, self.state.halted, scales = self.backend.once(call)
        for name, factor in scales.items():
            self.learners[name].lr_scale = factor
        return logged

    def evaluate(self, step: int) -> MetricRow:
        """Evaluate on the held-out problems, with the same noise every time."""
        # Evaluations have the newest weights.
        if not self.batches.independent:
            self.batches.settle()
        proof = self.engines.prove()
        records = self.evaluation.play(self.eval_policy_map)
        self.run.save_transcripts("eval", step, records)
        row = evaluation_metrics(records, self.evaluation.names)
        if step == 0:
            replies = replies_of(call for record in records for call in record.calls)
            self._tell(start_alarms(row, vars(self.config), replies, 1.0))
        for evaluation in self.eval_sets:
            records = evaluation.play(self.eval_policy_map)
            self.run.save_transcripts(f"set-{evaluation.name}", step, records)
            row |= of_set(evaluation_metrics(records, evaluation.names), evaluation.name)
        return proof | row

    def swaps(self) -> list[MetricRow]:
        """Repeat the last evaluation with each pair of roles' policies exchanged."""
        return swap_probe(
            self.evaluation.play,
            self.workflow.role_counts(),
            self.plan.policies,
            self.engines.eval_policies,
            self.plan.eval_budgets.roles,
            before=self.state.evaluations[-1]["eval/scores"],
            judge=self.plan.judge,
            names=self.evaluation.names,
        )

    @property
    def eval_policy_map(self) -> PolicyMap:
        """Policies by role, with the sampling and the lengths of evaluations."""
        return self.plan.make_policy_map(self.engines.eval_policies, self.plan.eval_budgets)

    @property
    def notes(self) -> list[str]:
        """Notes on how the policies are trained."""
        return [*self.plan.notes, *learner_notes(self.learners)]

    # -- records -------------------------------------------------------------------------------

    def save(self, step: int, score: float | None) -> None:
        """Write a checkpoint."""
        # Batches under way are part of the checkpoint, so they must be complete.
        self.batches.settle()
        self.state.save(self.run, self.backend, step, score, self.batches.ready)
        self._losses = 0

    def summary(self) -> MetricRow:
        """First, best and last evaluation, and the paired gain of the last over step 0."""
        protocol = self.evaluation.protocol(self.eval_policy_map)
        return self.state.summary(self.plan, protocol)

    def close(self) -> None:
        """End the engines, close the files, unlock the directory; `train` calls it at its end."""
        self._parts.close()

    def _tell(self, causes: Iterable[Silence | Alarm]) -> None:
        for cause in causes if self.backend.writes else ():
            if cause.cause not in self._warned:
                self._warned.add(cause.cause)
                logger.warning(cause.text)

    def _open_again(self, lost: FlowzooError) -> None:
        """Continue from the last checkpoint, as the same command would in another process."""
        self.close()
        while True:
            self._losses += 1
            if self._losses > MOST_LOSSES:
                raise lost
            logger.warning("%s; this run goes on by itself (loss %d)", lost, self._losses)
            try:
                return self._take(open_run(self._asked))
            except (LearnersLostError, NoRoomError) as again:
                lost = again
            time.sleep(AGAIN_S)


def train(
    config: TrainConfig, on_step: Callable[[MetricRow], None] = lambda row: None
) -> MetricRow:
    """Train with `config`, resume an earlier run in its directory, and return the summary."""
    return Trainer(config).train(on_step)
