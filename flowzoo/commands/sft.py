"""`flowzoo sft`: a warm start of policies on recorded replies before RL training."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flowzoo.agents.evaluation.protocol import protocol_line
from flowzoo.agents.evaluation.summary import measure_name
from flowzoo.agents.problems import distinct_problems
from flowzoo.baselines.settings.file import arguments
from flowzoo.baselines.settings.sft import SftConfig
from flowzoo.commands.problems import grading_of
from flowzoo.commands.progress.shown import step_progress, to_stderr
from flowzoo.commands.progress.stopping import interruptible
from flowzoo.commands.shared import (
    check_start,
    held_out_line,
    pay_words,
    program_name,
    quiet_transformers,
)
from flowzoo.commands.train import kept_of_run

if TYPE_CHECKING:
    from flowzoo.baselines.sft.trainer import SupervisedTrainer

CARRIED = (
    "program", "task", "sandbox", "max_calls", "prompts", "system", "examples", "options",
    "sharing", "frozen", "lengths", "thinking",
    "lora_rank", "lora_alpha", "lora_targets", "max_tokens", "max_prompt", "max_batch", "seed",
    "threads", "device", "compute", "weights", "layout", "microbatch_tokens",
    "gradient_checkpointing", "optimizer", "eval_split", "eval_problems", "eval_temperature",
    "eval_top_p", "eval_top_k", "engine_dtype",
)  # fmt: skip
"""Settings of a warm start that are shared with the subsequent training."""


@dataclass(frozen=True, slots=True)
class Options:
    """Arguments of `flowzoo sft`."""

    settings: SftConfig = field(default_factory=lambda: SftConfig(workflow=""))
    restart: bool = False
    """Start again; the existing directory is renamed to NAME.1, NAME.2, …"""
    accept_base: bool = False
    """Go on although the model that the run began with has changed: with the tokenizer, chat
    template and end tokens of the run's checkpoint, on the new weights. It is recorded."""
    json: bool = False
    """Print the final summary as one JSON object instead of text."""


def run(options: Options) -> int:
    """Train and print the summary."""
    check_start("sft", options.settings)
    check_settings(options.settings)
    trainer: SupervisedTrainer | None = None
    root = options.settings.directory

    def kept() -> str:
        step, steps = (trainer.step, trainer.steps) if trainer else (None, None)
        return kept_of_run(root, step, steps, options.restart)

    with interruptible(kept):
        trainer = open_trainer(options)
        if trainer.step >= 0:
            print(f"resuming {trainer.run.root} after step {trainer.step}", flush=True)
        with step_progress(trainer.steps, trainer.step, step_note, evaluation_line) as on_step:
            summary = trainer.train(on_step)
    if options.json:
        print(json.dumps(summary))
    else:
        print_summary(summary, trainer.run.root, options.settings)
    return 0


def check_settings(config: SftConfig) -> None:
    """Reject invalid settings and numbers of problems before loading a model."""
    from flowzoo.baselines.settings.preflight import check_held_out, preflight
    from flowzoo.baselines.sft.sources import is_scripted, source_files

    settings = config.run_settings()
    task = preflight(settings, warm_start=True).workflow.task
    if config.eval_problems != 0:
        check_held_out(replace(settings, eval_problems=config.eval_problems), task)
    for word in (*config.source, *config.validation):
        source_files(word)
    if any(map(is_scripted, config.source)):
        distinct_problems(task, "train", config.n, option="--n")


def open_trainer(options: Options) -> SupervisedTrainer:
    """Open the trainer, and print the facts about its data."""
    quiet_transformers()
    from flowzoo.baselines.sft.trainer import SupervisedTrainer

    trainer = SupervisedTrainer(
        options.settings, restart=options.restart, accept_base=options.accept_base
    )
    grading_of(trainer.workflow)
    if not options.json:
        print_data(trainer.counts.plain())
    for note in trainer.notes:
        to_stderr(f"note: {note}")
    return trainer


