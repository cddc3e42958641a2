"""Writing the pages: one for one run; for several, one that compares them and one for each."""

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

from flowzoo.baselines.report.failures import read_failure_modes
from flowzoo.baselines.report.html import render, stamp
from flowzoo.baselines.report.matrix_facts import matrix_facts
from flowzoo.baselines.report.reading import read_runs
from flowzoo.baselines.report.run_facts import run_facts
from flowzoo.baselines.report.transcripts import pack
from flowzoo.baselines.run.reading import RunData
from flowzoo.errors import UsageError
from flowzoo.files import replace_text

EPISODES = 10_000  # most episodes in the page of a single run
EPISODES_EACH = 1_000  # most episodes in each page where there are several runs


def write_report(
    paths: Sequence[Path],
    out: Path,
    *,
    episodes: int | None = None,
    overview: bool = False,
    on_run: Callable[[str], None] = lambda folder: None,
) -> list[Path]:
    """Write the page `out` and, for several runs, one page a run in a folder beside it."""
    runs = read_runs(paths)
    out.parent.mkdir(parents=True, exist_ok=True)
    if len(runs) == 1:
        on_run(str(runs[0].folder))
        most = EPISODES if episodes is None else episodes
        replace_text(out, run_page(runs[0], run_facts(runs[0]), most))
        return [out]
    folder = out.with_name(f"{out.stem}-runs")
    if not overview and folder.exists() and not folder.is_dir():
        raise UsageError(
            f"{folder} exists and is a file, and the pages of single runs go there: choose another "
            "--out, or leave them out with --overview"
        )
    names = page_names([run.name for run in runs])
    links: dict[str, str] = {}
    notes: dict[str, Any] = {}
    for run, name in zip(runs, names, strict=True):
        on_run(str(run.folder))
        notes[run.name] = run_facts(run)
        if not overview:
            folder.mkdir(exist_ok=True)
            most = EPISODES_EACH if episodes is None else episodes
            page = run_page(run, notes[run.name], most, f"../{quote(out.name)}")
            replace_text(folder / name, page)
            links[run.name] = quote(f"{folder.name}/{name}")
    title = f"{paths[0].resolve().name}: {len(runs)} runs"
    facts = matrix_facts(runs, links, notes, read_failure_modes(paths))
    replace_text(out, render(title, stamp(title, matrix=facts), None))
    return [out, *(folder / name for name in names if links)]


def run_page(
    run: RunData,
    facts: Mapping[str, object],
    episodes: int,
    index: str | None = None,
    *,
    live: str | None = None,
) -> str:
    """The page of one run as HTML, from its `run_facts`; `index` links to the page of all runs."""
    page = stamp(run.name, run=facts, index=index)
    return render(run.name, page, pack(run, episodes), live=live)


def page_names(names: Sequence[str]) -> list[str]:
    """A unique file name for every run, in letters that need no quoting in a URL."""
    stems: list[str] = []
    for name in names:
        stem = re.sub(r"[^A-Za-z0-9._-]+", "-", name.replace("/", "--")).strip("-.") or "run"
        count = sum(other.rsplit("~", 1)[0] == stem for other in stems)
        stems.append(f"{stem}~{count}" if count else stem)
    return [f"{stem}.html" for stem in stems]
