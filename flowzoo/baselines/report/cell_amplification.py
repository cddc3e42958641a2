"""Amplification of parallel agents over the probes of a run, or of part of it.

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
        slots = commonest(len(probe.products) for probe in seen)
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
                    facts = asdict(amplification(grams_of(chosen, applied)))
                    rows.append(
                        {"role": role, "applied": applied, "part": part, "probes": len(chosen),
                         "from": chosen[0].step, "to": chosen[-1].step} | facts
                    )  # fmt: skip
    return rows


def commonest(numbers: Iterable[int]) -> int:
    """Most frequent number; the first of several."""
    return Counter(numbers).most_common(1)[0][0]


def grams_of(found: Sequence[GradientProbe], applied: bool) -> list[Floats]:
    """Gram matrices of the probes that have one."""
    grams = [probe.gram(applied) for probe in found]
    return [gram for gram in grams if gram is not None]
