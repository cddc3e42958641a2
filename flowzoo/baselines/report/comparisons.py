"""Cells beside cells: a workflow against its single-agent control, shared against isolated.

Items are the same for all runs of a task, so differences are paired over items (bootstrap, these
seeds held fixed) where the problems' ids agree. That interval says what other *problems* would
show. What other *seeds* would show is a t interval over seeds; below `FEWEST` seeds nothing is
claimed about the method at all.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from flowzoo.baselines.diagnostics.cliff import LAST
from flowzoo.baselines.report.accuracy import T975, Z
from flowzoo.baselines.report.cells import CellData, same_problems
from flowzoo.baselines.stats import paired_gain

FEWEST = 3
"""Seeds on each side below which no claim is made."""
CONTROL = "single"
"""The workflow of the control."""
_LAST = slice(-1, None)
_END = slice(-LAST, None)


def is_control(cell: CellData) -> bool:
    """Whether a cell is a single agent."""
    workflow = str(cell.settings.get("workflow", ""))
    return workflow.split("_v")[0] == CONTROL


def against_controls(cells: Sequence[CellData]) -> list[dict[str, Any]]:
    """Every workflow's cell beside every control of its task and model; last evaluations."""
    found: list[dict[str, Any]] = []
    for cell in cells:
        if is_control(cell) or not cell.runs:
            continue
        for control in cells:
            same = all(cell.axis(axis) == control.axis(axis) for axis in ("task", "model"))
            if is_control(control) and control.runs and same:
                found.append(difference(control, cell, _LAST))
    return found


def shared_and_isolated(cells: Sequence[CellData]) -> list[dict[str, Any]]:
    """Pairs of cells that differ in the sharing of policies alone: their terminal accuracy."""
    found: list[dict[str, Any]] = []
    for cell in cells:
        if cell.axis("sharing") != "shared" or not cell.runs:
            continue
        for other in cells:
            if other.axis("sharing") == "isolated" and other.runs and _only_sharing(cell, other):
                found.append(difference(cell, other, _END))
    return found


def difference(one: CellData, other: CellData, places: slice) -> dict[str, Any]:
    """`other` minus `one` over the evaluations at `places`, with both kinds of interval."""
    levels = [[float(run.scores[places].mean()) for run in cell.runs] for cell in (one, other)]
    paired = same_problems(one, other)
    facts: dict[str, Any] = {
        "one": one.name, "other": other.name, "paired": paired,
        "seeds": [len(one.runs), len(other.runs)],
        "levels": [float(np.mean(level)) for level in levels],
        "tokens": [_tokens(one), _tokens(other)],
        "minutes": [_minutes(one), _minutes(other)],
        "mean": float(np.mean(levels[1]) - np.mean(levels[0])),
        "items": None, "low": None, "high": None, "claim": "",
    }  # fmt: skip
    if paired:
        gain = paired_gain(one.item_means(places).tolist(), other.item_means(places).tolist())
        facts |= {"items": gain.n, "low": gain.low, "high": gain.high}
    low, high = welch(levels[0], levels[1])
    facts |= {"seed_low": low, "seed_high": high}
    return facts | {"claim": claim(facts)}


def claim(facts: dict[str, Any]) -> str:
    """What may be said of a difference."""
    if min(facts["seeds"]) < FEWEST:
        counts = " and ".join(str(count) for count in facts["seeds"])
        return f"no claim: {counts} seeds, fewer than {FEWEST}"
    low, high = facts["seed_low"], facts["seed_high"]
    if low > 0:
        return "higher"
    return "lower" if high < 0 else "cannot be told apart"


def welch(one: Sequence[float], other: Sequence[float]) -> tuple[float | None, float | None]:
    """95 % interval of the difference of two means over seeds; None with one seed on a side.

    B. L. Welch, Biometrika 34 (1947) 28; degrees of freedom are rounded down.
    """
    if min(len(one), len(other)) < 2:
        return None, None
    parts = [float(np.var(values, ddof=1)) / len(values) for values in (one, other)]
    mean, error = float(np.mean(other) - np.mean(one)), math.sqrt(sum(parts))
    if error == 0:
        return mean, mean
    sizes = (len(one), len(other))
    below = sum(part**2 / (size - 1) for part, size in zip(parts, sizes, strict=True))
    degrees = max(1, math.floor(sum(parts) ** 2 / below))
    half = (T975[degrees - 1] if degrees <= len(T975) else Z) * error
    return mean - half, mean + half


def _only_sharing(one: CellData, other: CellData) -> bool:
    skipped = ("sharing", "seed", "out", "threads")
    names = {*one.settings, *other.settings} - {*skipped}
    return all(one.settings.get(name) == other.settings.get(name) for name in names)


def _tokens(cell: CellData) -> float:
    return float(np.mean([run.rows[-1].get("tokens/total", 0) for run in cell.runs]))


def _minutes(cell: CellData) -> float:
    return float(np.mean([run.rows[-1].get("time/total", 0.0) for run in cell.runs])) / 60
