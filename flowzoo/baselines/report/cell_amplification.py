"""Amplification of parallel agents over the probes of a run, of part of it, or of several seeds.

A probe logs the Gram matrix of its block gradients as `gram/ROLE/POLICY`. One probe alone is noisy;
probes are therefore pooled, the matrices and not the values (`diagnostics.amplification`): those of
one role, one policy and one number of slots.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import Any, NamedTuple

import numpy as np

from flowzoo.baselines.diagnostics.amplification import amplification
from flowzoo.baselines.report.cells import CellData
from flowzoo.baselines.run.reading import Floats, RunData

CURVE_FROM = 3
"""Probes that a third of a run must have for its own estimate."""


class GradientProbe(NamedTuple):
    """The Gram matrices of one role at one step: (slots, blocks, slots, blocks)."""

    step: int
    products: Floats
    applied: Floats | None
    """Of the update that the optimiser makes; None before its first step."""

    def gram(self, applied: bool) -> Floats | None:
        """One of the two, None where it is missing or nothing but zeros."""
        found = self.applied if applied else self.products
        return found if found is not None and np.einsum("sbsb->", found) > 0 else None


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


def probes(run: RunData) -> dict[str, list[GradientProbe]]:
    """The probes of every parallel role of a run, in order of steps.

    Agents of a role under several policies are several entries, named `ROLE under POLICY`. Probes
    in which another number of slots than usual had rows (slots without any in that step) cannot be
    pooled with the others and are left out.
    """
    named: dict[str, list[GradientProbe]] = {}
    for row in run.rows:
        for name, gram in row.items():
            if name.startswith("gram/"):
                applied = gram.get("applied")
                probe = GradientProbe(
                    row["step"],
                    np.array(gram["products"], np.float64),
                    None if applied is None else np.array(applied, np.float64),
                )
                named.setdefault(name.removeprefix("gram/"), []).append(probe)
    roles = Counter(name.partition("/")[0] for name in named)
    found: dict[str, list[GradientProbe]] = {}
    for name, seen in named.items():
        role, _, policy = name.partition("/")
        slots = _commonest(len(probe.products) for probe in seen)
        title = role if roles[role] == 1 else f"{role} under {policy}"
        found[title] = [probe for probe in seen if len(probe.products) == slots]
    return found


def amplification_facts(run: RunData) -> list[dict[str, Any]]:
    """For every parallel role, gradient and applied update: over the whole run, and its thirds.

    `first` and `last` are the probes in the first and in the last third of the run's steps, where
    there are `CURVE_FROM` or more; `low` may be 0 and `high` infinite, likewise `over_low` and
    `over_high`: see `diagnostics`.
    """
    last = run.rows[-1]["step"] if run.rows else 0
    rows: list[dict[str, Any]] = []
    for role, found in probes(run).items():
        for applied in (False, True):
            known = [probe for probe in found if probe.gram(applied) is not None]
            parts = {
                "whole": known,
                "first": [probe for probe in known if 3 * probe.step <= last],
                "last": [probe for probe in known if 3 * probe.step > 2 * last],
            }
            for part, chosen in parts.items():
                if chosen and (part == "whole" or len(chosen) >= CURVE_FROM):
                    facts = asdict(amplification(_grams(chosen, applied)))
                    rows.append(
                        {"role": role, "applied": applied, "part": part, "probes": len(chosen),
                         "from": chosen[0].step, "to": chosen[-1].step} | facts
                    )  # fmt: skip
    return rows


def cell_amplification(cells: Sequence[CellData]) -> list[CellAmplification]:
    """Every parallel role of every cell; intervals of one kind hold together with 95 %."""
    grams: dict[tuple[str, str, bool], list[tuple[int, Floats]]] = {}
    for cell in cells:
        for number, run in enumerate(cell.runs):
            for role, seen in probes(run).items():
                for applied in (False, True):
                    mine = grams.setdefault((cell.name, role, applied), [])
                    mine += [(number, gram) for gram in _grams(seen, applied)]
    found: list[CellAmplification] = []
    for applied in (False, True):
        mine = {key: value for key, value in grams.items() if key[2] == applied and value}
        confidence = 1 - 0.05 / max(1, len(mine))
        for (cell, role, _), values in mine.items():
            slots = _commonest(len(gram) for _, gram in values)
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


def _commonest(numbers: Iterable[int]) -> int:
    return Counter(numbers).most_common(1)[0][0]


def _grams(found: Sequence[GradientProbe], applied: bool) -> list[Floats]:
    grams = [probe.gram(applied) for probe in found]
    return [gram for gram in grams if gram is not None]
