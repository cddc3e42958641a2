"""The loop of a warm start: cross-entropy of recorded replies, by the learner that RL uses.

With advantage 1 and without a ratio the learner's policy gradient is the gradient of the
cross-entropy, so rows, packing, LoRA, clipping and checkpoints are those of training. Different
from most trainers: the loss of a step is the mean over the reply tokens of the whole step, however
it is cut into microbatches, and every policy goes through its own replies: one with fewer is done
earlier. Held-out losses and the accuracy of the workflow are measured before the first step and
after every epoch of the policy with most replies. A run that was stopped goes on from its last
checkpoint, which is minutes old (`flowzoo.baselines.run.save_clock`), with the same numbers.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, replace

import torch

from flowzoo.agents import PolicyMap
from flowzoo.agents.problems import distinct_problems
from flowzoo.baselines.engines.hf import load_policies
from flowzoo.baselines.run import checkpoint
from flowzoo.baselines.run.directory import RunDirectory
from flowzoo.baselines.run.export import export_policy
from flowzoo.baselines.run.metric_logger import MetricLogger
from flowzoo.baselines.run.random_state import seed_random
from flowzoo.baselines.run.retention import CheckpointRetention
from flowzoo.baselines.run.save_clock import SaveClock
from flowzoo.baselines.settings.model_defaults import settle
from flowzoo.baselines.settings.preflight import outline_run
from flowzoo.baselines.settings.sft import SftConfig
from flowzoo.baselines.sft.choose import SftCounts
from flowzoo.baselines.sft.learners import sft_learner_config
from flowzoo.baselines.sft.losses import held_out_losses, measure_losses, rise_of_losses
from flowzoo.baselines.sft.rows import row_maker
from flowzoo.baselines.sft.transcripts import check_rows, read_transcripts, rows_digest
from flowzoo.baselines.stats import paired_gain
from flowzoo.baselines.training.evaluation import Evaluation
from flowzoo.baselines.training.factories import learner_notes, make_learners, open_engines
from flowzoo.baselines.training.metrics import MetricRow, role_metrics
from flowzoo.baselines.training.plan import token_budgets
from flowzoo.envs import Call
from flowzoo.errors import UsageError
from flowzoo.seeding import key_rng

LEARNT = ("learn/loss", "learn/grad_norm", "learn/trained_entropy", "learn/lr", "learn/rows",
          "learn/tokens")  # fmt: skip
"""What of the learner's metrics says something without a sampler's log-probs."""


class SupervisedTrainer:
    """One warm start; `train` runs it to its end.

    Raises:
        UsageError: unknown names, nothing to learn from, transcripts of held-out problems, or a
            directory that belongs to other settings.
        DataError: what the directory holds is damaged, and no checkpoint can mend it.
    """

    def __init__(self, config: SftConfig, *, restart: bool = False) -> None:
        """Read the transcripts, load the models, open the directory; resumes from a checkpoint.

        With `restart` what is there is moved aside, and a new run begins.
        """
        if config.threads:
            torch.set_num_threads(config.threads)
        settings = replace(config.run_settings(), examples=config.examples or 0)
        outline = outline_run(settings, warm_start=True)
        self.workflow, self.roles = outline.workflow, outline.roles
        self.policies, names, task = outline.policies, outline.names, outline.workflow.task
        settings = settle(outline.config, names, task.reply_tokens).config
        self.config = config = replace(
            config,
            prompts=settings.prompts,
            examples=settings.examples,
            eval_problems=config.eval_problems
            if config.eval_problems is not None
            else settings.eval_problems,
            engine_dtype=settings.engine_dtype,
        )
        self.budgets = token_budgets(settings, self.roles)
        count = config.eval_problems
        self.problems = (
            distinct_problems(task, config.eval_split, count, option="--eval-problems")
            if count
            else []
        )
        self.counts = SftCounts()
        taught, measured = read_transcripts(config, self.workflow, self.problems, self.counts)
        self.trained = load_policies(settings, names, task.name, config.frozen)
        maker = row_maker(config, self.roles, self.policies, self.trained)
        self.rows = maker.rows(taught, config.replies, self.counts)
        self.held_out = maker.rows(measured, config.replies, SftCounts())
        self.counts.trained = sum(map(len, self.rows.values()))
        self.counts.held_out = sum(map(len, self.held_out.values()))
        check_rows(self.rows, self.counts, config)
        configs = {
            name: sft_learner_config(config, self.trained[name].weights, self.steps_of(name))
            for name in self.rows
        }
        self.learners = make_learners(self.trained, configs)
        self.run = RunDirectory(config, self.workflow.grading(), anew=restart)
        self.step, self.history, self.seconds = -1, list[MetricRow](), 0.0
        self._save_clock = SaveClock()
        with ExitStack() as opened:  # closed again if a later part fails
            opened.callback(self.run.close)
            self._resume()
            self.engines = open_engines(
                settings, self.trained, self.learners, self.problems, self.budgets.reply
            )
            opened.callback(self.engines.close)
            self.evaluation = Evaluation(
                self.workflow, self.problems, self.engines, True, self.run.failures
            )
            self.board = MetricLogger(self.run.root, settings, self.step, self.history)
            opened.callback(self.board.close)
            self._opened = opened.pop_all()

    # -- the loop ------------------------------------------------------------------------------

    @property
    def epoch_steps(self) -> int:
        """Steps of an epoch of the policy with most replies."""
        return max(self.steps_of(name) for name in self.rows) // self.config.epochs

    def steps_of(self, policy: str) -> int:
        """Optimiser steps of a policy, over all epochs."""
        return self.config.epochs * math.ceil(len(self.rows[policy]) / self.config.batch)

    @property
    def steps(self) -> int:
        """Steps of the policy with most replies."""
        return self.config.epochs * self.epoch_steps

    @property
    def stopped(self) -> str:
        """Why the run ends before its last step, or nothing."""
        return rise_of_losses(self.history, self.config.stop_patience)

    @property
    def finished(self) -> bool:
        """Whether the last step was the last."""
        return self._ends(self.history)

    def _ends(self, rows: Sequence[MetricRow]) -> bool:
        """Whether `rows`, those of all steps so far, are those of the whole run."""
        return self.step >= self.steps or bool(rise_of_losses(rows, self.config.stop_patience))

    def train(self, on_step: Callable[[MetricRow], None] = lambda row: None) -> MetricRow:
        """Run to the last step, write the models, and return the summary.

        Whatever happens, files are closed at the end; `on_step` sees every row of metrics.
        """
        started = time.perf_counter() - self.seconds
        try:
            while not self.finished:
                on_step(self._advance(self.step + 1, started))
            summary = self.summary() | {"models": self.write_models()}
        finally:
            self._opened.close()
        self.run.save_summary(summary)
        return summary

    def _advance(self, step: int, started: float) -> MetricRow:
        """Do `step`, and measure, log and save what is due."""
        row: MetricRow = {"step": step}
        if step > 0:
            row |= self.iterate(step)
        self.step = step
        due = step % self.epoch_steps == 0
        if due:
            row |= self.evaluate(step)
        self.seconds = time.perf_counter() - started
        row["time/total"] = self.seconds
        self.run.log(row)
        self.board.add(row)
        self.history.append(row)
        every = self.config.checkpoint_every
        if due or (every and step % every == 0) or self._save_clock.due:
            with self._save_clock.saving():
                self.save(step)
        return row

    def iterate(self, step: int) -> MetricRow:
        """One optimiser step of every policy that is not done."""
        row: MetricRow = {}
        for name, learner in self.learners.items():
            calls = self.batch(name, step)
            if calls:
                learnt = learner.update(calls, [1.0] * len(calls))
                row |= {f"{key}/{name}": learnt[key] for key in LEARNT}
        return row

    def batch(self, policy: str, step: int) -> list[Call]:
        """The replies that a policy learns from at `step`; none after its last epoch.

        A function of the seed and the step: every epoch goes through all replies in a new order.
        """
        rows, size = self.rows[policy], self.config.batch
        epoch, place = divmod(step - 1, math.ceil(len(rows) / size))
        if epoch >= self.config.epochs:
            return []
        order = list(range(len(rows)))
        key_rng("sft", self.config.seed, policy, epoch).shuffle(order)
        return [rows[idx] for idx in order[place * size : (place + 1) * size]]

    def evaluate(self, step: int) -> MetricRow:
        """Held-out losses, per token in nats, and the accuracy on the held-out problems."""
        row = measure_losses(self.learners, self.held_out)
        if self.problems:
            records = self.evaluation.play(self._policy_map())
            self.run.save_transcripts("eval", step, records)
            row |= role_metrics(records, "eval/")
            row["eval/scores"] = [record.score for record in records]
        return row

    @property
    def notes(self) -> list[str]:
        """What is to be said about how the policies are trained, each once."""
        return learner_notes(self.learners)

    # -- records -------------------------------------------------------------------------------

    def save(self, step: int) -> None:
        """Write a checkpoint."""
        checkpoint.save(
            self.run.checkpoints,
            step,
            self.learners,
            {name: one.tokenizer for name, one in self.trained.items()},
            state={
                "seconds": self.seconds, "rows": rows_digest(self.rows),
                "config": asdict(self.config),
            },
            keep=CheckpointRetention(self.config.keep_last),
            score=-loss if (loss := held_out_losses(self.history).get(step)) is not None else None,
            frozen={name: one.path for name, one in self.trained.items() if one.frozen},
            marks=self.run.marks(),
        )  # fmt: skip

    def summary(self) -> MetricRow:
        """What was learnt from, losses and accuracies before and after."""
        first, last = self.history[0], self.history[-1]
        found: MetricRow = {
            "workflow": self.workflow.name,
            "task": self.workflow.task.name,
            "policies": self.policies,
            "algorithm": "sft",
            "seed": self.config.seed,
            "data": self.counts.plain(),
            "steps": self.step,
            "stopped": self.stopped,
            "policy_updates": {name: one.steps for name, one in self.learners.items()},
            "minutes": self.seconds / 60,
        }
        losses = held_out_losses(self.history)
        if losses:
            least = min(losses, key=losses.__getitem__)
            found |= {
                "loss_before": losses[0], "loss_after": losses[self.step],
                "loss_least": losses[least], "least_step": least,
            }  # fmt: skip
        if self.problems:
            gain = paired_gain(first["eval/scores"], last["eval/scores"])
            found |= {
                "accuracy_before": first["eval/reward/mean"],
                "accuracy_after": last["eval/reward/mean"],
                "gain": gain._asdict(),
                "protocol": self.evaluation.protocol(self._policy_map()),
            }
        return found

    def write_models(self) -> dict[str, str]:
        """Write every policy's weights to a folder that loads as a model; adapters merged.

        The last ones, or with `stop_patience` those of the lowest held-out loss.
        """
        found: dict[str, str] = {}
        step = "best" if self.config.stop_patience else "last"
        for name, one in self.trained.items():
            folder = self.run.root / "models" / name
            if one.frozen:
                continue
            if not folder.exists():  # it appears whole, and a finished run is not written again
                merge = one.weights.is_adapter
                export_policy(self.run.root, folder, policy=name, step=step, merge=merge)
            found[name] = str(folder)
        return found

    # -- parts ---------------------------------------------------------------------------------

    def _policy_map(self) -> PolicyMap:
        return PolicyMap.from_map(self.policies, self.engines.eval_policies, self.budgets.roles)

    def _resume(self) -> None:
        seed_random(self.config.seed)
        found, damaged = checkpoint.recover(self.run.checkpoints, self.learners)
        if found is not None:
            if found.state["rows"] != rows_digest(self.rows):
                raise UsageError(
                    f"{self.run.root} was trained on other replies than its sources hold now: "
                    "choose another --out, or put the transcripts back"
                )
            self.step, self.seconds = found.step, found.state["seconds"]
        self.history = self.run.begin(found, damaged, finished=self._ends)


def warm_start(
    config: SftConfig, on_step: Callable[[MetricRow], None] = lambda row: None
) -> MetricRow:
    """Train as `config` says, resuming what an earlier process began; returns the summary."""
    return SupervisedTrainer(config).train(on_step)
