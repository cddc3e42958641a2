"""The table of shared against isolated policies, pair by pair of cells."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from flowzoo.baselines.diagnostics.cliff import LAST
from flowzoo.baselines.report.accuracy import ENOUGH
from flowzoo.baselines.report.budgets import budgets, by_seed
from flowzoo.baselines.report.cells import CellData, Notes, captures, cliff_counts, same_problems
from flowzoo.baselines.report.claim_tests import BootstrapSample, Estimate, mean_difference
from flowzoo.baselines.report.comparisons import Side, difference, sharing_pairs
from flowzoo.baselines.report.levels import Pair


def sharing_rows(
    cells: Sequence[CellData], pairs: Sequence[Pair], notes: Notes
) -> list[dict[str, Any]]:
    """Terminal accuracy, and of `pairs`, which may be claimed about, the peak; cliffs, captures.

    Where a run has too few evaluations for a terminal accuracy, its last one is compared.
    """
    return [_row(one, other, pairs, notes) for one, other in sharing_pairs(cells)]


def _row(one: CellData, other: CellData, pairs: Sequence[Pair], notes: Notes) -> dict[str, Any]:
    runs = [*one.runs, *other.runs]
    enough = all(len(run.steps) >= ENOUGH for run in runs)
    places = slice(-LAST if enough else -1, None)
    sides = [
        Side(cell.name, [run.scores[places].mean(axis=0) for run in cell.runs])
        for cell in (one, other)
    ]
    pair = next((pair for pair in pairs if pair.shared is one and pair.isolated is other), None)
    ends = [(left, right, -1) for left, right in by_seed(one, other)]
    caught = captures(one, notes)
    return difference(*sides, paired=same_problems(one, other)) | {
        "axes": [one.axis(name) for name in ("workflow", "task", "model")],
        "terminal": enough,
        "peak": pair and _estimate(*(samples.peak for samples in pair.samples)),
        "cliffs": [list(cliff_counts(cell, notes)) for cell in (one, other)],
        "captures": [_captured(caught), max((pair["tested"] for pair in caught), default=0)],
        "parity": budgets(one.name, other.name, ends),
    }


def _estimate(one: BootstrapSample, other: BootstrapSample) -> dict[str, Any]:
    found: Estimate = mean_difference([(one, other)])
    levels = [float(np.mean(side.values)) for side in (one, other)]
    return {"mean": found.mean, "low": found.low, "high": found.high, "levels": levels}


def _captured(caught: Sequence[dict[str, Any]]) -> int:
    """Runs in which the pair of roles that was captured most often was."""
    return max((pair["captured"] for pair in caught), default=0)
