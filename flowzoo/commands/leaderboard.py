"""`flowzoo leaderboard`: many evaluations as one resumable command, and their table.

    [settings]                      # options of `flowzoo eval` for all cells
    n = 200
    temperature = 0
    [[cells]]                       # one block; all combinations of its lists
    workflow = ["single", "voting"]
    policy = ["pocket:xs", "pocket:s", ["generator=pocket:s", "aggregator=pocket:xs"]]
    task = ["math"]                 # left out: the workflow's own
    settings = { max_tokens = 64 }  # options for this block
    label = "short"                 # a part of its cells' names

Every cell is an evaluation with its own folder.
"""

import json
import re
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any

from flowzoo.agents.evaluation.comparison import Entry, as_markdown, leaderboard, results_in
from flowzoo.agents.evaluation.majority import read_summary
from flowzoo.agents.evaluation.summary import is_evaluation
from flowzoo.agents.evaluation.usage import Price, read_prices
from flowzoo.commands.eval import EvaluationPlan, play, prepare
from flowzoo.commands.line import parse
from flowzoo.commands.progress.shown import to_stderr
from flowzoo.commands.shared import CodeOptions, check_folder
from flowzoo.errors import FlowzooError, UsageError, unknown
from flowzoo.files import read_json, read_toml, replace_text, write_json
from flowzoo.permission import PERMISSION
from flowzoo.provenance import error_line

_AXES = ("workflow", "task", "policy")
_BLOCK = (*_AXES, "settings", "label")
_OWN = (*_AXES, "out", "json", "like", "against", "sets", "detect")
"""Options that are not allowed in `settings`."""


@dataclass(frozen=True, slots=True)
class Options:
    """Arguments of `flowzoo leaderboard`."""

    file: str = field(metadata={"positional": "FILE"})
    """TOML file with lists of workflows, policies and tasks; every combination is evaluated."""
    out: str = ""
    """Directory for the evaluations and the table; empty: runs/ and the file's name."""
    only: tuple[str, ...] = ()
    """Run only combinations whose name contains one of these; default: all."""
    dry_run: bool = False
    """Only check every combination and print it as a command."""
    code: CodeOptions = field(default_factory=CodeOptions)
    json: bool = False
    """Print the tables as one JSON object."""


@dataclass(frozen=True, slots=True)
class BoardCell:
    """One evaluation of a leaderboard."""

    name: str
    policy: str
    args: tuple[str, ...]
    """Arguments of `flowzoo`."""


def run(options: Options) -> int:
    """Play the missing episodes, write leaderboard.md and leaderboard.json, print the tables."""
    # Exit status 1 if a cell failed.
    path = Path(options.file)
    out = Path(options.out or f"runs/{path.stem}")
    check_folder("out", out)
    cells = chosen(list(read_cells(read_toml(path), options.file, out)), options.only)
    PERMISSION.note(options.file, [cell.args for cell in cells])
    evaluations = {cell: check_cell(cell) for cell in cells}
    if options.dry_run:
        for cell in cells:
            print(f"flowzoo {shlex.join(cell.args)}")
        return 0
    entries, failures = play_cells(evaluations)
    tables = leaderboard(entries)
    if entries:
        write_json(out / "leaderboard.json", {"tables": tables, "failures": failures})
        replace_text(out / "leaderboard.md", as_markdown(tables))
    text = json.dumps({"tables": tables, "failures": failures})
    print(f"{text}\n" if options.json else as_markdown(tables), end="")
    for name, message in failures.items():
        print(f"failed: {name}: {message}", file=sys.stderr)
    return int(bool(failures))


# -- the file --------------------------------------------------------------------------------------


def read_cells(table: Mapping[str, object], where: str, out: Path) -> Iterator[BoardCell]:
    """The cells of a TOML table in the format of this module, each with a folder in `out`."""
    for key in table:
        if key not in ("settings", "cells"):
            raise unknown(f"field in {where}", key, ("settings", "cells"))
    blocks = table.get("cells")
    if not isinstance(blocks, list) or not blocks or not all(isinstance(b, dict) for b in blocks):
        raise UsageError(f"{where} needs blocks of cells that start with [[cells]], got {blocks!r}")
    shared, names = _settings(table, where), set[str]()
    for cell in (cell for block in blocks for cell in _block_cells(block, shared, where, out)):
        if cell.name in names:
            raise UsageError(f"{where} has the cell {cell.name} twice: give one a `label`")
        names.add(cell.name)
        yield cell


