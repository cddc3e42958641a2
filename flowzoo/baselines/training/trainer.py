"""The trainer: multi-agent RL over any workflow, with any map from roles to policies.

`algorithm` names the groups, the sampling and the loss; see `settings.algorithms`.
"""

import logging
import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np

from flowzoo.agents import PolicyMap
from flowzoo.agents.evaluation.alarms import Alarm, replies_of
from flowzoo.agents.policy_map import role_of
from flowzoo.agents.rollout.episodes import RolloutBatch
from flowzoo.aliases import MetricRow, StateDict
from flowzoo.baselines.advantages.compute import Advantages, RunningMean
from flowzoo.baselines.backends.backend import LearnersLostError, NoRoomError
from flowzoo.baselines.backends.sync_check import check_bound, row_gaps
from flowzoo.baselines.diagnostics.forms import form_metrics
from flowzoo.baselines.diagnostics.probe import probe_metrics, slot_grams
from flowzoo.baselines.diagnostics.silence import silences, start_alarms
from flowzoo.baselines.diagnostics.swap import SwapRow
from flowzoo.baselines.diagnostics.watch import EVENTS, ROLLBACK, FallAlarm
from flowzoo.baselines.learner.loss import NonFiniteError
from flowzoo.baselines.run import checkpoint
from flowzoo.baselines.run.checkpoint import random_state
from flowzoo.baselines.run.directory import RowKey, row_key
from flowzoo.baselines.run.manifest import by_score, checkpoints, first_intact
from flowzoo.baselines.settings.config import TrainConfig
from flowzoo.baselines.settings.hooks import StepControl, send_alert
from flowzoo.baselines.training.advantage_computer import FilteredBatch, trained_rows
from flowzoo.baselines.training.async_rollouts import SampledStep
from flowzoo.baselines.training.build import OpenRun, start_run
from flowzoo.baselines.training.evaluation import swapped_scores
from flowzoo.baselines.training.factories import learner_notes
from flowzoo.baselines.training.metrics import (
    advantage_metrics,
    best_row,
    evaluation_metrics,
    of_set,
    role_metrics,
    spike,
    version_metrics,
)
from flowzoo.envs import Call
from flowzoo.errors import DataError, FlowzooError, UsageError
from flowzoo.grace import GRACE, StepDroppedError

logger = logging.getLogger("flowzoo")

MOST_LOSSES = 3
"""Most losses of learners in a row without a checkpoint in between."""
SLOWER = 0.25
"""Factor on the learning rate of the policy of a role that fell, after a rollback."""
AGAIN_S = 20.0
"""Seconds before learners that were lost during their start are started again: a preempted node is
gone for longer than one start."""


class RunMark(NamedTuple):
    """State that a dropped step puts back; the weights are as they were."""

    step: int
    """Step of the weights."""
    begun: MetricRow
    """See `RunState.begun`."""
    tokens: int
    cursor: int
    means: RunningMean
    random: StateDict


class JudgedBatch(NamedTuple):
    """The batch of an iteration with its advantages."""

    sampled: RolloutBatch
    advantages: Advantages
    trained: Sequence[bool]
    """True for rows that are trained on."""

    @property
    def signals(self) -> dict[RowKey, float]:
        """Advantage by key of the row, of trained rows."""
        values = self.advantages.values.tolist()
        rows = zip(self.sampled.rows, values, self.trained, strict=True)
        return {row_key(call): value for call, value, used in rows if used}


