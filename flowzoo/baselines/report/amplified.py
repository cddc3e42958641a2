"""Amplification of parallel agents over the probes of a run, of part of it, or of several seeds.

A probe logs the Gram matrix of its block gradients as `gram/ROLE`, with the policy behind it where
a learner's metrics carry one. One probe alone is noisy; probes are therefore pooled, the matrices
and not the values (`diagnostics.amplification`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any, NamedTuple

import numpy as np

from flowzoo.baselines.diagnostics.amplification import Amplification, amplification
from flowzoo.baselines.report.cells import CellData
from flowzoo.baselines.run_reading import Floats, RunData

CURVE_FROM = 3
"""Probes that a third of a run must have for its own estimate."""


class Probe(NamedTuple):
    """The Gram matrices of one role at one step: (slots, blocks, slots, blocks)."""

    step: int
    products: Floats
    applied: Floats | None
    """Of the update that the optimiser makes; None before its first step."""

    def gram(self, applied: bool) -> Floats | None:
        """One of the two, None where it is missing or nothing but zeros."""
        found = self.applied if applied else self.products
        return found if found is not None and np.einsum("sbsb->", found) > 0 else None


class Amplified(NamedTuple):
    """One parallel role of one cell, its probes of all seeds together."""

    cell: str
    role: str
    applied: bool
    slots: int
    value: float
    low: float
    high: float
    naive: float
    probes: int


def probes(run: RunData) -> dict[str, list[Probe]]:
    """The probes of every parallel role of a run, in order of steps."""
    found: dict[str, list[Probe]] = {}
    for row in run.rows:
        for name, gram in row.items():
            if name.startswith("gram/"):
                role = name.split("/")[1]
                applied = gram.get("applied")
                found.setdefault(role, []).append(
                    Probe(
                        row["step"],
                        np.array(gram["products"], np.float64),
                        None if applied is None else np.array(applied, np.float64),
                    )
                )
    return found


def amplification_facts(run: RunData) -> list[dict[str, Any]]:
    """For every parallel role, gradient and applied update: over the whole run, and its thirds.

    `first` and `last` are the probes in the first and in the last third of the run's steps, where
    there are `CURVE_FROM` or more; `low` may be 0 and `high` infinite, see `diagnostics`.
    """
    last = run.rows[-1]["step"] if run.rows else 0
    rows: list[dict[str, Any]] = []
    for role, found in probes(run).items():
        parts = {
            "whole": found,
            "first": [probe for probe in found if 3 * probe.step <= last],
            "last": [probe for probe in found if 3 * probe.step > 2 * last],
        }
        for applied in (False, True):
            for name, chosen in parts.items():
                grams = _grams(chosen, applied)
                if grams and (name == "whole" or len(grams) >= CURVE_FROM):
                    rows.append(_facts(role, applied, name, chosen, amplification(grams)))
    return rows


def cell_amplification(cells: Sequence[CellData]) -> list[Amplified]:
    """Every parallel role of every cell; intervals of one kind hold together with 95 %."""
    grams: dict[tuple[str, str, bool], list[Floats]] = {}
    for cell in cells:
        for run in cell.runs:
            for role, seen in probes(run).items():
                for applied in (False, True):
                    mine = grams.setdefault((cell.name, role, applied), [])
                    mine += _grams(seen, applied)
    found: list[Amplified] = []
    for applied in (False, True):
        mine = {key: value for key, value in grams.items() if key[2] == applied and value}
        confidence = 1 - 0.05 / max(1, len(mine))
        for (cell, role, _), values in mine.items():
            one = amplification(values, confidence=confidence, shuffles=0)
            found.append(
                Amplified(
                    cell, role, applied, one.slots, one.value, one.low, one.high, one.naive,
                    len(values),
                )
            )  # fmt: skip
    return found


def _grams(found: Sequence[Probe], applied: bool) -> list[Floats]:
    grams = [probe.gram(applied) for probe in found]
    return [gram for gram in grams if gram is not None]


def _facts(
    role: str, applied: bool, part: str, chosen: Sequence[Probe], one: Amplification
) -> dict[str, Any]:
    return asdict(one) | {
        "role": role, "applied": applied, "part": part, "probes": len(chosen),
        "from": chosen[0].step, "to": chosen[-1].step, "unbounded": math.isinf(one.high),
    }  # fmt: skip
