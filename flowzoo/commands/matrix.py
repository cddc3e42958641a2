"""`flowzoo matrix`: many training runs as one resumable command, and their table."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.live import Live
from rich.table import Table

from flowzoo.agents.pocket import pocket_path, read_pocket
from flowzoo.aliases import MetricRow
from flowzoo.baselines.matrix.failures import FILE, as_record
from flowzoo.baselines.settings.policies import written_values
from flowzoo.commands.progress.shown import to_stderr
from flowzoo.commands.progress.stopping import interruptible
from flowzoo.commands.shared import CodeOptions, check_count, check_folder, quiet_transformers
from flowzoo.errors import FlowzooError, UsageError, need_module
from flowzoo.files import replace_text, write_json
from flowzoo.provenance import usable_cores

if TYPE_CHECKING:
    from flowzoo.baselines.matrix.file import Matrix
    from flowzoo.baselines.matrix.jobs import ControlJob, MatrixJob, TrainingJob


@dataclass(frozen=True, slots=True)
class Options:
    """Arguments of `flowzoo matrix`."""

    matrix: str = field(metadata={"positional": "MATRIX"})
    """A bundled matrix, e.g. `learning`, or a path to a .toml file."""
    out: str = ""
    """Directory for the runs and the table; empty: runs/ and the matrix's name."""
    jobs: int = 0
    """Number of parallel runs, one CPU thread each; 0: one per core."""
    only: tuple[str, ...] = ()
    """Run only cells whose name contains one of these; default: all."""
    restart: bool = False
    """Restart the runs of the cells in `only`; existing runs are moved to seed-N.1, …"""
    table: bool = False
    """Only print the tables of finished runs."""
    dry_run: bool = False
    """Only check the settings of every cell and print the runs."""
    code: CodeOptions = field(default_factory=CodeOptions)
    json: bool = False
    """Print the tables as one JSON object."""


def run(options: Options) -> int:
    """Run the missing cells, write table.md and table.json, print the tables."""
    # Exit status 1 if a run failed, or waits for runs of cells that `only` leaves out.
    from flowzoo.baselines.matrix.file import load_matrix
    from flowzoo.baselines.report.failures import check_codes

    check_count("jobs", options.jobs, 0, 1_024)
    if not options.table:
        need_module("torch", "training a matrix")
    matrix = load_matrix(options.matrix)
    check_codes(matrix.failures, options.matrix)
    out = Path(options.out or f"runs/{matrix.name}")
    check_folder("out", out)
    note = f"checkpoints of the runs are saved in {out}; the same command resumes"
    with interruptible(lambda: note):
        return _run(options, matrix, out)


def _run(options: Options, matrix: Matrix, out: Path) -> int:
    quiet_transformers()
    from flowzoo.baselines.matrix.run import check_models, control_jobs, execute, training_jobs
    from flowzoo.baselines.report.matrix_facts import as_text, tables
    from flowzoo.baselines.report.words import finite_only

    if options.restart:
        move_aside(matrix, out, options)
    runs = _choose(training_jobs(matrix, out), options.only, matrix)
    if not options.table:
        check_cells(runs)
        check_models(runs)
    workers = options.jobs or usable_cores()
    evaluations = control_jobs(runs)
    if options.dry_run:
        print(plan_text(runs, evaluations, workers), end="")
        return 0
    jobs = [*runs, *evaluations]
    if not options.table:
        if matrix.failures:  # for `flowzoo report`
            out.mkdir(parents=True, exist_ok=True)
            write_json(out / FILE, as_record(matrix.failures))
        with live_table(runs, evaluations, workers) as on_poll:
            execute(jobs, workers, on_poll)
    rows = tables(runs)
    results, text = finite_only(rows), as_text(rows)
    if results["cells"] and not options.table:
        write_json(out / "table.json", results)
        replace_text(out / "table.md", text)
    print(json.dumps(results) if options.json else text)
    return _tell_unfinished(jobs, table=options.table)


