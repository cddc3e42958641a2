"""Probes of parallel agents of one role: do their gradients add up, or cancel?

Every `probe_every` steps, before the update, the gradient of every slot of a role with several
agents is computed over separate blocks of problems. What is kept is their Gram matrix, from which
`diagnostics.amplification` estimates how N slots add up without mistaking noise for disagreement.
A probe costs about one more backward pass over those roles' rows and, while it lasts, the memory
of slots times blocks times two vectors of at most `sketch.LARGEST` numbers; gradients of larger
models are folded to that. It changes neither weights nor optimizer.

The second matrix, `applied`, has the gradients divided by the square roots of Adam's running second
moments as they are before the update: the shares of the slots in the update that is really
applied. The norm clip is a common factor and cancels. Adam's moments have grown with the sum of all
slots, so that the *length* of an update does not grow with their number; what the matrix tells is
whether slots push in one direction once every weight is on Adam's scale. Weights whose second
moment is still zero (LoRA's first factor until the second has moved) have no such scale and are
left out of it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from flowzoo.baselines.diagnostics.amplification import FEWEST, Floats, amplification
from flowzoo.baselines.diagnostics.sketch import sketch
from flowzoo.baselines.learner.batch import TrainingRow, make_rows
from flowzoo.baselines.learner.loss import LossNormalizer
from flowzoo.baselines.learner.update import Learner
from flowzoo.envs.records import Call

BLOCKS = 8
"""Most blocks of problems: more would cost more passes and tell little more of the variance."""
_AT_ONCE = 2**18
"""Numbers of each vector that are in float64 at once."""
_DIGITS = 6


class SlotGramMatrix(NamedTuple):
    """Inner products of the gradients of a role's slots over blocks of problems."""

    role: str
    products: Floats
    """(slots, blocks, slots, blocks) float64: <g_sb, g_tc>."""
    applied: Floats | None
    """The same of the applied update; None before the optimizer's first step."""


def slot_grams(
    learner: Learner, calls: Sequence[Call], advantages: Sequence[float], blocks: int = BLOCKS
) -> list[SlotGramMatrix]:
    """Probe every role of `calls` that has two slots or more, on the learner's weights of now.

    Blocks are of whole problems, whose numbers differ by one at most. A role is left out where
    there are fewer than `FEWEST` problems, or where none of its rows would be trained on.
    """
    rows = make_rows(calls, advantages, learner.config)
    totals = LossNormalizer(len(rows), sum(len(row.call.output_ids) for row in rows))
    problems = {row.call.problem: None for row in rows}
    count = min(blocks, len(problems))
    if count < FEWEST:
        return []
    block_of = {problem: index % count for index, problem in enumerate(problems)}
    matrices: list[SlotGramMatrix] = []
    for role in sorted({row.call.role for row in rows}):
        role_rows = [row for row in rows if row.call.role == role]
        slots = sorted({row.call.slot for row in role_rows})
        if len(slots) > 1 and any(row.trained for row in role_rows):
            groups = _groups(role_rows, slots, block_of, count)
            matrices.append(_gram(learner, role, groups, totals, (len(slots), count)))
    return matrices


def probe_metrics(grams: Sequence[SlotGramMatrix]) -> dict[str, Any]:
    """Metrics of one probe.

    `grad/amplification/ROLE` with `grad/amplification_low`, `_high` (95 % interval), `_naive` and
    `_over`, `_over_low`, `_over_high` (of the sum, over orthogonal gradients of the same norms),
    and `grad/amplification_applied/ROLE` with the same: the finite ones among them. `gram/ROLE` is
    a dict of the number of `slots` and of `blocks`, `products` and `applied` (nested lists or
    None), with six digits.
    """
    metrics: dict[str, Any] = {}
    for role, products, applied in grams:
        for name, gram in (("amplification", products), ("amplification_applied", applied)):
            if gram is not None:
                metrics |= _amplification(f"grad/{name}", role, gram)
        metrics[f"gram/{role}"] = {
            "slots": products.shape[0],
            "blocks": products.shape[1],
            "products": _plain(products),
            "applied": None if applied is None else _plain(applied),
        }
    return metrics


def _groups(
    rows: Sequence[TrainingRow], slots: Sequence[int], block_of: dict[str, int], blocks: int
) -> list[list[TrainingRow]]:
    """The rows of every slot in every block, slot by slot."""
    groups: dict[tuple[int, int], list[TrainingRow]] = {
        (slot, block): [] for slot in slots for block in range(blocks)
    }
    for row in rows:
        groups[row.call.slot, block_of[row.call.problem]].append(row)
    return list(groups.values())


def _gram(
    learner: Learner,
    role: str,
    groups: Sequence[Sequence[TrainingRow]],
    totals: LossNormalizer,
    shape: tuple[int, int],
) -> SlotGramMatrix:
    scales = _adam_scales(learner)
    plain: list[Tensor] = []
    scaled: list[Tensor] = []
    for gradient in learner.gradients(groups, totals):
        plain.append(sketch(gradient))
        if scales is not None:
            scaled.append(sketch([g / by for g, by in zip(gradient, scales, strict=True)]))
    full = (*shape, *shape)
    across = learner.learner_group.all_reduce
    applied = None if scales is None else across(_products(scaled)).reshape(full)
    return SlotGramMatrix(role, across(_products(plain)).reshape(full), applied)


def _products(vectors: Sequence[Tensor]) -> Floats:
    """Inner products of vectors of float32, added up in float64: (vectors, vectors)."""
    total = torch.zeros(len(vectors), len(vectors), dtype=torch.float64, device=vectors[0].device)
    for part in torch.stack(list(vectors)).split(_AT_ONCE, dim=1):
        part = part.double()
        total += part @ part.T
    return total.cpu().numpy()


def _adam_scales(learner: Learner) -> list[Tensor] | None:
    """Divisors of Adam for every weight's gradient, up to a common factor.

    None without history, and for an optimizer that keeps no second moment of every weight.
    """
    states = [learner.optimizer.state.get(parameter) for parameter in learner.parameters]
    filled = [state for state in states if state]
    if not filled or not all("exp_avg_sq" in state for state in filled):
        return None
    group = learner.optimizer.param_groups[0]
    scales: list[Tensor] = []
    for parameter, state in zip(learner.parameters, states, strict=True):
        if not state:  # it never had a gradient
            scales.append(torch.full_like(parameter, math.inf))
            continue
        second = state["exp_avg_sq"].float() / (1 - group["betas"][1] ** float(state["step"]))
        # Divided by its eps alone, a weight without history would drown all others.
        scales.append(torch.where(second > 0, second.sqrt() + group["eps"], math.inf))
    return learner.learner_group.local(scales)


def _amplification(name: str, role: str, gram: Floats) -> dict[str, float]:
    if not np.einsum("sbsb->", gram) > 0:
        return {}
    estimate = amplification([gram], shuffles=0)
    values = {
        "": estimate.value, "_low": estimate.low, "_high": estimate.high, "_naive": estimate.naive,
        "_over": estimate.over, "_over_low": estimate.over_low, "_over_high": estimate.over_high,
    }  # fmt: skip
    return {f"{name}{part}/{role}": value for part, value in values.items() if math.isfinite(value)}


def _plain(gram: Floats) -> list[Any]:
    """Nested lists with `_DIGITS` digits."""
    short = [float(f"{value:.{_DIGITS}g}") for value in gram.ravel()]
    return np.array(short).reshape(gram.shape).tolist()
