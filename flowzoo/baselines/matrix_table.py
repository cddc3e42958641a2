"""The table of a matrix: per cell the mean gain over seeds, with its uncertainty and its cost."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from flowzoo.baselines.matrix_run import Run
from flowzoo.baselines.stats import paired_gain
from flowzoo.errors import DataError


@dataclass(frozen=True, slots=True)
class CellRow:
    """A cell over its finished seeds. Accuracies and gains are fractions."""

    cell: str
    seeds: int
    before: float
    after: float
    gain: float
    low: float
    high: float
    """95 % interval of the mean gain: paired bootstrap over the items, seeds together."""
    se: float
    """Standard error of the mean gain from the spread over seeds; NaN of one seed."""
    lowest: float
    """Smallest gain of a seed."""
    items: int
    tokens: int
    """Sampled training tokens of a run, mean over seeds."""
    updates: float
    """Optimiser steps of a run's policies together, mean over seeds."""
    minutes: float
    """Wall time of a run, mean over seeds."""


def item_scores(folder: Path) -> tuple[list[float], list[float]]:
    """Scores of every held-out item at the first and at the last evaluation of a run.

    Raises:
        DataError: the run has no evaluation.
    """
    found = [
        row["eval/scores"]
        for row in map(json.loads, (folder / "metrics.jsonl").read_text("utf-8").splitlines())
        if "eval/scores" in row
    ]
    if not found:
        raise DataError(f"{folder / 'metrics.jsonl'} has no evaluation")
    return found[0], found[-1]


def cell_row(name: str, runs: Sequence[Run]) -> CellRow:
    """The row of one cell from its finished runs (at least one)."""
    pairs = [item_scores(run.folder) for run in runs]
    before = np.mean([first for first, _ in pairs], axis=0)
    after = np.mean([last for _, last in pairs], axis=0)
    # Items are the same for all seeds, so that an item's mean over seeds is the paired unit.
    gain = paired_gain(before.tolist(), after.tolist())
    gains = [float(np.mean(last) - np.mean(first)) for first, last in pairs]
    summaries = [run.summary() for run in runs]
    spread = float(np.std(gains, ddof=1) / np.sqrt(len(gains))) if len(gains) > 1 else float("nan")
    return CellRow(
        cell=name,
        seeds=len(runs),
        before=float(before.mean()),
        after=float(after.mean()),
        gain=gain.mean,
        low=gain.low,
        high=gain.high,
        se=spread,
        lowest=min(gains),
        items=gain.n,
        tokens=round(float(np.mean([one["training_tokens"] for one in summaries]))),
        updates=float(np.mean([one["updates"] for one in summaries])),
        minutes=float(np.mean([one["minutes"] for one in summaries])),
    )


def table_rows(runs: Sequence[Run]) -> list[CellRow]:
    """Rows of all cells that have a finished run, in the matrix's order."""
    cells: dict[str, list[Run]] = {}
    for run in runs:
        if run.state == "finished":
            cells.setdefault(run.cell.name, []).append(run)
    order = list(dict.fromkeys(run.cell.name for run in runs))
    return [cell_row(name, cells[name]) for name in order if name in cells]


def as_text(rows: Sequence[CellRow]) -> str:
    """The table as Markdown; percentages and points."""
    lines = [
        "| cell | seeds | before | after | gain | 95 % interval | s.e. over seeds | lowest | items "
        "| tokens | updates | minutes |",
        "|---|---:|---:|---:|---:|---|---:|---:|---:|---:|---:|---:|",
    ]
    for row in rows:
        lines.append(
            f"| {row.cell} | {row.seeds} | {100 * row.before:.1f} % | {100 * row.after:.1f} % | "
            f"{100 * row.gain:+.1f} | {100 * row.low:+.1f} to {100 * row.high:+.1f} | "
            f"{100 * row.se:.1f} | {100 * row.lowest:+.1f} | {row.items} | {row.tokens:,} | "
            f"{row.updates:.0f} | {row.minutes:.1f} |"
        )
    return "\n".join(lines) + "\n"


def as_json(rows: Sequence[CellRow]) -> list[dict[str, object]]:
    """The rows as plain values; NaN becomes None."""
    return [
        {key: None if value != value else value for key, value in asdict(row).items()}
        for row in rows
    ]
