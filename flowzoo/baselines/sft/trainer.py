"""The loop of a warm start: cross-entropy of recorded replies, by the learner that RL uses.

With advantage 1 and without a ratio the policy gradient is the gradient of the cross-entropy. The
loss of a step is the mean over its reply tokens, however it is cut into microbatches; every policy
goes through its own replies, so one with fewer is done earlier.
"""

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, fields, replace
from typing import Any

from flowzoo.agents import PolicyMap
from flowzoo.agents.chat.template import read_thinking
from flowzoo.agents.hf.process import prepare_process
from flowzoo.agents.problems import distinct_problems
from flowzoo.aliases import MetricRow
from flowzoo.baselines.engines.hf import load_policies
from flowzoo.baselines.learner.config import ComputeOptions, LearnerConfig, LossConfig
from flowzoo.baselines.learner.update import Learner
from flowzoo.baselines.learner.weights import Weights
from flowzoo.baselines.run import checkpoint
from flowzoo.baselines.run.checkpoint import CheckpointRetention, seed_random
from flowzoo.baselines.run.directory import RunDirectory, earlier_run
from flowzoo.baselines.run.export import EXPORTED, export_policy
from flowzoo.baselines.run.manifest import find_checkpoint
from flowzoo.baselines.run.metric_logger import MetricLogger
from flowzoo.baselines.settings.algorithms import SUPERVISED
from flowzoo.baselines.settings.layers import LayeredConfig, fill_from_models
from flowzoo.baselines.settings.policies import values_of
from flowzoo.baselines.settings.preflight import outline_run
from flowzoo.baselines.settings.sft import SftConfig
from flowzoo.baselines.sft.choose import SftCounts, check_rows, read_transcripts, rows_digest
from flowzoo.baselines.sft.rows import RowMaker, RowTokenizer
from flowzoo.baselines.stats import paired_gain
from flowzoo.baselines.training.build import find_models
from flowzoo.baselines.training.evaluation import Evaluation
from flowzoo.baselines.training.factories import learner_notes, make_learners, open_engines
from flowzoo.baselines.training.metrics import evaluation_metrics, pay_summary
from flowzoo.baselines.training.plan import Replies, token_budgets
from flowzoo.envs import Call, Problem
from flowzoo.errors import UsageError
from flowzoo.files import read_json
from flowzoo.seeding import key_rng

LEARNER_METRICS = ("learn/loss", "learn/grad_norm", "learn/trained_entropy", "learn/lr",
                   "learn/rows", "learn/tokens")  # fmt: skip
"""Metrics of the learner that do not depend on a sampler's log-probs."""
_SMALL, _SMALL_ADAPTED = 10_000_000, 400_000_000
"""Parameters below which a model, or one under an adapter, has the pocket models' rate."""
SAVE_S = 120.0
"""Seconds after a checkpoint at which the next is due."""
SAVE_SHARE = 0.1
"""Largest share of a run's time for such checkpoints, a limit for large models."""


