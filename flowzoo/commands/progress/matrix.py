"""Plan and progress of `flowzoo matrix`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.live import Live
from rich.table import Table

from flowzoo.agents.pocket import pocket_path, read_pocket
from flowzoo.aliases import MetricRow
from flowzoo.baselines.settings.by_policy import written_values
from flowzoo.errors import FlowzooError

if TYPE_CHECKING:
    from flowzoo.baselines.matrix.jobs import ControlJob, MatrixJob, TrainingJob


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
    done = sum(run.state == "finished" for run in runs)
    cells = len({run.cell.name for run in runs})
    lines += ["", f"{cells} cells, {len(runs)} runs, {done} finished, {workers} at a time."]
    if votes:
        voted = sum(vote.state == "finished" for vote in votes)
        lines.append(f"{len(votes)} evaluations of controls at equal inference, {voted} finished.")
    left = remaining_seconds(runs, workers)
    if left:
        lines.append(f"Estimated time left, from finished runs: {as_time(left)}.")
    measured = tables(runs).parity
    if measured:
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
        yield _teller(console, runs, votes, workers)
        return
    with Live(drawn(runs, votes, workers), console=console, auto_refresh=False) as live:
        yield lambda: live.update(drawn(runs, votes, workers), refresh=True)


def drawn(runs: Sequence[TrainingJob], votes: Sequence[ControlJob], workers: int) -> Any:
    """The runs as a rich table, with a row per cell and a column per seed."""
    from flowzoo.baselines.matrix.jobs import as_time, remaining_seconds

    seeds = sorted({run.config.seed for run in runs})
    done = sum(run.state == "finished" for run in runs)
    title = f"{done} of {len(runs)} runs finished"
    if votes:
        title += f", {sum(run.state == 'finished' for run in votes)} of {len(votes)} votes"
    left = remaining_seconds(runs, workers)
    if left:
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
    done = sum(run.state == "finished" for run in runs)
    note = _trouble(runs[0])
    waits = sorted({other.cell.name for run in runs for other in run.waits()})
    if not note and waits:
        note = "waits for " + ", ".join(waits)
    policies = " ".join(config.policy_words)
    episodes = f"{config.problems} x {config.samples or 'default'}"
    return (
        f"| {cell.name} | {config.model} | {policies} | {steps} | {updates} | {episodes} | "
        f"{done}/{len(runs)} | {note} |"
    )


def _trouble(run: TrainingJob) -> str:
    from flowzoo.baselines.training.plan import resolve

    kind, _, name = run.config.model.partition(":")
    try:
        resolve(run.config)
        if kind == "pocket":
            pocket_path(*read_pocket(name, run.cell.task))
    except FlowzooError as error:
        return str(error)
    return ""


def _teller(
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
            done = sum(other.state == "finished" for other in jobs)
            left = remaining_seconds(runs, workers)
            state = progress_of(job) if isinstance(job, TrainingJob) else job.state
            note = f"; {as_time(left)} left" if left else ""
            line = f"[{done}/{len(jobs)}] {job.title}: {state}{note}"
            console.print(line, markup=False, highlight=False, soft_wrap=True)

    return tell
