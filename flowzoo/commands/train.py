"""`flowzoo train`: train the policies of a workflow with one of the baselines."""

from __future__ import annotations

import atexit
import gc
import json
import logging
import os
import shlex
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flowzoo.agents.evaluation.protocol import protocol_line
from flowzoo.agents.evaluation.summary import measure_name
from flowzoo.agents.pocket import NAMES, pocket_options, pocket_task, read_pocket
from flowzoo.baselines.settings.config import TrainConfig
from flowzoo.baselines.settings.file import load_config
from flowzoo.commands.progress.shown import step_progress, to_stderr
from flowzoo.commands.progress.stopping import STOP, interruptible
from flowzoo.commands.shared import (
    CodeOptions,
    check_start,
    held_out_line,
    pay_words,
    points,
    program_name,
    quiet_transformers,
)
from flowzoo.envs import Workflow
from flowzoo.errors import UsageError
from flowzoo.garbage import pause_collection

if TYPE_CHECKING:
    from flowzoo.baselines.training.trainer import Trainer


@dataclass(frozen=True, slots=True)
class Options:
    """Arguments of `flowzoo train`."""

    settings: TrainConfig = field(default_factory=lambda: TrainConfig(workflow=""))
    config: str = ""
    """Settings from a file: a bundled one, e.g. `paper/voting-math` or its laptop version
    `paper/voting-math@pocket`, or a path to a .toml file. Command-line options override it."""
    restart: bool = False
    """Start again; the existing directory is renamed to NAME.1, NAME.2, …"""
    accept_base: bool = False
    """Go on although the model that the run began with has changed: with the tokenizer, chat
    template and end tokens of the run's checkpoint, on the new weights. It is recorded."""
    deviations: bool = False
    """Only print the settings of a bundled `config` beside the published ones: field, published,
    ours, reason of the difference. Nothing is loaded."""
    code: CodeOptions = field(default_factory=CodeOptions)
    json: bool = False
    """Print the final summary, or the `deviations`, as one JSON object instead of text."""


def read_config(name: str) -> Options:
    """Read the settings of a file as defaults of the command line."""
    return Options(settings=load_config(name, workflow=""), config=name)


def run(options: Options) -> int:
    """Train and print the summary."""
    if options.deviations:
        print_deviations(options)
        return 0
    settings = options.settings
    check_settings(settings)
    if settings.backend == "torchrun":
        if "RANK" not in os.environ:
            return start_ranks(settings)
        if os.environ["RANK"] != "0":  # without output
            STOP.quiet = True
            logging.getLogger("flowzoo").setLevel(logging.ERROR)
            open_trainer(options).train()
            return 0
    trainer: Trainer | None = None

    def kept() -> str:
        done = None if trainer is None else trainer.run.state.step
        return kept_of_run(settings.directory, done, settings.steps, options.restart)

    with interruptible(kept):
        trainer = open_trainer(options)
        tell_start(trainer)
        done = trainer.run.state.step
        with step_progress(settings.steps, done, step_note, evaluation_line) as on_step:
            summary = trainer.train(on_step)
    if options.json:
        print(json.dumps(summary))
    else:
        print_summary(summary, settings.directory)
    return 0


def check_settings(config: TrainConfig) -> None:
    """Reject invalid settings and problems before loading a model."""
    from flowzoo.baselines.settings.preflight import check_held_out, preflight
    from flowzoo.baselines.training.difficulty import trainable

    check_start("train", config)
    task = preflight(config).workflow.task
    check_held_out(config, task)
    trainable(config, task)


def open_trainer(options: Options) -> Trainer:
    """Import the modules of a run, mostly torch and transformers, and open the run."""
    atexit.register(thaw)
    with pause_collection(freeze=True):
        quiet_transformers()
        from flowzoo.baselines.training.build import start_run
        from flowzoo.baselines.training.trainer import Trainer

    restart, accept_base = options.restart, options.accept_base
    return Trainer(start_run(options.settings, restart=restart, accept_base=accept_base))