class SupervisedTrainer:
    """One warm start, resumed from the last checkpoint in its directory.

    With `restart` an earlier run there is moved aside, and a new one begins.
    """

    def __init__(
        self, config: SftConfig, *, restart: bool = False, accept_base: bool = False
    ) -> None:
        prepare_process(config.threads)
        settings = replace(config.run_settings(), examples=config.examples or 0)
        outline = outline_run(settings, warm_start=True)
        self.workflow, self.roles = outline.workflow, outline.roles
        self.policies, task = outline.policies, outline.workflow.task
        layered = LayeredConfig(outline.config)
        settings = fill_from_models(layered, outline.models, task.reply_tokens).config
        names = ["prompts", "examples", "engine_dtype", "compute"]
        names += ["eval_problems"] if config.eval_problems is None else []
        filled: dict[str, Any] = {name: getattr(settings, name) for name in names}
        self.config = config = replace(config, **filled)
        self.budgets = token_budgets(settings, self.roles, settings.max_tokens)
        self.problems: Sequence[Problem] = []
        if count := config.eval_problems:
            self.problems = distinct_problems(
                task, config.eval_split, count, option="--eval-problems"
            )
        self.counts = SftCounts()
        taught, measured = read_transcripts(config, self.workflow, self.problems, self.counts)
        earlier = None if restart else earlier_run(config.directory)
        models = find_models(settings, outline.models, task.name, earlier, accept_base)
        self.trained = load_policies(settings, models)
        thinking, most = read_thinking(config.thinking, self.trained), config.max_length
        maker = RowMaker(self.roles, self.policies, {
            name: RowTokenizer.of(policy.weights.model, policy.tokenizer, thinking[name], most)
            for name, policy in self.trained.items()
            if not policy.frozen
        })  # fmt: skip
        self.rows = maker.rows(taught, config.replies, self.counts)
        self.held_out = maker.rows(measured, config.replies, SftCounts())
        self.counts.trained = sum(map(len, self.rows.values()))
        self.counts.held_out = sum(map(len, self.held_out.values()))
        check_rows(self.rows, self.counts, config)
        configs = {
            name: sft_learner_config(config, name, self.trained[name].weights, self.steps_of(name))
            for name in self.rows
        }
        self.learners = make_learners(self.trained, configs)
        self.run = RunDirectory(config, self.workflow.grading(), anew=restart)
        self.step, self.history, self.seconds = -1, list[MetricRow](), 0.0
        self._save_clock = SaveClock()
        with ExitStack() as opened:  # closed again if a later part fails
            opened.callback(self.run.close)
            # Before the engines, which take the loaded weights.
            self._resume()
            self.engines = open_engines(
                settings, self.trained, self.learners, self.problems,
                Replies(self.budgets.reply, self.budgets.reply),
            )  # fmt: skip
            opened.callback(self.engines.close)
            self.evaluation = Evaluation(
                self.workflow, self.problems, self.engines, True, self.run.failures
            )
            self.board = MetricLogger(self.run.root, settings, self.step, self.history)
            opened.callback(self.board.close)
            self.close = opened.pop_all().close

    # -- the loop ------------------------------------------------------------------------------

    @property
    def epoch_steps(self) -> int:
        """Steps of an epoch of the policy with most replies."""
        return max(self.steps_of(name) for name in self.rows) // self.config.epochs

    def steps_of(self, policy: str) -> int:
        """Optimizer steps of a policy, over all epochs."""
        return self.config.epochs * math.ceil(len(self.rows[policy]) / self.config.batch)

    @property
    def steps(self) -> int:
        """Steps of the policy with most replies."""
        return self.config.epochs * self.epoch_steps

    @property
    def stopped(self) -> str:
        """Reason why the run ends before its last step, or empty."""
        return rise_of_losses(self.history, self.config.stop_patience)

    @property
    def finished(self) -> bool:
        """True if no step is left."""
        return self._ends(self.history)

    def _ends(self, rows: Sequence[MetricRow]) -> bool:
        return self.step >= self.steps or bool(rise_of_losses(rows, self.config.stop_patience))

    def train(self, on_step: Callable[[MetricRow], None] = lambda row: None) -> MetricRow:
        """Run to the last step, write the models, and return the summary.

        `on_step` sees every row of metrics.
        """
        started = time.perf_counter() - self.seconds
        try:
            while not self.finished:
                on_step(self._advance(self.step + 1, started))
            summary = self.summary() | {"models": self.write_models()}
        finally:
            self.close()
        self.run.save_summary(summary)
        return summary

    def _advance(self, step: int, started: float) -> MetricRow:
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
        """Take one optimizer step of every policy that is not done."""
        row: MetricRow = {}
        for name, learner in self.learners.items():
            calls = self.batch(name, step)
            if calls:
                metrics = learner.update(calls, [1.0] * len(calls))
                row |= {f"{key}/{name}": metrics[key] for key in LEARNER_METRICS}
        return row

    def batch(self, policy: str, step: int) -> list[Call]:
        """Return the replies that a policy learns from at `step`; none after its last epoch."""
        rows, size = self.rows[policy], self.config.batch
        epoch, index = divmod(step - 1, math.ceil(len(rows) / size))
        if epoch >= self.config.epochs:
            return []
        # A function of seed and step, so that a resumed run has the same order.
        order = list(range(len(rows)))
        key_rng("sft", self.config.seed, policy, epoch).shuffle(order)
        return [rows[row] for row in order[index * size : (index + 1) * size]]

    def evaluate(self, step: int) -> MetricRow:
        """Measure held-out losses, nats a token, and the accuracy on the held-out problems."""
        row = measure_losses(self.learners, self.held_out)
        if self.problems:
            self.engines.sync()
            records = self.evaluation.play(self._policy_map())
            self.run.save_transcripts("eval", step, records)
            row |= evaluation_metrics(records, self.evaluation.names)
        return row

    @property
    def notes(self) -> list[str]:
        """Notes on how the policies are trained, each once."""
        return learner_notes(self.learners)

    # -- records -------------------------------------------------------------------------------

    def save(self, step: int) -> None:
        """Write a checkpoint."""
        checkpoint.save(
            self.run.checkpoints,
            step,
            self.learners,
            {name: policy.tokenizer for name, policy in self.trained.items()},
            state={
                "seconds": self.seconds, "rows": rows_digest(self.rows),
                "config": asdict(self.config),
            },
            keep=CheckpointRetention(self.config.keep_last),
            score=-loss if (loss := held_out_losses(self.history).get(step)) is not None else None,
            models={name: policy.model for name, policy in self.trained.items()},
            marks=self.run.marks(),
        )  # fmt: skip

    def summary(self) -> MetricRow:
        """Counts of replies, and losses and accuracies before and after."""
        first, last = self.history[0], self.history[-1]
        summary: MetricRow = {
            "workflow": self.workflow.name,
            "task": self.workflow.task.name,
            "policies": self.policies,
            "algorithm": SUPERVISED,
            "seed": self.config.seed,
            "data": self.counts.plain(),
            "steps": self.step,
            "stopped": self.stopped,
            "policy_updates": {name: learner.steps for name, learner in self.learners.items()},
            "minutes": self.seconds / 60,
        }
        losses = held_out_losses(self.history)
        if losses:
            least = min(losses, key=losses.__getitem__)
            summary |= {
                "loss_before": losses[0], "loss_after": losses[self.step],
                "loss_least": losses[least], "least_step": least,
            }  # fmt: skip
        if self.problems:
            gain = paired_gain(first["eval/scores"], last["eval/scores"])
            summary |= {
                "accuracy_before": first["eval/reward/mean"],
                "accuracy_after": last["eval/reward/mean"],
                "gain": gain._asdict(),
                "protocol": self.evaluation.protocol(self._policy_map()),
                **pay_summary(first, last),
            }
        return summary

    def write_models(self) -> dict[str, str]:
        """Write the last weights of every policy as a model, with adapters merged.

        With `stop_patience` the weights of the lowest held-out loss are written.
        """
        folders: dict[str, str] = {}
        step = "best" if self.config.stop_patience else "last"
        written = find_checkpoint(self.run.root, step).step
        for name, policy in self.trained.items():
            folder = self.run.root / "models" / name
            if policy.frozen:
                continue
            # It appears whole, and a finished run is not written again, unless it went on.
            if folder.exists() and read_json(folder / EXPORTED)["step"] != written:
                self.run.aside.take(folder)
            if not folder.exists():
                merge = policy.weights.is_adapter
                export_policy(self.run.root, folder, policy=name, step=step, merge=merge)
            folders[name] = str(folder)
        return folders

    # -- parts ---------------------------------------------------------------------------------

    def _policy_map(self) -> PolicyMap:
        return PolicyMap.from_map(self.policies, self.engines.eval_policies, self.budgets.roles)

    def _resume(self) -> None:
        seed_random(self.config.seed)
        info, damaged = checkpoint.recover(self.run.checkpoints, self.learners)
        if info is not None:
            if info.state["rows"] != rows_digest(self.rows):
                raise UsageError(
                    f"{self.run.root} was trained on other replies than its sources hold now: "
                    "choose another --out, or put the transcripts back"
                )
            self.step, self.seconds = info.step, info.state["seconds"]
        self.history = self.run.begin(info, damaged, finished=self._ends)


