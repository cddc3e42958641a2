"""What compared runs had cost: training tokens and optimiser steps per policy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from flowzoo.baselines.matrix.parity import budget_ratio, training_cost
from flowzoo.baselines.report.cells import CellData
from flowzoo.baselines.report.comparisons import sharing_pairs
from flowzoo.baselines.run.reading import RunData


def by_seed(one: CellData, other: CellData) -> list[tuple[RunData, RunData]]:
    """The runs of two cells under the seeds that both have."""
    mine, theirs = (dict(zip(cell.seeds, cell.runs, strict=True)) for cell in (one, other))
    return [(run, theirs[seed]) for seed, run in mine.items() if seed in theirs]


def budgets(
    one: str, other: str, pairs: Sequence[tuple[RunData, RunData, int]]
) -> dict[str, Any] | None:
    """Tokens and optimiser steps per policy of both cells, means over `pairs`, and their ratios.

    A pair is a run of each cell and the place of the evaluation at which the first is looked at;
    the second is looked at at its end. None where there is no pair, or a run of an earlier version
    did not record its steps.
    """
    known = all("policy_updates" in (run.summary or {}) for pair in pairs for run in pair[:2])
    if not pairs or not known:
        return None
    costs = [(training_cost(first, place), training_cost(second)) for first, second, place in pairs]
    found = budget_ratio(costs)
    count = len(costs)
    return {
        "seeds": count,
        "tokens": [sum(cost[side].tokens for cost in costs) / count for side in (0, 1)],
        "updates": [sum(cost[side].updates for cost in costs) / count for side in (0, 1)],
        "ratios": [found.tokens, found.updates],
        "flags": found.flags,
    }


def compared_budgets(
    cells: Sequence[CellData], controls: Sequence[Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """The budgets of every two cells that are compared: `one`, `other`, and those of `budgets`.

    Args:
        cells: all cells; those that differ in the sharing of policies alone are pairs.
        controls: rows of `against_controls`.
    """
    rows: list[dict[str, Any]] = []
    for shared, isolated in sharing_pairs(cells):
        ends = [(left, right, -1) for left, right in by_seed(shared, isolated)]
        costs = budgets(shared.name, isolated.name, ends)
        if costs is not None:
            rows.append({"one": shared.name, "other": isolated.name} | costs)
    for row in controls:
        if row["parity"] is not None:
            rows.append({"one": row["one"], "other": row["other"]} | row["parity"])
    return rows