def print_deviations(options: Options) -> None:
    """Print the published settings of a bundled configuration and what this command would set."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from flowzoo.baselines.settings.deviations import deviations

    if not options.config:
        raise UsageError(
            "--deviations compares bundled settings with the published ones: name them with "
            "--config, e.g. paper/voting-math"
        )
    rows = deviations(options.config, options.settings)
    if options.json:
        print(json.dumps([asdict(row) for row in rows]))
        return
    table = Table(box=None, pad_edge=False)
    for name in ("field", "published", "ours", "reason", "source"):
        table.add_column(name, overflow="fold")
    sources = list(dict.fromkeys(row.source for row in rows))
    for row in sorted(rows, key=lambda row: row.rank):
        reason = "none is stated" if row.state == "unstated" else row.reason
        number = sources.index(row.source) + 1
        cells = (row.field, row.published, row.value, reason, number)
        table.add_row(*(Text(str(cell)) for cell in cells))
    console = Console(highlight=False)
    console.print(table)
    for number, source in enumerate(sources, start=1):
        console.print(f"{number:2} {source}", markup=False, soft_wrap=True)
    counts = Counter(row.state for row in rows)
    console.print(
        f"{len(rows)} published values: {counts['unstated']} changed by @VARIANT or this command, "
        f"{counts['differs']} differ, {counts['property']} no settings, {counts['equal']} equal",
        soft_wrap=True,
    )


def start_ranks(settings: TrainConfig) -> int:
    """Run this command on local ranks; return the status of the first failed one."""
    from flowzoo.baselines.backends.torchrun import launch

    STOP.quiet = True  # the ranks print it
    cores, ranks = int(os.environ["OMP_NUM_THREADS"]), settings.ranks
    os.environ["OMP_NUM_THREADS"] = str(max(1, cores // ranks))
    return launch(ranks, sys.argv[1:], settings.stop_within)


def thaw() -> None:
    """Collect frozen objects at exit if triton or vLLM is loaded: they warn about leaks."""
    # Otherwise the collection, which takes a second, is skipped.
    if not sys.modules.keys().isdisjoint(("triton", "vllm")):
        gc.unfreeze()


def tell_start(trainer: Trainer) -> None:
    """Print notes, defaults from the model, and the step at which a run resumes."""
    from flowzoo.commands.problems import grading_of

    run = trainer.run
    grading_of(run.workflow)
    if note := pocket_note(run.workflow, run.config.model):
        to_stderr(note)
    for note in trainer.notes:
        to_stderr(f"note: {note}")
    if run.plan.by_model:
        to_stderr(defaults_line(run.plan.by_model, run.plan.sources))
    state, root = run.state, run.directory.root
    if state.finished:
        more = (
            "without --stop-patience, --stop-at and --on-collapse stop"
            if state.stopped
            else "with more --steps"
        )
        why = f" ({state.stopped})" if state.stopped else ""
        where = f"{root} is finished after step {state.step}{why}"
        print(where if state.halted else f"{where}; {more} it continues", flush=True)
    elif state.step >= 0:
        print(f"resuming {root} after step {state.step}", flush=True)
    if run.directory.aside.folder is not None:
        print(f"later results were moved to {run.directory.aside.folder}", flush=True)


def defaults_line(values: Mapping[str, float | str], sources: Mapping[str, str]) -> str:
    """Automatic settings with their sources: `lr 5e-06 (from the model)`."""
    by_source: dict[str, list[str]] = {}
    for name, value in values.items():
        text = value if isinstance(value, str) else f"{value:g}"
        by_source.setdefault(sources[name], []).append(f"{name} {text}")
    return ", ".join(f"{', '.join(values)} (from {source})" for source, values in by_source.items())


def kept_of_run(root: Path, step: int | None, steps: int | None, restart: bool = False) -> str:
    """Note on the saved state of a stopped run; `step` None: it was still loading."""
    saved = sorted((root / "checkpoints").glob("step-*"))
    if not saved:
        return f"before the first checkpoint; the same command restarts {root}"
    last = int(saved[-1].name.removeprefix("step-"))
    done = "while loading" if step is None else f"step {max(step, 0)} of {steps} was done"
    again = "the same command" + (" without --restart" if restart else "")
    return f"{done}; {root} has a checkpoint of step {last}, from which {again} resumes"


def pocket_note(workflow: Workflow, model: str) -> str:
    """Warning for a pocket model on problems that it was not trained on, or an empty string."""
    kind, _, rest = model.partition(":")
    name = read_pocket(rest, workflow.task.name).task
    if kind != "pocket" or name not in NAMES:
        return ""
    task, home = pocket_task(name), pocket_options(name, workflow.name)
    other = {name: getattr(workflow, name, getattr(workflow.task, name, None)) for name in home}
    if task == workflow.task.name and other == home:
        return ""
    given = " ".join(f"{name}={value}" for name, value in home.items())
    return (
        f"note: the pocket model of {name} was trained for --task {task} --options {given}; it may "
        "fail on other problems (see its model card)"
    )


def print_summary(summary: Mapping[str, Any], root: Path) -> None:
    """Print accuracy before and after, cost, and output paths."""
    policies = ", ".join(f"{role} -> {name}" for role, name in summary["policies"].items())
    print(f"{summary['workflow']}, {summary['algorithm']}, policies: {policies}")
    print(held_out_line(summary))
    for name, item in summary["attempts"].items():
        before, after = _with_interval(item["before"]), _with_interval(item["after"])
        print(f"{name:12} {before} -> {after}, gain {points(item['gain'])}")
    for name, item in summary["eval_sets"].items():
        before, after = (100 * item[f"accuracy_{end}"] for end in ("before", "after"))
        print(f"{name:12} {before:.1f} % -> {after:.1f} %, gain {points(item['gain'])}")
    if summary["stopped"]:
        print(f"stopped after step {summary['steps']}: {summary['stopped']}")
    print(f"measured on {protocol_line(summary['protocol'])}")
    tokens = f"{summary['training_tokens']:,} sampled tokens"
    print(f"{summary['steps']} steps, {tokens}, {summary['minutes']:.1f} minutes")
    for item in summary["warnings"]:
        steps = summary["steps"] + (item["first"] == 0)  # step 0 is the evaluation before training
        print(f"warning      {item['text']} [at {item['steps']} of {steps} steps]")
    for event in summary["events"]:
        print(f"event        step {event['step']}: {event['text']}")
    print(f"metrics      {root / 'metrics.jsonl'} and {root / 'tensorboard'}")
    print(f"transcripts  {root / 'transcripts'}")
    print(f"checkpoints  {root / 'checkpoints'}")
    print(f"report       {program_name()} report {shlex.quote(str(root))}")
    best = summary["best_step"]
    folder = root / "checkpoints" / f"step-{best:08d}"
    where = folder if folder.is_dir() else "no checkpoint of it (see --checkpoint-every)"
    print(f"best         {100 * summary['accuracy_best']:.1f} % at step {best}: {where}")


def _with_interval(value: Sequence[float | None]) -> str:
    middle, *ends = (None if number is None else 100 * number for number in value)
    text = f"{middle:.1f} %"
    return text if None in ends else f"{text} ({ends[0]:.1f} to {ends[1]:.1f})"


def step_note(row: Mapping[str, object]) -> str:
    """Reward and speed of the latest step."""
    if "reward/mean" not in row:
        return ""
    return f"reward {row['reward/mean']:.2f}, {row['perf/tok_s']:,.0f} tok/s"


def evaluation_line(row: Mapping[str, Any]) -> str:
    """Line of an evaluation; empty for a step without one."""
    if "eval/reward/mean" not in row:
        return ""
    pay = pay_words(row)
    score = f"held-out {measure_name(pay)} {100 * row['eval/reward/mean']:.1f} %"
    return f"step {row['step']:4d}  {score}{pay}"
