"""Differences of two cells, and the pairs of cells that differ in the sharing of policies alone.

Items are the same for all runs of a task, so differences are paired over items (bootstrap, these
seeds held fixed) where the problems' ids agree. That interval says what other *problems* would
show. What other *seeds* would show is a t interval over seeds; below `FEWEST` seeds nothing is
claimed about the method at all.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from flowzoo.baselines.report.cells import CellData
from flowzoo.baselines.run.reading import Floats
from flowzoo.baselines.stats import paired_gain, welch

FEWEST = 3
"""Seeds on each side below which no claim is made."""


def sharing_pairs(cells: Sequence[CellData]) -> list[tuple[CellData, CellData]]:
    """Cells with shared and with isolated policies that differ in nothing else."""
    return [
        (cell, other)
        for cell in cells
        for other in cells
        if cell.axis("sharing") == "shared" and other.axis("sharing") == "isolated"
        and cell.runs and other.runs and _only_sharing(cell, other)
    ]  # fmt: skip


class Side(NamedTuple):
    """One side of a comparison."""

    name: str
    scores: Sequence[Floats]
    """Of every run, (items,)."""


def difference(one: Side, other: Side, *, paired: bool) -> dict[str, Any]:
    """`other` minus `one`, with both kinds of interval; `paired`: the items are the same."""
    levels = [[float(scores.mean()) for scores in side.scores] for side in (one, other)]
    sizes = {len(scores) for side in (one, other) for scores in side.scores}
    paired = paired and len(sizes) == 1
    facts: dict[str, Any] = {
        "one": one.name, "other": other.name, "paired": paired,
        "seeds": [len(one.scores), len(other.scores)],
        "levels": [float(np.mean(level)) for level in levels],
        "mean": float(np.mean(levels[1]) - np.mean(levels[0])),
        "items": None, "low": None, "high": None, "claim": "",
    }  # fmt: skip
    if paired:
        means = [np.mean(side.scores, axis=0).tolist() for side in (one, other)]
        gain = paired_gain(*means)
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


def _only_sharing(one: CellData, other: CellData) -> bool:
    skipped = ("sharing", "seed", "out", "threads")
    names = {*one.settings, *other.settings} - {*skipped}
    return all(one.settings.get(name) == other.settings.get(name) for name in names)
