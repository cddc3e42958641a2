"""Tables that `flowzoo matrix` prints: gain and cost of every cell, controls, and budgets."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from flowzoo.baselines.matrix.jobs import TrainingJob
from flowzoo.baselines.matrix.parity import NEAR, training_cost
from flowzoo.baselines.report.cells import group_cells
from flowzoo.baselines.report.comparisons import against_controls, compared_budgets
from flowzoo.baselines.run.reading import RunData
from flowzoo.baselines.stats import paired_gain
from flowzoo.errors import DataError


@dataclass(frozen=True, slots=True)
class MatrixRow:
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
    """Optimizer steps of a run per policy, mean over policies and seeds."""
    minutes: float
    """Wall time of a run, mean over seeds."""


@dataclass(frozen=True, slots=True)
class Tables:
    """Tables of the finished runs of a matrix."""

    cells: Sequence[MatrixRow]
    controls: Sequence[Mapping[str, Any]]
    """Rows of `against_controls`."""
    parity: Sequence[Mapping[str, Any]]
    """Rows of `compared_budgets`."""
    runs: int
    minutes: float
    """Sum of the wall times of all runs."""


def tables(runs: Sequence[TrainingJob]) -> Tables:
    """The tables of all finished runs, in the matrix's order.

    Raises:
        DataError: a finished run has fewer than two evaluations, or a file of it cannot be read.
    """
    finished = [run.data() for run in runs if run.state == "finished"]
    for data in finished:
        if len(data.evaluations) < 2:
            raise DataError(f"{data.folder / 'metrics.jsonl'} has fewer than two evaluations")
    order = list(dict.fromkeys(run.cell.name for run in runs))
    cells = sorted(group_cells(finished), key=lambda cell: order.index(cell.name))
    controls = against_controls(cells)
    return Tables(
        cells=[cell_row(cell.name, cell.runs) for cell in cells],
        controls=controls,
        parity=compared_budgets(cells, controls),
        runs=len(finished),
        minutes=sum(_minutes(data) for data in finished),
    )


def cell_row(name: str, runs: Sequence[RunData]) -> MatrixRow:
    """The row of one cell from its finished runs (at least one)."""
    before = np.mean([run.scores[0] for run in runs], axis=0)
    after = np.mean([run.scores[-1] for run in runs], axis=0)
    # All seeds have the same items, so an item's mean over seeds is the paired unit.
    gain = paired_gain(before.tolist(), after.tolist())
    gains = [float(run.scores[-1].mean() - run.scores[0].mean()) for run in runs]
    cost = [training_cost(run) for run in runs]
    spread = float(np.std(gains, ddof=1) / np.sqrt(len(gains))) if len(gains) > 1 else float("nan")
    return MatrixRow(
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
        tokens=round(float(np.mean([run.tokens for run in cost]))),
        updates=float(np.mean([run.updates for run in cost])),
        minutes=float(np.mean([_minutes(run) for run in runs])),
    )


def as_text(tables: Tables) -> str:
    """The tables as Markdown; percentages and points."""
    parts = [_cell_lines(tables.cells)]
    if tables.controls:
        parts.append(_control_lines(tables.controls))
    if tables.parity:
        parts.append(parity_lines(tables.parity))
    parts.append([f"{tables.runs} finished runs took {tables.minutes:.0f} minutes in all."])
    return "\n".join("\n".join(lines) + "\n" for lines in parts)


def as_json(tables: Tables) -> dict[str, Any]:
    """The tables as plain values; a number that is not finite becomes None."""
    return _plain(asdict(tables))


def parity_lines(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """The budgets of compared cells as Markdown."""
    lines = [
        f"Budgets of compared cells; ! where a ratio is further from 1 than {100 * NEAR:g} %:",
        "",
        "| first | second | seeds | tokens | ratio | optimizer steps per policy | ratio |",
        "|---|---|---:|---:|---:|---:|---:|",
    ]
    for row in rows:
        tokens, updates = row["tokens"], row["updates"]
        marks = [" !" if name in row["flags"] else "" for name in ("tokens", "optimizer steps")]
        lines.append(
            f"| {row['one']} | {row['other']} | {row['seeds']} | {tokens[0]:,.0f} / "
            f"{tokens[1]:,.0f} | {row['ratios'][0]:.3f}{marks[0]} | {updates[0]:.1f} / "
            f"{updates[1]:.1f} | {row['ratios'][1]:.3f}{marks[1]} |"
        )
    return lines


def _cell_lines(rows: Sequence[MatrixRow]) -> list[str]:
    return [
        "| cell | seeds | before | after | gain | 95 % interval | s.e. over seeds | lowest | items "
        "| tokens | optimizer steps per policy | minutes |",
        "|---|---:|---:|---:|---:|---|---:|---:|---:|---:|---:|---:|",
        *(
            f"| {row.cell} | {row.seeds} | {100 * row.before:.1f} % | {100 * row.after:.1f} % | "
            f"{100 * row.gain:+.1f} | {_interval(row.low, row.high)} | "
            f"{100 * row.se:.1f} | {100 * row.lowest:+.1f} | {row.items} | {row.tokens:,} | "
            f"{row.updates:.1f} | {row.minutes:.1f} |"
            for row in rows
        ),
    ]


def _control_lines(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    lines = [
        "Workflow minus control at the last evaluation, in points:",
        "",
        "| cell | control | equal | seeds | cell | control | difference | 95 % interval | votes |",
        "|---|---|---|---:|---:|---:|---:|---|---:|",
    ]
    for row in rows:
        control, cell = row["levels"]
        votes = "" if row["votes"] is None else f"{row['votes']:g}"
        interval = "" if row["low"] is None else _interval(row["low"], row["high"])
        lines.append(
            f"| {row['other']} | {row['one']} | {row['equal']} | {row['seeds'][1]} | "
            f"{100 * cell:.1f} % | {100 * control:.1f} % | {100 * row['mean']:+.1f} | "
            f"{interval} | {votes} |"
        )
    return lines


def _interval(low: float, high: float) -> str:
    return f"{100 * low:+.1f} to {100 * high:+.1f}"


def _minutes(run: RunData) -> float:
    return run.rows[-1]["time/total"] / 60


def _plain(value: Any) -> Any:
    """`value` with None for every number that JSON does not have, recursively."""
    if isinstance(value, dict):
        return {name: _plain(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