def _settings(table: Mapping[str, object], where: str) -> dict[str, Any]:
    settings = table.get("settings", {})
    if not isinstance(settings, dict):
        raise UsageError(f"`settings` in {where} must be a table, e.g. {{ n = 200 }}")
    for key in settings:
        if key in _OWN:
            raise UsageError(
                f"`settings` in {where} must not have `{key}`: name workflows, tasks and policies "
                "in blocks of cells, and the directory with --out"
            )
    return settings


def _block_cells(
    block: Mapping[str, Any], shared: Mapping[str, Any], where: str, out: Path
) -> Iterator[BoardCell]:
    for key in block:
        if key not in _BLOCK:
            raise unknown(f"field of a cell in {where}", key, _BLOCK)
    axes = {axis: block.get(axis, [""]) for axis in _AXES}
    for axis, values in axes.items():
        if not isinstance(values, list) or not values:
            raise UsageError(f"`{axis}` of a cell in {where} must be a list, got {values!r}")
    for axis in ("workflow", "policy"):
        if axis not in block:
            raise UsageError(f"a block of cells in {where} needs a list `{axis}`")
    settings, label = {**shared, **_settings(block, where)}, str(block.get("label", ""))
    for workflow, task, policy in product(*axes.values()):
        specs = [str(spec) for spec in (policy if isinstance(policy, list) else [policy])]
        parts = (str(workflow), str(task), *(spec.partition("@")[0] for spec in specs), label)
        name = "-".join(re.sub(r"[^\w.+=]+", "-", part).strip("-.") for part in parts if part)
        args = ["eval", str(workflow), "--policy", *specs, *(["--task", str(task)] if task else [])]
        args += [*_arguments(settings), "--out", str(out / name)]
        yield BoardCell(name, " ".join(specs), tuple(args))


def _arguments(settings: Mapping[str, object]) -> Iterator[str]:
    for name, value in settings.items():
        yield f"--{'no-' if value is False else ''}{name.replace('_', '-')}"
        if not isinstance(value, bool):
            yield from map(str, value if isinstance(value, list) else [value])


def chosen(cells: Sequence[BoardCell], parts: Sequence[str]) -> list[BoardCell]:
    """The cells whose name contains one of `parts`; all if there are none."""
    names = [cell for cell in cells if not parts or any(part in cell.name for part in parts)]
    if not names:
        raise unknown("cell", " ".join(parts), [cell.name for cell in cells])
    return names


# -- the evaluations -------------------------------------------------------------------------------


def check_cell(cell: BoardCell) -> EvaluationPlan:
    """Prepare the evaluation of a cell, before a model is loaded."""
    try:
        return prepare(parse(cell.args).command)
    except UsageError as error:
        raise UsageError(f"cell {cell.name}: {error}") from error


def play_cells(
    evaluations: Mapping[BoardCell, EvaluationPlan],
) -> tuple[list[Entry], dict[str, str]]:
    """Run the unfinished evaluations sequentially.

    Returns:
        The finished ones, and the error by name of every failed cell.
    """
    entries: list[Entry] = []
    failures: dict[str, str] = {}
    for number, (cell, evaluation) in enumerate(evaluations.items(), start=1):
        to_stderr(f"[{number}/{len(evaluations)}] {cell.name}")
        folder = evaluation.options.out
        assert folder is not None  # a cell has one
        try:
            summary = finished_summary(evaluation) or play(evaluation)
            scores = results_in(evaluation.problems, folder)
        except FlowzooError as error:
            failures[cell.name] = error_line(error)
            continue
        models = evaluation.settings["models"]
        entries.append(Entry(cell.name, cell.policy, folder, summary, scores, models))
    return entries, failures


def finished_summary(evaluation: EvaluationPlan) -> dict[str, Any] | None:
    """The summary of a complete evaluation, else None."""
    options, folder = evaluation.options, evaluation.options.out
    if folder is None or not is_evaluation(folder) or not (folder / "summary.json").exists():
        return None
    if read_json(folder / "run.json")["settings"] != evaluation.settings:
        return None
    summary = read_summary(folder)
    prices = read_prices(options.spending.prices) if options.spending.prices else {}
    before = summary.get("usage", {}).get("prices", {})
    now = {name: prices.get(row["model"], Price("", 0, 0)) for name, row in before.items()}
    costs_hold = before == {name: price._asdict() for name, price in now.items()}
    is_whole = summary["episodes"] == len(evaluation.problems) * (options.samples or 1)
    return summary if is_whole and costs_hold and bool(before) == bool(prices) else None
