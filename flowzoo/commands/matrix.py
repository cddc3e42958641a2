"""`flowzoo matrix`: many training runs as one resumable command, and their table."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from tyro import conf

from flowzoo.commands.shared import quiet_transformers
from flowzoo.provenance import usable_cores

if TYPE_CHECKING:
    from flowzoo.baselines.matrix_run import Run


@dataclass(frozen=True, slots=True)
class Options:
    """Train every cell of an experiment matrix, several at a time; repeat the command to go on."""

    matrix: Annotated[str, conf.Positional]
    """A bundled matrix, e.g. `learning`, or a path to a .toml file."""
    out: str = ""
    """Directory of the runs and the table; empty: runs/ and the matrix's name."""
    jobs: int = 0
    """Runs at a time, one CPU thread each; 0: as many as there are cores."""
    only: tuple[str, ...] = ()
    """Cells whose name contains one of these; default: all."""
    table: bool = False
    """Run nothing: print the table of what is finished."""
    json: bool = False
    """Print the table as one JSON list."""


def run(options: Options) -> int:
    """Run what is missing, write table.md and table.json, print the table.

    Exit status 1 if a run failed.
    """
    quiet_transformers()
    from flowzoo.baselines.matrix import load_matrix
    from flowzoo.baselines.matrix_run import execute, plan
    from flowzoo.baselines.matrix_table import as_json, as_text, table_rows
    from flowzoo.errors import UsageError
    from flowzoo.files import replace_text, write_json

    matrix = load_matrix(options.matrix)
    out = Path(options.out or f"runs/{matrix.name}")
    runs = plan(matrix, out)
    if options.only:
        runs = [one for one in runs if any(word in one.cell.name for word in options.only)]
    if not runs:
        names = ", ".join(cell.name for cell in matrix.cells)
        raise UsageError(f"no cell of {matrix.name} matches {options.only}; they are {names}")
    if not options.table:
        with live_table(runs) as on_poll:
            execute(runs, options.jobs or usable_cores(), on_poll)
    rows = table_rows(runs)
    if rows and not options.table:
        write_json(out / "table.json", as_json(rows))
        replace_text(out / "table.md", as_text(rows))
    print(json.dumps(as_json(rows)) if options.json else as_text(rows), end="\n")
    failed = [one for one in runs if one.state == "failed"]
    for one in failed:
        print(f"failed: {one.folder}; why: {one.folder / 'log.txt'}", file=sys.stderr)
    waiting = sum(one.state == "waiting" for one in runs)
    if waiting:
        note = f"{waiting} of {len(runs)} runs are not finished; repeat the command to go on"
        print(note, file=sys.stderr)
    return int(bool(failed))


def progress_of(run: Run) -> str:
    """One run in a few characters."""
    if run.state in ("waiting", "failed"):
        return {"waiting": "·", "failed": "failed"}[run.state]
    row: dict[str, Any] = run.newest()
    accuracy = row.get("eval/reward/mean")
    said = "" if accuracy is None else f" {100 * accuracy:.0f} %"
    if run.state == "finished":
        return f"done{said}"
    return f"{row.get('step', 0)}/{run.config.steps}{said}"


@contextmanager
def live_table(runs: Sequence[Run]) -> Iterator[Callable[[Sequence[Run]], None]]:
    """A table on stderr, a row a cell and a column a seed, kept up to date; plain lines elsewhere.

    Where stderr is no terminal, every run that ends gets one line instead.
    """
    from rich.console import Console
    from rich.live import Live

    console = Console(stderr=True)
    if not console.is_terminal:
        told = {id(one) for one in runs if one.state != "waiting"}

        def tell(now: Sequence[Run]) -> None:
            for one in now:
                if one.state in ("finished", "failed") and id(one) not in told:
                    told.add(id(one))
                    done = sum(other.state == "finished" for other in now)
                    console.print(
                        f"[{done}/{len(now)}] {one.cell.name} seed {one.config.seed}: "
                        f"{progress_of(one)}",
                        markup=False,
                        highlight=False,
                        soft_wrap=True,
                    )

        yield tell
        return
    with Live(_drawn(runs), console=console, auto_refresh=False) as live:
        yield lambda now: live.update(_drawn(now), refresh=True)


def _drawn(runs: Sequence[Run]) -> Any:
    from rich.table import Table

    seeds = sorted({one.config.seed for one in runs})
    done = sum(one.state == "finished" for one in runs)
    table = Table(title=f"{done} of {len(runs)} runs finished", title_justify="left")
    table.add_column("cell")
    for seed in seeds:
        table.add_column(f"seed {seed}", justify="right")
    for name in dict.fromkeys(one.cell.name for one in runs):
        own = {one.config.seed: one for one in runs if one.cell.name == name}
        table.add_row(name, *(progress_of(own[seed]) if seed in own else "" for seed in seeds))
    return table