def sft_learner_config(
    config: SftConfig, policy: str, weights: Weights, steps: int
) -> LearnerConfig:
    """Settings of the learner of a policy's `weights`, which takes `steps` steps in all."""
    values = values_of(config, policy)
    size = sum(parameter.numel() for parameter in weights.model.parameters())
    small = _SMALL_ADAPTED if weights.is_adapter else _SMALL
    # 2e-4 is what adapters on models of billions of weights take.
    usual = 1e-3 if size < small else 2e-4 if weights.is_adapter else 1e-5
    return LearnerConfig(
        loss=LossConfig(ratio="none", clip_low=None, clip_high=None, dual_clip=None),
        lr=config.lr or usual, schedule=config.schedule, warmup=int(config.warmup_share * steps),
        iterations=steps if config.schedule != "constant" else 0,
        weight_decay=config.weight_decay, truncated="train",
        **{
            field.name: values.get(field.name, getattr(config, field.name))
            for field in fields(ComputeOptions)
        },
    )  # fmt: skip


def rise_of_losses(rows: Sequence[MetricRow], patience: int) -> str:
    """Reason to end a run after `rows`, whose held-out loss no longer falls, or empty."""
    losses = held_out_losses(rows)
    if not patience or not losses:
        return ""
    least = min(losses, key=losses.__getitem__)
    waited = sum(step > least for step in losses)
    if waited < patience:
        return ""
    return (
        f"no held-out loss of the {waited} epochs since step {least} was below its "
        f"{losses[least]:.3f} (stop_patience {patience})"
    )


