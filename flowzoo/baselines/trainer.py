"""The baseline trainer: multi-agent RL over any workflow, with any map from roles to policies.

One iteration, `Trainer.iterate`: draw problems, play them (`samples` episodes each, or a tree of
candidates), give every reply an advantage within its group, take the optimiser steps of every
policy, give the engines the new weights. `algorithm` names the groups, the sampling and the loss;
`flowzoo algorithms` prints every choice of every one of them, and
`flowzoo.baselines.settings.algorithms` says how each differs from its paper and from that paper's
released code. In short:

* `grpo`: (R - mean) / std over the episodes of a problem, for every call of the episode. The paper
  (arXiv 2402.03300) has one call an episode and a KL term.
* `dr_grpo`: without the std; token sums over a constant (arXiv 2503.20783).
* `dr_mas`: mean and std per problem *and role*, over that role's calls (arXiv 2602.08847); a group
  of one gets 0, not its raw reward as in the released code.
* `at_grpo`: candidates of one prompt are the group, the best is executed and the next agent is
  prompted from its branch (arXiv 2510.11062; the released code finds groups by dividing indices).
* `magrpo`, `magrpo_tree`: return to go per problem, role and turn, or per node of a tree; no ratio
  and no clip (arXiv 2508.04652; the library adds up combinations where this averages).
* `paper`: what the code of arXiv 2605.24202 does, group by trajectory name and raw singletons.

Different from most released trainers, for all of these: end-of-turn tokens are trained and pads
never are (masks come from the sampler), old log-probs are those the sampler recorded, groups are
full key tuples, replies cut off by the length limit are masked and counted, a non-finite loss stops
the run with its rows saved, and a reply that abstained is not paid for its team's success (under
the strict preset its own value is 0 in its group). A killed run continues from its last checkpoint
with the same numbers.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, replace

import torch

from flowzoo.agents.problems import ProblemStream, distinct_problems
from flowzoo.agents.rollout.episodes import RolloutBatch, Sampler
from flowzoo.baselines import ahead
from flowzoo.baselines.advantages.compute import RunningMean
from flowzoo.baselines.assemble import (
    learner_notes,
    make_learners,
    make_sampler,
    open_engines,
    trainable,
)
from flowzoo.baselines.backends.backend import LearnersLostError
from flowzoo.baselines.backends.choose import open_backend
from flowzoo.baselines.backends.plays import PlayPlan, players_of
from flowzoo.baselines.diagnostics.forms import form_metrics
from flowzoo.baselines.diagnostics.probe import probe_metrics, slot_grams
from flowzoo.baselines.diagnostics.silence import silence_record, silences
from flowzoo.baselines.diagnostics.swap import swap_probe
from flowzoo.baselines.engines.evaluation import Evaluation
from flowzoo.baselines.engines.hf import load_policies
from flowzoo.baselines.grader import WORKER_GRADER
from flowzoo.baselines.hooks import StepControl
from flowzoo.baselines.learner.loss import NonFiniteError
from flowzoo.baselines.learner.update import Learner
from flowzoo.baselines.metrics import (
    MetricRow,
    advantage_metrics,
    evaluation_metrics,
    progress,
    role_metrics,
    spike,
)
from flowzoo.baselines.plan import resolve
from flowzoo.baselines.player import WORKER_PLAYER
from flowzoo.baselines.problems.filters import FilterConfig, FilteredBatch, gather
from flowzoo.baselines.problems.judge import informative_jobs
from flowzoo.baselines.rank import WORKER_LEARNERS
from flowzoo.baselines.run import checkpoint
from flowzoo.baselines.run.directory import RunDirectory
from flowzoo.baselines.run.follower import RunFollower
from flowzoo.baselines.run.history import earlier_run
from flowzoo.baselines.run.metric_logger import MetricLogger, check_loggers
from flowzoo.baselines.run.retention import CheckpointRetention
from flowzoo.baselines.run.stopping import stop_reason
from flowzoo.baselines.settings.config import TrainConfig
from flowzoo.envs import Call, Workflow
from flowzoo.seeding import key_int

logger = logging.getLogger("flowzoo")

MOST_LOSSES = 3
"""How often in a row learners may be lost without a checkpoint in between."""


class Trainer:
    """One run. `train(config)` is the usual way in.

    Raises:
        UsageError: unknown names in the settings, settings that exclude one another, a role without
            a policy, or a run directory that belongs to other settings.
        DataError: what the run directory holds is damaged, and no checkpoint can mend it.
    """

    def __init__(self, config: TrainConfig, *, restart: bool = False) -> None:
        """Load the models and open the run directory; resumes from its last intact checkpoint.

        With `restart` what is there is moved aside, and a new run begins.
        """
        self._told: set[str] = set()
        self._losses = 0
        self._open(config, restart)

    def _open(self, config: TrainConfig, restart: bool) -> None:
        """See `__init__`, and `_open_again`."""
        self._asked = config
        if config.threads:
            torch.set_num_threads(config.threads)
        earlier = None if restart else earlier_run(config.directory)
        before = earlier.settings if earlier else None
        self.plan = resolve(config.settled(before), before)
        self.config = config = self.plan.config
        self.workflow = self.plan.workflow
        check_loggers(config)
        self.backend = open_backend(config, WORKER_PLAYER, WORKER_LEARNERS, WORKER_GRADER)
        task = self.workflow.task
        held_out = distinct_problems(task, config.eval_split, config.eval_problems)
        self.stream = ProblemStream(config.split, config.seed, trainable(config, task))
        # Beside learner workers this process neither learns nor plays, and keeps shapes alone.
        own = replace(config, device="meta") if config.learner_workers else config
        self.trained = load_policies(own, self.plan.names, task.name, config.frozen)
        self.learners = self.backend.join(lambda: make_learners(self.trained, self.plan.learners))
        self.baselines = RunningMean()
        self.run = self._open_run(restart)
        self.step, self.history, self.tokens, self.seconds = -1, [], 0, 0.0
        self.halted = ""
        """Why a callback ended the run, or nothing."""
        shard_jobs = config.shard_jobs or 0
        with ExitStack() as opened:  # closed again if a later part fails
            opened.callback(self.backend.close)
            opened.callback(self.run.close)
            resumed = self._resume()
            here = {name: one for name, one in self.learners.items() if isinstance(one, Learner)}
            self.engines = open_engines(
                config, self.trained, here, held_out, self.plan.budgets.reply
            )
            self.batches = ahead.StepSampler(
                self.draw, self.engines, self.stream, self.baselines, self._versions,
                self.backend, shard_jobs,
            )  # fmt: skip
            self.batches.ready.extend(resumed)
            opened.callback(self.batches.close)
            opened.callback(self.backend.stop)  # first, so that nothing is waited for
            opened.callback(self.engines.close)
            self.evaluation = Evaluation(
                self.workflow, held_out, self.engines, config.deterministic, self.run.failures,
                config.eval_samples, self.backend, shard_jobs,
            )  # fmt: skip
            self.engines.sync()
            self.backend.publish(self.learners)
            self.board = (
                self.run
                if isinstance(self.run, RunFollower)
                else MetricLogger(self.run.root, config, self.step, self.history)
            )
            opened.callback(self.board.close)
            self._opened = opened.pop_all()

    # -- the loop ------------------------------------------------------------------------------

    def train(self, on_step: Callable[[MetricRow], None] = lambda row: None) -> MetricRow:
        """Run to the last step and return the summary; `on_step` sees every row of metrics.

        Learners of other processes that are lost cost the steps since the last checkpoint, which
        are done again. Whatever happens, engines and files are closed at the end.
        """
        started = time.perf_counter() - self.seconds
        try:
            while not self.finished:
                try:
                    row = self._advance(self.step + 1, started)
                except LearnersLostError as lost:
                    self._open_again(lost)
                    started = time.perf_counter() - self.seconds
                else:
                    on_step(row)
            summary = self.summary()
            if self.config.swap_probe:
                summary["swaps"] = self.swaps()
        finally:
            self.close()
        self.run.save_summary(summary)
        return summary

    @property
    def finished(self) -> bool:
        """Whether the last step was the last."""
        return self._ends(self.history)

    @property
    def stopped(self) -> str:
        """Why the run ends before its last step, or nothing."""
        return self._stop_reason(self.history)

    def _ends(self, rows: Sequence[MetricRow]) -> bool:
        """Whether `rows`, those of all steps so far, are those of the whole run."""
        budget = self.config.token_budget
        spent = 0 < budget <= self.tokens and self.step >= 0
        return self.step >= self.config.steps or spent or bool(self._stop_reason(rows))

    def _stop_reason(self, rows: Sequence[MetricRow]) -> str:
        config = self.config
        return self.halted or stop_reason(
            rows, config.stop_patience, config.stop_at, config.stop_on
        )

    def _advance(self, step: int, started: float) -> MetricRow:
        """Do `step`, and log and save what is due."""
        config = self.config
        row: MetricRow = {"step": step}
        if step > 0:
            row |= self.iterate(step)
        self.step = step
        if step == 0 or self.finished or config.evaluates(step):
            row |= self.evaluate(step)
        row |= self.call_back(row)
        if self.finished and "eval/scores" not in row:  # a callback has ended the run
            row |= self.evaluate(step)
        row["tokens/total"] = self.tokens
        self.seconds = time.perf_counter() - started
        row["time/total"] = self.seconds
        self.run.log(row)
        self.board.add(row)
        self.history.append(row)
        self._warn()
        listed = step in config.eval_at
        if step == 0 or self.finished or listed or step % config.checkpoint_every == 0:
            self.save(step, row.get("eval/reward/mean"))
        return row

    def iterate(self, step: int) -> MetricRow:
        """One iteration: rollouts, advantages, the optimiser steps of every policy."""
        config, plan = self.config, self.plan
        began = time.perf_counter()
        batch = self.batches.take(step)
        self.engines.before_learning()
        sampled_at = time.perf_counter()
        gathered, sampled = batch.gathered, batch.gathered.sampled
        row: MetricRow = {f"version/{name}": steps for name, steps in batch.versions.items()}
        if config.max_staleness:
            now = self._versions()
            row |= {f"staleness/{name}": now[name] - batch.versions[name] for name in now}
        advantages = plan.judge(sampled, self.baselines)
        # Not before: what is drawn may depend on the running means.
        self.batches.run_ahead(step, min(step + config.max_staleness, config.steps))
        played = [call for record in sampled.records for call in record.calls]
        row |= role_metrics(sampled.records) | form_metrics(played)
        row |= advantage_metrics(advantages, sampled.rows) | plan.curriculum.metrics(step)
        if config.refill:
            row |= gathered.counts
        for name in self.learners:
            mine = [
                place
                for place, call in enumerate(sampled.rows)
                if call.policy == name and gathered.trains(call)
            ]
            calls = [sampled.rows[place] for place in mine]
            learned = self.update(step, name, calls, advantages.values[mine].tolist())
            row |= {f"{key}/{name}": value for key, value in learned.items()}
            if "learn/grad_norm" in learned:
                norm = f"learn/grad_norm/{name}"
                earlier = [past[norm] for past in self.history if norm in past]
                row[f"grad/spike/{name}"] = float(spike(learned["learn/grad_norm"], earlier))
        learned_at = time.perf_counter()
        self.batches.wait()
        idle_at = time.perf_counter()
        row |= self.engines.sync() | self.backend.publish(self.learners)
        tokens = sum(len(call.output_ids) for call in sampled.rows) + sampled.value_tokens
        self.tokens += tokens
        if plan.algorithm.sampling == "tree":
            row["tree/value_calls"] = sampled.value_calls
            row["tree/value_tokens"] = sampled.value_tokens
        row["time/rollout"], row["time/learn"] = batch.seconds, learned_at - sampled_at
        if config.max_staleness:
            row["time/wait"] = idle_at - learned_at
        row["perf/tok_s"] = tokens / (time.perf_counter() - began)
        if step % config.transcripts_every == 0:
            self.run.save_transcripts("train", step, sampled.records)
        return row

    def draw(self, step: int, play: ahead.PlayStep, means: RunningMean) -> FilteredBatch:
        """Draw the problems of `step` and play them; `play` is given the sampler and the jobs.

        What `--refill` puts back is found by `means`, which stay as they are.
        """
        config, plan = self.config, self.plan
        workflow = plan.curriculum.at(step)
        sampler = self.sampler(workflow, key_int("train", config.seed, step))
        said = PlayPlan("train", players_of(sampler.roster), step)
        return gather(
            self.stream,
            workflow.task,
            lambda jobs: play(said, sampler, jobs),
            FilterConfig("drop" if config.refill else "keep", config.refill),
            problems=config.problems,
            samples=plan.samples,
            informative=lambda sampled: self.informative(sampled, means),
        )

    def informative(self, sampled: RolloutBatch, means: RunningMean) -> set[str]:
        """Keys of the jobs that some policy would learn from; `means` stay as they are."""
        values = self.plan.judge(sampled, means.copy()).values
        return informative_jobs(sampled.rows, values, self.plan.learners)

    def update(
        self, step: int, policy: str, calls: Sequence[Call], advantages: Sequence[float]
    ) -> MetricRow:
        """One learner's iteration; the rows of a non-finite loss are saved before it stops."""
        every, learner = self.config.probe_every, self.learners[policy]
        try:
            probed = {}
            if every and (step - 1) % every == 0:
                probed = probe_metrics(learner.apply(slot_grams, calls, advantages))
            return probed | learner.update(calls, advantages)
        except NonFiniteError as error:
            path = self.run.save_rows(step, error.calls)
            error.add_note(f"step {step}, policy {policy}: the rows are saved in {path}")
            raise

    def call_back(self, row: MetricRow) -> MetricRow:
        """Show the step to the callbacks, and do what they say; returns what they log."""
        scales = {name: learner.lr_scale for name, learner in self.learners.items()}

        def call() -> tuple[MetricRow, str, dict[str, float]]:
            logged, halted, now = MetricRow(), self.halted, scales
            for callback in self.plan.hooks.callbacks:
                control = StepControl(self.step, row | logged, self.history, self.config, now)
                callback(control)
                logged |= control.logged
                halted, now = halted or control.stopped, control.scales
            return logged, halted, now

        logged, self.halted, scales = self.backend.once(call)
        for name, factor in scales.items():
            self.learners[name].lr_scale = factor
        return logged

    def evaluate(self, step: int) -> MetricRow:
        """Accuracy on the held-out problems; the noise is the same at every evaluation."""
        self.batches.settle()
        records = self.evaluation.play(self.plan.roster(self.engines.judges))
        self.run.save_transcripts("eval", step, records)
        return evaluation_metrics(records)

    def swaps(self) -> list[MetricRow]:
        """What the last evaluation comes to with the policies of two roles exchanged."""
        return swap_probe(
            self.evaluation.play,
            self.workflow.role_counts(),
            self.plan.policies,
            self.engines.judges,
            self.plan.budgets.roles,
            before=self._evaluations()[-1]["eval/scores"],
        )

    @property
    def notes(self) -> list[str]:
        """What is to be said about how the policies are trained, each once."""
        return [*self.plan.notes, *learner_notes(self.learners)]

    # -- records -------------------------------------------------------------------------------

    def save(self, step: int, score: float | None) -> None:
        """Write a checkpoint."""
        config = self.config
        self.batches.settle()
        sampled = self.batches.ready
        state = {
            "tokens": self.tokens,
            "seconds": self.seconds,
            "cursor": self.stream.cursor,
            "baselines": self.baselines.state_dict(),
            "halted": self.halted,
            "config": asdict(config),
        }
        checkpoint.save(
            self.run.checkpoints,
            step,
            self.learners,
            {name: one.tokenizer for name, one in self.trained.items()},
            state=state,
            score=score,
            keep=CheckpointRetention(config.keep_last, every=config.keep_every),
            frozen={name: one.path for name, one in self.trained.items() if one.frozen},
            texts={ahead.FILE: ahead.to_text(sampled)} if sampled else {},
            metrics=self.history,
            backend=self.backend,
        )
        self._losses = 0

    def summary(self) -> MetricRow:
        """First, best and last evaluation, and the paired gain of the last over step 0."""
        config = self.config
        return {
            "workflow": self.workflow.name,
            "task": self.workflow.task.name,
            "policies": self.plan.policies,
            "algorithm": config.algorithm,
            "seed": config.seed,
            "protocol": self.evaluation.protocol(self.plan.roster(self.engines.judges)),
            **progress(self._evaluations(), config.eval_samples),
            "stopped": self.stopped,
            "training_tokens": self.tokens,
            "updates": sum(learner.steps for learner in self.learners.values()),
            "policy_updates": {name: one.steps for name, one in self.learners.items()},
            "minutes": self.seconds / 60,
            "warnings": silence_record(self.history, vars(config)),
        }

    def close(self) -> None:
        """End the engines, close the files, let others have the directory; `train` does it."""
        self._opened.close()

    def _warn(self) -> None:
        """Say at once why nothing is learnt; every cause once in a process."""
        for one in silences(self.history, vars(self.config)) if self.backend.writes else ():
            if one.cause not in self._told:
                self._told.add(one.cause)
                logger.warning(one.text)

    # -- parts ---------------------------------------------------------------------------------

    def _open_again(self, lost: LearnersLostError) -> None:
        """Go on from the last checkpoint, as the same command would in another process."""
        self._losses += 1
        if self._losses > MOST_LOSSES:
            raise lost
        logger.warning("%s, and this one does so by itself", lost)
        self.close()
        self._open(self._asked, restart=False)

    def _evaluations(self) -> list[MetricRow]:
        """The rows of metrics that have an evaluation."""
        return [row for row in self.history if "eval/scores" in row]

    def _versions(self) -> dict[str, int]:
        """Policy -> optimiser steps so far."""
        return {name: learner.steps for name, learner in self.learners.items()}

    def _open_run(self, anew: bool) -> RunDirectory | RunFollower:
        """The run directory where this process writes it, else what stands in its place."""
        config, opened = self.config, list[RunDirectory]()

        def open_it() -> None:
            graded_with = self.backend.grading(self.workflow.grading)
            opened.append(RunDirectory(config, graded_with, self.plan.hooks.record(), anew=anew))

        self.backend.once(open_it)
        return opened[0] if opened else RunFollower(config.directory)

    def _resume(self) -> list[ahead.SampledStep]:
        """Go on from the last checkpoint; returns the batches that it was saved with."""
        sampled: list[ahead.SampledStep] = []
        found, damaged = checkpoint.recover(self.run.checkpoints, self.learners, self.backend)
        if found is not None:
            self.step = found.step
            self.tokens = found.state["tokens"]
            self.seconds = found.state["seconds"]
            self.stream.cursor = found.state["cursor"]
            self.baselines.load_state_dict(found.state["baselines"])
            self.halted = found.state.get("halted", "")  # callbacks came later
            sampled = ahead.read(found.path)

        def begin() -> list[MetricRow]:
            assert isinstance(self.run, RunDirectory)
            return self.run.begin(found, damaged, finished=self._ends)

        self.history = self.backend.once(begin)
        return sampled

    def sampler(self, workflow: Workflow, seed: int) -> Sampler:
        """What plays training episodes of `workflow`; `seed` starts every request's key."""
        roster = self.plan.roster(self.engines.players)
        return make_sampler(
            self.config, self.plan.algorithm, workflow, roster, seed=seed,
            failures=self.run.failures,
        )  # fmt: skip


def train(
    config: TrainConfig, on_step: Callable[[MetricRow], None] = lambda row: None
) -> MetricRow:
    """Train as `config` says, resuming what an earlier process began; returns the summary."""
    return Trainer(config).train(on_step)
