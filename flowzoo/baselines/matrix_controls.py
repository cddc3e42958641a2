"""Workflows beside single-agent controls: at equal training tokens, and at equal inference too.

Runs are paired by seed and scores by held-out item, an item's mean over seeds being the unit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import NamedTuple

import numpy as np

from flowzoo.baselines.controls import MATCHES
from flowzoo.baselines.matrix_jobs import Run, Vote
from flowzoo.baselines.matrix_parity import (
    Parity,
    Spent,
    equal_tokens,
    parity,
    same_but_sharing,
    spent,
)
from flowzoo.baselines.run_reading import Floats, RunData
from flowzoo.baselines.stats import paired_gain

Found = Mapping[Run, RunData]
"""Finished runs and what they wrote."""


class End(NamedTuple):
    """What is compared of one seed: scores of the items, (items,)."""

    control: Floats
    cell: Floats
    votes: int


@dataclass(frozen=True, slots=True)
class Beside:
    """A cell's last evaluation beside that of its control; fractions, means over `seeds`."""

    cell: str
    control: str
    equal: str
    """What is equal: `training tokens`, or that and the `calls` or output `tokens` of an answer."""
    seeds: int
    level: float
    control_level: float
    difference: float
    """The cell less the control."""
    low: float
    high: float
    """95 % interval: paired bootstrap over the items."""
    votes: float
    """Answers of the control to a problem, mean over seeds."""


def beside_controls(found: Found, votes: Sequence[Vote] = ()) -> list[Beside]:
    """Every pair of a cell and its control, for what was made equal so far."""
    done = {(one.control, one.workflow): one for one in votes if one.state == "finished"}
    rows: list[Beside] = []
    for cell, control, pairs in _judged(found):
        ends = {"training tokens": _equal_ends(found, pairs)}
        voted = [(done[pair].votes(), found[pair[1]]) for pair in pairs if pair in done]
        for match in MATCHES:
            ends[f"{match} of an answer"] = [
                End(np.array(vote[match]["scores"]), run.scores[-1], vote[match]["k"])
                for vote, run in voted
            ]
        rows += [_beside(cell, control, equal, some) for equal, some in ends.items() if some]
    return rows


def all_parities(found: Found) -> list[Parity]:
    """Budgets of all cells that differ in sharing alone, and of all controls."""
    cells = {run.cell.name: run.cell for run in found}
    rows: list[Parity] = []
    for one, other in combinations(cells.values(), 2):
        if not one.control and not other.control and same_but_sharing(one, other):
            pairs = _by_seed(found, one.name, other.name)
            both = [(spent(found[left]), spent(found[right])) for left, right in pairs]
            if both:
                rows.append(parity("sharing", one.name, other.name, both))
    for cell, control, pairs in _judged(found):
        costs: list[tuple[Spent, Spent]] = []
        for left, right in pairs:
            end = spent(found[right])
            place = equal_tokens(found[left], end.tokens)
            if place is not None:
                costs.append((spent(found[left], place), end))
        if costs:
            rows.append(parity("control", control, cell, costs))
    return rows


def _judged(found: Found) -> list[tuple[str, str, list[tuple[Run, Run]]]]:
    """Cell, control, and their pairs of runs (control first), for all that are compared."""
    cells = {run.cell.name: run.cell for run in found}
    return [
        (cell.name, control.name, _by_seed(found, control.name, cell.name))
        for cell in cells.values()
        for control in cells.values()
        if control.judges(cell)
    ]


def _by_seed(found: Found, one: str, other: str) -> list[tuple[Run, Run]]:
    """The runs of two cells under the seeds that both have finished."""
    sides = [
        {run.config.seed: run for run in found if run.cell.name == name} for name in (one, other)
    ]
    return [(run, sides[1][seed]) for seed, run in sides[0].items() if seed in sides[1]]


def _equal_ends(found: Found, pairs: Sequence[tuple[Run, Run]]) -> list[End]:
    """Control and workflow at the workflow's training tokens, without a vote."""
    ends: list[End] = []
    for control, run in pairs:
        data = found[run]
        place = equal_tokens(found[control], data.rows[-1]["tokens/total"])
        if place is not None:
            ends.append(End(found[control].scores[place], data.scores[-1], 1))
    return ends


def _beside(cell: str, control: str, equal: str, ends: Sequence[End]) -> Beside:
    ours = np.mean([end.cell for end in ends], axis=0)
    theirs = np.mean([end.control for end in ends], axis=0)
    gain = paired_gain(theirs.tolist(), ours.tolist())
    return Beside(
        cell, control, equal, len(ends), float(ours.mean()), float(theirs.mean()),
        gain.mean, gain.low, gain.high, float(np.mean([end.votes for end in ends])),
    )  # fmt: skip