def held_out_losses(rows: Sequence[MetricRow]) -> dict[int, float]:
    """Mean held-out loss, nats a token, by step that was measured."""
    return {row["step"]: row["eval/loss/mean"] for row in rows if "eval/loss/mean" in row}


def measure_losses(
    learners: Mapping[str, Learner], held_out: Mapping[str, Sequence[Call]]
) -> MetricRow:
    """Measure `eval/loss/ROLE` and `eval/loss/mean`: cross-entropy of the held-out tokens."""
    sums: dict[str, list[float]] = {}
    for name, learner in learners.items():
        calls = held_out[name]
        for role in sorted({call.role for call in calls}):
            gaps = learner.gaps([call for call in calls if call.role == role]).double()
            loss = sums.setdefault(role, [0.0, 0.0])
            loss[0] += float(gaps.sum())
            loss[1] += gaps.numel()
    if not sums:
        return {}
    total, tokens = (sum(loss[part] for loss in sums.values()) for part in (0, 1))
    by_role = {f"eval/loss/{role}": loss[0] / loss[1] for role, loss in sums.items()}
    return by_role | {"eval/loss/mean": total / tokens}


class SaveClock:
    """Time since the last checkpoint. Saving draws no random number, so it changes no result."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._saved, self._cost = clock(), 0.0

    @property
    def due(self) -> bool:
        """True if a checkpoint is due."""
        return self._clock() - self._saved >= max(SAVE_S, self._cost / SAVE_SHARE)

    @contextmanager
    def saving(self) -> Iterator[None]:
        """Write a checkpoint within it."""
        began = self._clock()
        yield
        self._saved = self._clock()
        self._cost = self._saved - began
