"""Workflows beside single-agent controls: at equal training tokens, and at equal inference too.

A workflow's last evaluation stands beside the control's first one after as many training tokens or
more, so that the control never has less; and beside majority votes of the control's last policy
that cost as many calls, or as many output tokens, as an answer of the workflow. Those votes are
what `flowzoo.baselines.matrix.controls` measured and left in the control's run directory. A control
that never had the tokens is compared at its last evaluation, which is then said.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import numpy as np

from flowzoo.agents.evaluation.majority import MATCHES
from flowzoo.baselines.matrix.cell import is_control
from flowzoo.baselines.matrix.parity import equal_tokens
from flowzoo.baselines.report.budgets import budgets, by_seed
from flowzoo.baselines.report.cells import CellData, same_problems
from flowzoo.baselines.report.comparisons import Side, difference
from flowzoo.baselines.run.reading import Floats, RunData, run_label
from flowzoo.errors import DataError


def against_controls(cells: Sequence[CellData]) -> list[dict[str, Any]]:
    """Every workflow's cell beside every control of its task and model, whatever was made equal.

    Raises:
        DataError: a file with a control's votes is not what `flowzoo.baselines.matrix.controls`
            writes.
    """
    rows: list[dict[str, Any]] = []
    for cell in cells:
        for control in cells:
            same = all(cell.axis(axis) == control.axis(axis) for axis in ("task", "model"))
            pairs = by_seed(control, cell)
            kinds = [is_control(one.settings.get("workflow")) for one in (control, cell)]
            if kinds == [True, False] and same and pairs:
                rows.append(_at_equal_tokens(control, cell, pairs))
                rows += _at_equal_inference(control, cell, pairs)
    return rows


def _at_equal_tokens(
    control: CellData, cell: CellData, pairs: Sequence[tuple[RunData, RunData]]
) -> dict[str, Any]:
    totals = [run.evaluations[-1].get("tokens/total", np.inf) for _, run in pairs]
    places = [equal_tokens(one, total) for (one, _), total in zip(pairs, totals, strict=True)]
    enough = None not in places
    found = [place if place is not None and enough else -1 for place in places]
    sides = (
        Side(control.name, [one.scores[at] for (one, _), at in zip(pairs, found, strict=True)]),
        Side(cell.name, [run.scores[-1] for _, run in pairs]),
    )
    compared = difference(*sides, paired=same_problems(control, cell))
    cost = [(one, run, at) for (one, run), at in zip(pairs, found, strict=True)]
    return compared | {
        "equal": "training tokens" if enough else "nothing",
        "votes": None,
        "parity": budgets(control.name, cell.name, cost),
    }


def _at_equal_inference(
    control: CellData, cell: CellData, pairs: Sequence[tuple[RunData, RunData]]
) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    files = {one.name: _votes(one) for one, _ in pairs}
    for match in MATCHES:
        voted: list[tuple[dict[str, Any], Floats]] = []
        for one, run in pairs:
            record = files[one.name].get(run_label(run.folder))
            if record is not None and match in record["votes"]:
                voted.append((record["votes"][match], run.scores[-1]))
        if not voted:
            continue
        sides = (
            Side(control.name, [np.array(vote["scores"], np.float64) for vote, _ in voted]),
            Side(cell.name, [scores for _, scores in voted]),
        )
        compared = difference(*sides, paired=same_problems(control, cell))
        votes = float(np.mean([vote["k"] for vote, _ in voted]))
        rows.append(compared | {"equal": f"{match} of an answer", "votes": votes, "parity": None})
    return rows


def _votes(control: RunData) -> dict[str, Any]:
    """What was measured of a control at equal inference, by the label of the workflow's run."""
    found: dict[str, Any] = {}
    for path in sorted(control.folder.glob("like-*.json")):
        try:
            record = json.loads(path.read_text(encoding="utf-8"))
            for vote in record["votes"].values():
                _ = vote["k"], vote["scores"]
            found[record["workflow"]["run"]] = record
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise DataError(f"{path} is not about a control at equal inference: {error}") from error
    return found