def check_cells(runs: Sequence[TrainingJob]) -> None:
    """Reject a matrix with an invalid workflow, too few held-out problems or untrusted code."""
    from flowzoo.baselines.settings.hooks import check_hooks
    from flowzoo.baselines.settings.preflight import check_held_out, with_prompts

    seen: set[object] = set()
    for run in runs:
        config = run.config
        named = (config.workflow, config.env, config.program)
        played = (*named, config.task, config.options, config.sandbox)
        models = (config.model, config.models)
        hooks = (config.advantage_function, config.loss, config.reward, config.callback)
        key = (played, models, hooks, config.max_calls, config.eval_split, config.eval_problems)
        if run.state == "finished" or key in seen:
            continue
        seen.add(key)
        try:
            check_hooks(config)
            check_held_out(config, with_prompts(config)[0].task)
        except UsageError as error:
            raise UsageError(f"cell {run.cell.name}: {error}") from error


def move_aside(matrix: Matrix, out: Path, options: Options) -> None:
    """Move the runs of the named cells aside."""
    from flowzoo.baselines.run.directory import restart

    if not options.only or options.table or options.dry_run:
        raise UsageError(
            "--restart moves runs aside: name their cells with --only, and leave --table and "
            "--dry-run out"
        )
    cells = [cell for cell in matrix.cells if any(word in cell.name for word in options.only)]
    for folder in [Path(cell.run(seed, out).out) for cell in cells for seed in matrix.seeds]:
        moved = restart(folder)
        if moved is not None:
            to_stderr(f"the previous run in {folder} was moved to {moved}")


def _choose(runs: Sequence[TrainingJob], parts: Sequence[str], matrix: Matrix) -> list[TrainingJob]:
    chosen = [run for run in runs if not parts or any(word in run.cell.name for word in parts)]
    if not chosen:
        names = ", ".join(cell.name for cell in matrix.cells)
        raise UsageError(f"no cell of {matrix.name} matches {tuple(parts)}; they are {names}")
    return chosen


def _tell_unfinished(jobs: Sequence[MatrixJob], *, table: bool) -> int:
    failed = [job for job in jobs if job.state == "failed"]
    for job in failed:
        to_stderr(f"failed: {job.title}; why: {job.log}")
    waits = {job: job.waits() for job in jobs if job.state == "waiting"}
    held = {job for job, runs in waits.items() if not set(jobs).issuperset(runs)}
    for job in [job for job in waits if job in held]:
        cells = ", ".join(run.cell.name for run in waits[job] if run not in jobs)
        to_stderr(f"{job.title} waits for {cells}, which --only leaves out")
    if held:
        to_stderr("run these cells too: repeat the command without --only, or add them to it")
    left = [job for job, runs in waits.items() if job not in held and not held & set(runs)]
    if left:
        more = f"{len(left)} of {len(jobs)} jobs are not finished"
        to_stderr(f"{more}; repeat the command to resume")
    return int(bool(failed or (held and not table)))


# -- plan and progress -----------------------------------------------------------------------------


def progress_of(run: TrainingJob) -> str:
    """Short status of one run."""
    if run.state in ("waiting", "failed"):
        return {"waiting": "·", "failed": "failed"}[run.state]
    row: MetricRow = run.newest()
    accuracy = row.get("eval/reward/mean")
    share = "" if accuracy is None else f" {100 * accuracy:.0f} %"
    if run.state == "finished":
        return f"done{share} in {row['time/total'] / 60:.1f} min"
    step, config = row.get("step", 0), run.config
    if config.token_budget:
        return f"{100 * row.get('tokens/total', 0) / config.token_budget:.0f} % of tokens{share}"
    return f"{step}/{config.steps}{share}"


def plan_text(runs: Sequence[TrainingJob], votes: Sequence[ControlJob], workers: int) -> str:
    """Table of the cells in Markdown: budgets, finished and waiting runs, faults in settings."""
    # Makes every cell's workflow and algorithm, so errors appear before the first run.
    from flowzoo.baselines.matrix.jobs import as_time, remaining_seconds
    from flowzoo.baselines.report.matrix_facts import parity_lines, tables

    lines = [
        "| cell | model | policies | steps | optimizer steps per policy | problems x samples | "
        "finished | |",
        "|---|---|---|---:|---:|---:|---:|---|",
    ]
    for name in dict.fromkeys(run.cell.name for run in runs):
        lines.append(_plan_line([run for run in runs if run.cell.name == name]))
    cells, done = len({run.cell.name for run in runs}), _count_finished(runs)
    lines += ["", f"{cells} cells, {len(runs)} runs, {done} finished, {workers} at a time."]
    if votes:
        done = _count_finished(votes)
        lines.append(f"{len(votes)} evaluations of controls at equal inference, {done} finished.")
    if left := remaining_seconds(runs, workers):
        lines.append(f"Estimated time left, from finished runs: {as_time(left)}.")
    if measured := tables(runs)["parity"]:
        lines += ["", *parity_lines(measured)]
    return "\n".join(lines) + "\n"


