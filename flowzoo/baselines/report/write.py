"""Writing the pages: one for one run; for several, one that compares them and one for each."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import quote

from flowzoo import __version__
from flowzoo.baselines.report.failures import read_failure_modes
from flowzoo.baselines.report.matrix_facts import matrix_facts
from flowzoo.baselines.report.page import render
from flowzoo.baselines.report.reading import read_runs
from flowzoo.baselines.report.run_facts import run_facts
from flowzoo.baselines.report.transcripts import pack
from flowzoo.baselines.run.reading import RunData
from flowzoo.errors import UsageError
from flowzoo.files import replace_text

EPISODES = 10_000
"""Most episodes in the page of a single run."""
EPISODES_EACH = 1_000
"""Most episodes in each page where there are several runs."""


def write_report(
    paths: Sequence[Path],
    out: Path,
    *,
    episodes: int | None = None,
    overview: bool = False,
    on_run: Callable[[str], None] = lambda folder: None,
) -> list[Path]:
    """Write the page `out` and, for several runs, one page a run in a folder beside it.

    Args:
        paths: run directories, or directories that hold some.
        out: the page.
        episodes: most episodes of a page; None: `EPISODES`, or `EPISODES_EACH` for several runs.
        overview: of several runs, write only the page that compares them.
        on_run: called with the folder of every run before it is read.

    Returns:
        The files, `out` first.

    Raises:
        UsageError: there is no run at one of the paths, or the folder of the pages is a file.
        DataError: a file of a run cannot be read.
    """
    runs = read_runs(paths)
    out.parent.mkdir(parents=True, exist_ok=True)
    if len(runs) == 1:
        on_run(str(runs[0].folder))
        write_run(runs[0], out, EPISODES if episodes is None else episodes)
        return [out]
    folder = out.with_name(f"{out.stem}-runs")
    if not overview and folder.exists() and not folder.is_dir():
        raise UsageError(
            f"{folder} exists and is a file, and the pages of single runs go there: choose another "
            "--out, or leave them out with --overview"
        )
    names = [] if overview else page_names([run.name for run in runs])
    links = {
        run.name: quote(f"{folder.name}/{name}") for run, name in zip(runs, names, strict=False)
    }
    notes: dict[str, Any] = {}
    for index, run in enumerate(runs):
        on_run(str(run.folder))
        if overview:
            notes[run.name] = run_facts(run)
            continue
        folder.mkdir(exist_ok=True)
        most = EPISODES_EACH if episodes is None else episodes
        notes[run.name] = write_run(run, folder / names[index], most, f"../{quote(out.name)}")
    title = f"{paths[0].resolve().name}: {len(runs)} runs"
    facts = matrix_facts(runs, links, notes, read_failure_modes(paths))
    replace_text(out, render(title, stamped(title, matrix=facts), None))
    return [out, *(folder / name for name in names)]


def write_run(run: RunData, out: Path, episodes: int, index: str | None = None) -> dict[str, Any]:
    """Write the page of one run and return its facts; `index` is the page that lists it."""
    facts = run_facts(run)
    page = stamped(run.name, run=facts, index=index)
    replace_text(out, render(run.name, page, pack(run, episodes)))
    return facts


def page_names(names: Sequence[str]) -> list[str]:
    """A unique file name for every run, in letters that need no quoting in a URL."""
    stems: list[str] = []
    for name in names:
        stem = re.sub(r"[^A-Za-z0-9._-]+", "-", name.replace("/", "--")).strip("-.") or "run"
        count = sum(other.rsplit("~", 1)[0] == stem for other in stems)
        stems.append(f"{stem}~{count}" if count else stem)
    return [f"{stem}.html" for stem in stems]


def stamped(title: str, **parts: Any) -> dict[str, Any]:
    """Facts of a page with its title, flowzoo's version and the time."""
    now = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
    return {"title": title, "version": __version__, "made": now, **parts}
