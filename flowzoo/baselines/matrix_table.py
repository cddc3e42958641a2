"""The tables of a matrix: every cell's gain and cost, the controls beside it, and the budgets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from flowzoo.baselines.matrix_controls import Beside, all_parities, beside_controls
from flowzoo.baselines.matrix_jobs import Run, Vote
from flowzoo.baselines.matrix_parity import NEAR, Parity, spent
from flowzoo.baselines.run_reading import RunData
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
    """Optimiser steps of a run per policy, mean over policies and seeds."""
    minutes: float
    """Wall time of a run, mean over seeds."""


@dataclass(frozen=True, slots=True)
class Tables:
    """All that a matrix prints."""

    cells: Sequence[CellRow]
    controls: Sequence[Beside]
    parity: Sequence[Parity]
    minutes: float
    """Wall time of all finished runs, added up."""
    runs: int
    """How many that were."""


def tables(runs: Sequence[Run], votes: Sequence[Vote] = ()) -> Tables:
    """The tables of all finished runs, in the matrix's order; every run is read once.

    Raises:
        DataError: a finished run has no evaluation, or a file of it cannot be read.
    """
    found = {run: run.data() for run in runs if run.state == "finished"}
    for run, data in found.items():
        if not data.evaluations:
            raise DataError(f"{run.folder / 'metrics.jsonl'} has no evaluation")
    cells: dict[str, list[RunData]] = {run.cell.name: [] for run in runs}
    for run, data in found.items():
        cells[run.cell.name].append(data)
    return Tables(
        cells=[cell_row(name, members) for name, members in cells.items() if members],
        controls=beside_controls(found, votes),
        parity=all_parities(found),
        minutes=sum(_minutes(data) for data in found.values()),
        runs=len(found),
    )


def cell_row(name: str, runs: Sequence[RunData]) -> CellRow:
    """The row of one cell from its finished runs (at least one)."""
    before = np.mean([run.scores[0] for run in runs], axis=0)
    after = np.mean([run.scores[-1] for run in runs], axis=0)
    # Items are the same for all seeds, so that an item's mean over seeds is the paired unit.
    gain = paired_gain(before.tolist(), after.tolist())
    gains = [float(run.scores[-1].mean() - run.scores[0].mean()) for run in runs]
    cost = [spent(run) for run in runs]
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
        tokens=round(float(np.mean([one.tokens for one in cost]))),
        updates=float(np.mean([one.updates for one in cost])),
        minutes=float(np.mean([_minutes(run) for run in runs])),
    )


def as_text(found: Tables) -> str:
    """The tables as Markdown; percentages and points."""
    parts = [_cell_lines(found.cells)]
    if found.controls:
        parts.append(_control_lines(found.controls))
    if found.parity:
        parts.append(_parity_lines(found.parity))
    parts.append([f"{found.runs} finished runs took {found.minutes:.0f} minutes in all."])
    return "\n".join("\n".join(lines) + "\n" for lines in parts)


def as_json(found: Tables) -> dict[str, Any]:
    """The tables as plain values; NaN becomes None."""
    return {
        "cells": [_plain(asdict(row)) for row in found.cells],
        "controls": [_plain(asdict(row)) for row in found.controls],
        "parity": [_plain(row._asdict()) | {"flags": row.flags} for row in found.parity],
        "minutes": found.minutes,
        "runs": found.runs,
    }


def _cell_lines(rows: Sequence[CellRow]) -> list[str]:
    return [
        "| cell | seeds | before | after | gain | 95 % interval | s.e. over seeds | lowest | items "
        "| tokens | optimiser steps per policy | minutes |",
        "|---|---:|---:|---:|---:|---|---:|---:|---:|---:|---:|---:|",
        *(
            f"| {row.cell} | {row.seeds} | {100 * row.before:.1f} % | {100 * row.after:.1f} % | "
            f"{100 * row.gain:+.1f} | {_interval(row.low, row.high)} | "
            f"{100 * row.se:.1f} | {100 * row.lowest:+.1f} | {row.items} | {row.tokens:,} | "
            f"{row.updates:.0f} | {row.minutes:.1f} |"
            for row in rows
        ),
    ]


def _control_lines(rows: Sequence[Beside]) -> list[str]:
    return [
        "A workflow's last evaluation less its control's, in points:",
        "",
        "| cell | control | equal | seeds | cell | control | difference | 95 % interval | votes |",
        "|---|---|---|---:|---:|---:|---:|---|---:|",
        *(
            f"| {row.cell} | {row.control} | {row.equal} | {row.seeds} | {100 * row.level:.1f} % | "
            f"{100 * row.control_level:.1f} % | {100 * row.difference:+.1f} | "
            f"{_interval(row.low, row.high)} | {row.votes:g} |"
            for row in rows
        ),
    ]


def _parity_lines(rows: Sequence[Parity]) -> list[str]:
    return [
        f"Budgets of compared cells; ! where a ratio is further from 1 than {100 * NEAR:g} %:",
        "",
        "| first | second | seeds | tokens, first / second | optimiser steps per policy |",
        "|---|---|---:|---:|---:|",
        *(
            f"| {row.one} | {row.other} | {row.seeds} | {row.tokens:.3f}"
            f"{' !' if 'tokens' in row.flags else ''} | {row.updates:.3f}"
            f"{' !' if 'optimiser steps' in row.flags else ''} |"
            for row in rows
        ),
    ]


def _interval(low: float, high: float) -> str:
    return f"{100 * low:+.1f} to {100 * high:+.1f}"


def _minutes(run: RunData) -> float:
    return run.rows[-1]["time/total"] / 60


def _plain(row: dict[str, Any]) -> dict[str, Any]:
    return {name: None if value != value else value for name, value in row.items()}