@contextmanager
def live_table(
    runs: Sequence[TrainingJob], votes: Sequence[ControlJob], workers: int
) -> Iterator[Callable[[], None]]:
    """A live table on stderr, with a row per cell and a column per seed."""
    # If stderr is not a terminal, every finished job gets a line instead.
    console = Console(stderr=True)
    if not console.is_terminal:
        yield _line_printer(console, runs, votes, workers)
        return
    with Live(run_table(runs, votes, workers), console=console, auto_refresh=False) as live:
        yield lambda: live.update(run_table(runs, votes, workers), refresh=True)


def run_table(runs: Sequence[TrainingJob], votes: Sequence[ControlJob], workers: int) -> Table:
    """The runs as a table, with a row per cell and a column per seed."""
    from flowzoo.baselines.matrix.jobs import as_time, remaining_seconds

    seeds = sorted({run.config.seed for run in runs})
    title = f"{_count_finished(runs)} of {len(runs)} runs finished"
    if votes:
        title += f", {_count_finished(votes)} of {len(votes)} votes"
    if left := remaining_seconds(runs, workers):
        title += f", about {as_time(left)} left"
    table = Table(title=title, title_justify="left")
    table.add_column("cell")
    for seed in seeds:
        table.add_column(f"seed {seed}", justify="right")
    for name in dict.fromkeys(run.cell.name for run in runs):
        by_seed = {run.config.seed: run for run in runs if run.cell.name == name}
        table.add_row(
            name, *(progress_of(by_seed[seed]) if seed in by_seed else "" for seed in seeds)
        )
    return table


def _plan_line(runs: Sequence[TrainingJob]) -> str:
    cell, config = runs[0].cell, runs[0].cell.config
    if cell.control:
        steps, updates = f"≤ {config.steps}", ""
    else:
        counts = written_values("updates", config.updates).items()
        texts = [f"{name}={config.steps * count or 'by rows'}" for name, count in counts]
        steps, updates = str(config.steps), " ".join(texts).removeprefix("=")
    waits = sorted({other.cell.name for run in runs for other in run.waits()})
    note = _fault(runs[0]) or (f"waits for {', '.join(waits)}" if waits else "")
    policies = " ".join(config.policy_words)
    episodes = f"{config.problems} x {config.samples or 'default'}"
    return (
        f"| {cell.name} | {config.model} | {policies} | {steps} | {updates} | {episodes} | "
        f"{_count_finished(runs)}/{len(runs)} | {note} |"
    )


def _count_finished(jobs: Sequence[MatrixJob]) -> int:
    return sum(job.state == "finished" for job in jobs)


def _fault(run: TrainingJob) -> str:
    from flowzoo.baselines.training.plan import resolve

    kind, _, name = run.config.model.partition(":")
    try:
        resolve(run.config)
        if kind == "pocket":
            pocket_path(*read_pocket(name, run.cell.task))
    except FlowzooError as error:
        return str(error)
    return ""


def _line_printer(
    console: Console, runs: Sequence[TrainingJob], votes: Sequence[ControlJob], workers: int
) -> Callable[[], None]:
    from flowzoo.baselines.matrix.jobs import TrainingJob, as_time, remaining_seconds

    jobs: list[MatrixJob] = [*runs, *votes]
    printed = {id(job) for job in jobs if job.state != "waiting"}

    def tell() -> None:
        for job in jobs:
            if job.state not in ("finished", "failed") or id(job) in printed:
                continue
            printed.add(id(job))
            left = remaining_seconds(runs, workers)
            state = progress_of(job) if isinstance(job, TrainingJob) else job.state
            note = f"; {as_time(left)} left" if left else ""
            line = f"[{_count_finished(jobs)}/{len(jobs)}] {job.title}: {state}{note}"
            console.print(line, markup=False, highlight=False, soft_wrap=True)

    return tell
