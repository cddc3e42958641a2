"""Amplification of the parallel roles of every cell, the probes of all seeds pooled."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from flowzoo.aliases import Floats
from flowzoo.baselines.diagnostics.amplification import amplification
from flowzoo.baselines.report.cells import CellData
from flowzoo.baselines.report.gradients import grams_of, probes


class CellAmplification(NamedTuple):
    """One parallel role of one cell, its probes of all seeds together."""

    cell: str
    role: str
    applied: bool
    slots: int
    value: float
    low: float
    high: float
    over: float
    over_low: float
    over_high: float
    effective: float
    naive: float
    probes: int


def cell_amplification(cells: Sequence[CellData]) -> list[CellAmplification]:
    """Every parallel role of every cell; intervals of one kind hold together with 95 %."""
    grams: dict[tuple[str, str, bool], list[tuple[int, Floats]]] = {}
    for cell in cells:
        for number, run in enumerate(cell.runs):
            for role, seen in probes(run).items():
                for applied in (False, True):
                    mine = grams.setdefault((cell.name, role, applied), [])
                    mine += [(number, gram) for gram in grams_of(seen, applied)]
    found: list[CellAmplification] = []
    for applied in (False, True):
        mine = {key: value for key, value in grams.items() if key[2] == applied and value}
        confidence = 1 - 0.05 / max(1, len(mine))
        for (cell, role, _), values in mine.items():
            slots = Counter(len(gram) for _, gram in values).most_common(1)[0][0]
            chosen = [(run, gram) for run, gram in values if len(gram) == slots]
            one = amplification(
                [gram for _, gram in chosen],
                runs=[run for run, _ in chosen],
                confidence=confidence,
                shuffles=0,
            )
            found.append(
                CellAmplification(
                    cell, role, applied, one.slots, one.value, one.low, one.high, one.over,
                    one.over_low, one.over_high, one.effective, one.naive, len(chosen),
                )
            )  # fmt: skip
    return found