class Trainer:
    """The loop of an open run. `train(config)` is the usual way in."""

    def __init__(self, run: OpenRun) -> None:
        self.run = run
        """The open run; another one after its learners were lost."""
        self._warned: set[str] = set()
        self._losses = 0
        self._mark: RunMark | None = None
        """State for a checkpoint in the middle of a step; None: none can be made."""
        self._spent: dict[str, float] = {}
        """Seconds of the last update and of the last evaluation."""

    # -- the loop ------------------------------------------------------------------------------

    def train(self, on_step: Callable[[MetricRow], None] = lambda row: None) -> MetricRow:
        """Run to the last step and return the summary; `on_step` sees every row of metrics."""
        started = time.perf_counter() - self.run.state.seconds
        try:
            ranks = self.run.backend.has_ranks
            with GRACE.grant(self.run.config.stop_within, ranks=ranks):
                self._go_on(started, on_step)
            summary = self.summary()
            if self.run.config.swap_probe:
                summary["swaps"] = self.swaps()
        finally:
            self.close()
        self.run.directory.save_summary(summary)
        return summary

    def _go_on(self, started: float, on_step: Callable[[MetricRow], None]) -> None:
        try:
            while not self.run.state.finished:
                try:
                    row = self._advance(self.run.state.step + 1, started)
                # Repeat the steps since the last checkpoint.
                except LearnersLostError as lost:
                    self._open_again(lost)
                    started = time.perf_counter() - self.run.state.seconds
                else:
                    try:
                        on_step(row)
                    finally:  # the reader of its output may have got the signal, too
                        self._stop_if_asked(row)
        except (KeyboardInterrupt, StepDroppedError) as stop:
            if GRACE.over or isinstance(stop, StepDroppedError):
                GRACE.finish()
                self._save_mark()
            raise KeyboardInterrupt from stop

    def _stop_if_asked(self, row: MetricRow) -> None:
        """End the run with a checkpoint if any rank has received a signal."""
        state = self.run.state
        if state.finished or not any(self.run.backend.each(lambda: GRACE.asked)):
            return
        if state.saved != state.step or state.saved_begun:
            self.save(state.step, None if ROLLBACK in row else row.get("eval/reward/mean"))
        raise KeyboardInterrupt

    def _check_time(self, part: str) -> None:
        """Drop the step if a signal has left less time than its next part took last."""
        needed = self._spent.get(part, 0.0)
        if any(self.run.backend.each(lambda: GRACE.is_short(needed))):
            raise StepDroppedError(f"a signal has come, and {part} takes longer than is left")

    def _set_mark(self, step: int, begun: MetricRow) -> None:
        state = self.run.state
        # Batches that are sampled ahead cannot be dropped: they have the weights of their time.
        self._mark = None
        if step >= 0 and not self.run.config.max_staleness:
            self._mark = RunMark(
                step, begun, state.tokens, state.stream.cursor, state.means.copy(), random_state()
            )

    def _save_mark(self) -> None:
        run, mark = self.run, self._mark
        if mark is None:
            return
        if mark.step == run.state.saved and (mark.begun or not run.state.saved_begun):
            return
        run.state.begun, run.state.tokens = mark.begun, mark.tokens
        run.state.stream.cursor, run.state.means = mark.cursor, mark.means
        checkpoint.set_random_state(mark.random)
        run.state.save(run.directory, run.backend, mark.step, None, ())

    def _advance(self, step: int, started: float) -> MetricRow:
        state, config = self.run.state, self.run.config
        row: MetricRow = state.begun or {"step": step}
        if step > 0 and not state.begun:
            self._set_mark(state.step, {})
            row |= self.iterate(step)
        state.step, state.begun = step, {}
        self._set_mark(step or -1, dict(row))
        if step == 0 or state.finished or config.evaluates(step):
            self._check_time("evaluation")
            began = time.perf_counter()
            row |= self.evaluate(step)
            self._spent["evaluation"] = time.perf_counter() - began
        row |= self.call_back(row)
        with GRACE.pause():  # nothing of the step can be dropped any more
            self._mark = None
            self._record(row, started)
        due = step in config.eval_at or step % config.checkpoint_every == 0 or ROLLBACK in row
        due = due or (config.on_collapse == "rollback" and row is best_row(state.evaluations))
        if step == 0 or state.finished or due:
            score = row.get("eval/reward/mean")
            self.save(step, None if ROLLBACK in row else score)
        return row

    def _record(self, row: MetricRow, started: float) -> None:
        """Complete the row of a step and log it."""
        run, state, config = self.run, self.run.state, self.run.config
        if state.finished and "eval/scores" not in row:  # a callback ended the run
            row |= self.evaluate(state.step)
        row |= self.react(row)
        row["tokens/total"] = state.tokens
        state.seconds = time.perf_counter() - started
        row["time/total"] = state.seconds
        run.directory.log(row)
        run.board.add(row)
        state.history.append(row)
        self._tell(silences(state.history, vars(config)))

    def iterate(self, step: int) -> MetricRow:
        """Run one iteration: sample, judge, learn, sync and log."""
        run, config, began = self.run, self.run.config, time.perf_counter()
        if config.max_staleness:
            run.batches.run_ahead(step - 1, min(step + config.max_staleness, config.steps))
        batch = run.batches.take(step)
        taken_at = time.perf_counter()
        run.engines.before_learning()
        sampled_at = time.perf_counter()
        judged, row = self._judge(step, batch)
        self._check_time("update")
        self._mark = None
        row |= self._learn(step, judged)
        learned_at = time.perf_counter()
        if run.batches.lone:  # an engine has weights of one version
            run.batches.wait()
        idle_at = time.perf_counter()
        row |= run.engines.sync(step % config.probe_distance == 0)
        row |= run.backend.publish(run.learners)
        self._spent["update"] = time.perf_counter() - sampled_at
        tokens = self._count_tokens(judged.sampled, row)
        row["time/rollout"], row["time/learn"] = batch.seconds, learned_at - sampled_at
        if config.max_staleness:
            row["time/wait"] = idle_at - learned_at + taken_at - began
        row["perf/tok_s"] = tokens / (time.perf_counter() - began)
        if step % config.transcripts_every == 0:
            run.directory.save_transcripts("train", step, judged.sampled.records, judged.signals)
        return row

    def _judge(self, step: int, batch: SampledStep) -> tuple[JudgedBatch, MetricRow]:
        """Compute the advantages of a batch, and which of its rows are trained on."""
        run, gathered, sampled = self.run, batch.gathered, batch.gathered.sampled
        if sampled.failed and not sampled.records:
            cause = "every verdict is unknown"
            if run.plan.judge is not None:
                cause = f"no verdict of the judge {run.config.judge} could be read"
            raise UsageError(
                f"none of the {sampled.failed} episodes of step {step} has a reward: {cause}. "
                f"{run.directory.failures} has the episodes and the reasons"
            )
        row = version_metrics(sampled.rows, batch.versions, run.state.versions, run.config)
        advantages = run.plan.compute_advantages(sampled, run.state.means)
        row |= self._batch_metrics(step, gathered, advantages)
        spec, dropped = run.plan.compute_advantages.spec, run.config.drop_groups
        trained = trained_rows(gathered, spec, run.learners, dropped)
        row |= {"filter/rows": trained.count(False)} if dropped else {}
        return JudgedBatch(sampled, advantages, trained), row

    def _count_tokens(self, sampled: RolloutBatch, row: MetricRow) -> int:
        """Count the tokens of a batch in the run's state and, of a tree, in `row`."""
        tokens = sum(len(call.output_ids) for call in sampled.rows) + sampled.value_tokens
        self.run.state.tokens += tokens
        if self.run.plan.algorithm.sampling == "tree":
            row["tree/value_calls"] = sampled.value_calls
            row["tree/value_tokens"] = sampled.value_tokens
        return tokens

    def _batch_metrics(
        self, step: int, gathered: FilteredBatch, advantages: Advantages
    ) -> MetricRow:
        sampled, plan = gathered.sampled, self.run.plan
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
            text = (
                f"step {step}: the verdicts on {sampled.failed} of "
                f"{sampled.failed + len(sampled.records)} episodes are unknown, so they are not "
                f"trained on; {self.run.directory.failures} has the reasons"
            )
            self._tell([Alarm("unknown", text)])
        row |= scores | form_metrics(played)
        row |= advantage_metrics(advantages, sampled.rows) | plan.curriculum.metrics(step)
        if step == 1:
            taught = float((advantages.values != 0).mean())
            self._tell(start_alarms(row, vars(self.run.config), replies_of(played), taught))
        return row | gathered.counts if self.run.config.refill else row

    def _learn(self, step: int, judged: JudgedBatch) -> MetricRow:
        """Update every policy on its rows."""
        run, row = self.run, MetricRow()
        rows, advantages = judged.sampled.rows, judged.advantages
        works: dict[str, Callable[[], MetricRow]] = {}
        for name in run.learners:
            mask = np.logical_and([call.policy == name for call in rows], judged.trained)
            indices = np.flatnonzero(mask).tolist()
            calls = [rows[index] for index in indices]
            values = advantages.values[indices].tolist()
            works[name] = partial(self.update, step, name, calls, values)
        for name, learned in run.backend.together(works).items():
            row |= {f"{key}/{name}": value for key, value in learned.items()}
            if "learn/grad_norm" in learned:
                norm = f"learn/grad_norm/{name}"
                earlier = [past[norm] for past in run.state.history if norm in past]
                row[f"grad/spike/{name}"] = float(spike(learned["learn/grad_norm"], earlier))
        # Rows of the newest weights prove the last sync in steps without a probe.
        gaps = row_gaps(row, run.learners)
        run.engines.compare(gaps)
        check_bound(gaps, step, run.config)
        return row

    def update(
        self, step: int, policy: str, calls: Sequence[Call], advantages: Sequence[float]
    ) -> MetricRow:
        """Update one learner; the rows of a non-finite loss are saved before the run stops."""
        every, learner = self.run.config.probe_every, self.run.learners[policy]
        began = time.perf_counter()
        try:
            row: MetricRow = {}
            if every and (step - 1) % every == 0:
                row |= probe_metrics(learner.apply(slot_grams, calls, advantages))
            row |= learner.update(calls, advantages)
            return row | {"time/learn": time.perf_counter() - began}
        except NonFiniteError as error:
            path = self.run.directory.save_rows(step, error.calls)
            error.add_note(f"step {step}, policy {policy}: the rows are saved in {path}")
            raise

    def call_back(self, row: MetricRow) -> MetricRow:
        """Run the callbacks, apply their changes and return the metrics that they log."""
        run, state = self.run, self.run.state
        scales = {name: learner.lr_scale for name, learner in run.learners.items()}

        def call() -> tuple[MetricRow, str, dict[str, float]]:
            logged, halted, now = MetricRow(), state.halted, scales
            for callback in run.plan.hooks.callbacks:
                control = StepControl(state.step, row | logged, state.history, run.config, now)
                callback(control)
                logged |= control.logged
                halted, now = halted or control.stopped, control.scales
            return logged, halted, now

        logged, state.halted, scales = run.backend.once(call)
        for name, factor in scales.items():
            run.learners[name].lr_scale = factor
        return logged

    def react(self, row: MetricRow) -> MetricRow:
        """Tell of falls that an evaluation shows, and do what `on_collapse` says of them."""
        run, config = self.run, self.run.config
        alarms = run.state.watch.add(row)
        if not alarms:
            return {}
        logged: MetricRow = {}
        action = ""
        if config.on_collapse == "rollback" and run.state.step < config.steps:
            logged[ROLLBACK], policies = self._roll_back(alarms)
            action = (
                f"; back to the weights of step {logged[ROLLBACK]}, and the rate of "
                f"{', '.join(policies)} times {SLOWER:g}"
            )
        events = [alarm.as_event() for alarm in alarms]
        for event in events:
            event["text"] += action
            if run.backend.writes:
                logger.warning("%s", event["text"])
                if config.alert:
                    send_alert(config.alert, {"run": str(run.directory.root), **event})
        return {EVENTS: events, **logged}

    def _roll_back(self, alarms: Sequence[FallAlarm]) -> tuple[int, list[str]]:
        """Load the best checkpoint, and slow the policies of the role that fell down."""
        run = self.run
        role = next((alarm.role for alarm in alarms if alarm.role), run.state.watch.suspect())
        fallen = {name for key, name in run.plan.policies.items() if role_of(key) == role}
        slowed = [name for name in run.learners if name in fallen] or list(run.learners)
        scales = {name: learner.lr_scale for name, learner in run.learners.items()}
        root = run.directory.checkpoints
        best = run.backend.once(lambda: first_intact(by_score(checkpoints(root))))
        if best is None:
            raise DataError(f"{root} has no intact checkpoint with a score to roll back to")
        step = checkpoint.load(best.path, run.learners, run.backend).step
        for name, scale in scales.items():
            run.learners[name].lr_scale = scale * (SLOWER if name in slowed else 1.0)
        run.engines.sync(True)
        run.backend.publish(run.learners)
        run.state.watch.restart()
        return step, slowed

    def evaluate(self, step: int) -> MetricRow:
        """Evaluate on the held-out problems, with the same noise every time."""
        run = self.run
        # Evaluations have the newest weights.
        if not run.batches.independent:
            run.batches.settle()
        proof = run.engines.prove()
        records = run.evaluation.play(self.eval_policy_map)
        run.directory.save_transcripts("eval", step, records)
        row = evaluation_metrics(records, run.evaluation.names)
        if step == 0:
            replies = replies_of(call for record in records for call in record.calls)
            self._tell(start_alarms(row, vars(run.config), replies, 1.0))
        for evaluation in run.eval_sets:
            records = evaluation.play(self.eval_policy_map)
            run.directory.save_transcripts(f"set-{evaluation.name}", step, records)
            row |= of_set(evaluation_metrics(records, evaluation.names), evaluation.name)
        return proof | row

    def swaps(self) -> list[SwapRow]:
        """Repeat the last evaluation with each pair of roles' policies exchanged."""
        before = self.run.state.evaluations[-1]["eval/scores"]
        return swapped_scores(self.run.plan, self.run.evaluation, before)

    @property
    def eval_policy_map(self) -> PolicyMap:
        """Policies by role, with the sampling and the lengths of evaluations."""
        return self.run.plan.make_policy_map(
            self.run.engines.eval_policies, self.run.plan.eval_budgets
        )

    @property
    def notes(self) -> list[str]:
        """Notes on how the policies are trained."""
        return [*self.run.plan.notes, *learner_notes(self.run.learners)]

    # -- records -------------------------------------------------------------------------------

    def save(self, step: int, score: float | None) -> None:
        """Write a checkpoint."""
        run = self.run
        # Batches under way are part of the checkpoint, so they must be complete.
        run.batches.settle()
        with GRACE.pause():  # the step has ended in time
            run.state.save(run.directory, run.backend, step, score, run.batches.ready)
        self._losses = 0

    def summary(self) -> MetricRow:
        """First, best and last evaluation, and the paired gain of the last over step 0."""
        protocol = self.run.evaluation.protocol(self.eval_policy_map)
        return self.run.state.summary(self.run.plan, protocol)

    def close(self) -> None:
        """End the engines, close the files, unlock the directory; `train` calls it at its end."""
        self.run.close()

    def _tell(self, causes: Iterable[Alarm]) -> None:
        for cause in causes if self.run.backend.writes else ():
            if cause.cause not in self._warned:
                self._warned.add(cause.cause)
                logger.warning(cause.text)

    def _open_again(self, lost: FlowzooError) -> None:
        """Continue from the last checkpoint, as the same command would in another process."""
        self._mark = None
        self.close()
        while True:
            self._losses += 1
            if self._losses > MOST_LOSSES:
                raise lost
            logger.warning("%s; this run goes on by itself (loss %d)", lost, self._losses)
            try:
                self.run = self.run.reopen()
                return
            except (LearnersLostError, NoRoomError) as again:
                lost = again
            time.sleep(AGAIN_S)


def train(
    config: TrainConfig, on_step: Callable[[MetricRow], None] = lambda row: None
) -> MetricRow:
    """Train with `config`, resume an earlier run in its directory, and return the summary."""
    return Trainer(start_run(config)).train(on_step)
