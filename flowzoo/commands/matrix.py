"""`flowzoo matrix`: many training runs as one resumable command, and their table."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from flowzoo.baselines.matrix.failures import FILE, as_record
from flowzoo.commands.progress.matrix import live_table, plan_text
from flowzoo.commands.progress.stopping import interruptible
from flowzoo.commands.shared import CodeOptions, check_count, check_folder, quiet_transformers
from flowzoo.errors import UsageError, need_module
from flowzoo.files import replace_text, write_json
from flowzoo.provenance import usable_cores

if TYPE_CHECKING:
    from flowzoo.baselines.matrix.file import Matrix
    from flowzoo.baselines.matrix.jobs import MatrixJob, TrainingJob
    from flowzoo.baselines.report.matrix_facts import Tables


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
    from flowzoo.baselines.report.matrix_facts import tables

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
        keep_failures(matrix, out)
        with live_table(runs, evaluations, workers) as on_poll:
            execute(jobs, workers, on_poll)
    results = tables(runs)
    _tell(results, out, options)
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


def keep_failures(matrix: Matrix, out: Path) -> None:
    """Write the failure modes that the matrix demonstrates, for `flowzoo report`."""
    if matrix.failures:
        out.mkdir(parents=True, exist_ok=True)
        write_json(out / FILE, as_record(matrix.failures))


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
            print(f"the previous run in {folder} was moved to {moved}", file=sys.stderr)


def _choose(runs: Sequence[TrainingJob], parts: Sequence[str], matrix: Matrix) -> list[TrainingJob]:
    chosen = [run for run in runs if not parts or any(word in run.cell.name for word in parts)]
    if not chosen:
        names = ", ".join(cell.name for cell in matrix.cells)
        raise UsageError(f"no cell of {matrix.name} matches {tuple(parts)}; they are {names}")
    return chosen


def _tell(results: Tables, out: Path, options: Options) -> None:
    from flowzoo.baselines.report.matrix_facts import as_json, as_text

    if results.cells and not options.table:
        write_json(out / "table.json", as_json(results))
        replace_text(out / "table.md", as_text(results))
    print(json.dumps(as_json(results)) if options.json else as_text(results))


def _tell_unfinished(jobs: Sequence[MatrixJob], *, table: bool) -> int:
    failed = [job for job in jobs if job.state == "failed"]
    for job in failed:
        print(f"failed: {job.title}; why: {job.log}", file=sys.stderr)
    held = _missing_runs(jobs)
    for job, runs in held.items():
        cells = ", ".join(run.cell.name for run in runs)
        print(f"{job.title} waits for {cells}, which --only leaves out", file=sys.stderr)
    if held:
        note = "run these cells too: repeat the command without --only, or add them to it"
        print(note, file=sys.stderr)
    left = [job for job in jobs if job.state == "waiting" and job not in held]
    left = [job for job in left if not held.keys() & set(job.waits())]
    if left:
        note = f"{len(left)} of {len(jobs)} jobs are not finished; repeat the command to resume"
        print(note, file=sys.stderr)
    return int(bool(failed or (held and not table)))


def _missing_runs(jobs: Sequence[MatrixJob]) -> dict[MatrixJob, list[TrainingJob]]:
    # Jobs that wait for runs outside `jobs`.
    present = set(jobs)
    waits = {job: job.waits() for job in jobs if job.state == "waiting"}
    away = {job: [run for run in runs if run not in present] for job, runs in waits.items()}
    return {job: runs for job, runs in away.items() if runs}