def print_data(data: Mapping[str, Any]) -> None:
    """Print the used amount of transcripts, and skipped parts by reason."""
    print(f"episodes  {data['episodes']:,}, kept {data['kept']:,}{reasons(data['left_out'])}")
    left_out = reasons(data["replies_left_out"])
    print(f"replies   {data['replies']:,} in these, trained on {data['trained']:,}{left_out}")
    print(f"          {data['held_out']:,} held out")
    if data["compared"]:
        share = f"{data['as_sampled']:,} of {data['compared']:,}"
        print(f"          {share} have as many tokens as when they were sampled")


def reasons(counts: Mapping[str, int]) -> str:
    """Counts by reason in parentheses, the largest first; empty without any."""
    parts = sorted(((count, reason) for reason, count in counts.items() if count), reverse=True)
    return f" ({'; '.join(f'{count:,} {reason}' for count, reason in parts)})" if parts else ""


def print_summary(summary: Mapping[str, Any], root: Path, settings: SftConfig) -> None:
    """Print losses and accuracies before and after, and the paths of the models."""
    policies = ", ".join(f"{role} -> {name}" for role, name in summary["policies"].items())
    print(f"{summary['workflow']}, policies: {policies}")
    if "loss_before" in summary:
        losses = f"{summary['loss_before']:.3f} -> {summary['loss_after']:.3f}"
        print(f"held-out loss {losses} nats a token{overfitting_note(summary)}")
    if "gain" in summary:
        print(held_out_line(summary))
        print(f"measured on {protocol_line(summary['protocol'])}")
    print(f"{summary['steps']} steps, {summary['minutes']:.1f} minutes")
    if summary["stopped"]:
        print(f"ended early: {summary['stopped']}; the models are those of that step")
    print(f"metrics   {root / 'metrics.jsonl'} and {root / 'tensorboard'}")
    for name, folder in summary["models"].items():
        print(f"model     {folder} (policy {name})")
    line = [program_name(), *map(shlex.quote, train_words(settings, summary))]
    print(f"next      {' '.join(line)}")


def train_words(settings: SftConfig, summary: Mapping[str, Any]) -> list[str]:
    """Arguments of the command that continues with RL training."""
    models = {name: str(folder) for name, folder in summary["models"].items()}
    line = ["train", *([] if settings.program else [settings.workflow])]
    if len(models) == 1 and set(models) == set(summary["policies"].values()):
        line += ["--model", *models.values()]
    else:  # frozen policies are unchanged
        before = dict(word.split("=", 1) for word in settings.models)
        line += [] if settings.model == SftConfig.model else ["--model", settings.model]
        line += ["--models", *(f"{name}={path}" for name, path in {**before, **models}.items())]
    return [*line, *arguments(settings, CARRIED)]


def overfitting_note(summary: Mapping[str, object]) -> str:
    """A remark if the held-out loss has risen again."""
    if summary["least_step"] == summary["steps"] or summary["stopped"]:
        return ""
    return (
        f"; it was lowest, {summary['loss_least']:.3f}, at step {summary['least_step']}: use fewer "
        "epochs or more replies"
    )


def step_note(row: Mapping[str, object]) -> str:
    """Loss of every policy in the latest step."""
    start = "learn/loss/"
    losses = [f"{value:.3f}" for name, value in sorted(row.items()) if name.startswith(start)]
    return f"loss {', '.join(losses)}" if losses else ""


def evaluation_line(row: Mapping[str, Any]) -> str:
    """Line of an evaluation; empty for a step without one."""
    parts, pay = [], pay_words(row)
    if "eval/loss/mean" in row:
        parts.append(f"held-out loss {row['eval/loss/mean']:.3f}")
    if "eval/reward/mean" in row:
        parts.append(f"{measure_name(pay)} {100 * row['eval/reward/mean']:.1f} %{pay}")
    return f"step {row['step']:4d}  {', '.join(parts)}" if parts else ""
