"""Probes of parallel agents of one role: do their gradients add up, or cancel?"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from flowzoo.aliases import Floats, MetricRow
from flowzoo.baselines.diagnostics.amplification import FEWEST, amplification
from flowzoo.baselines.learner.batch import TrainingRow, make_rows
from flowzoo.baselines.learner.loss import LossNormalizer
from flowzoo.baselines.learner.update import Learner
from flowzoo.envs.records import Call

LARGEST = 2_097_143  # the largest prime below 2**21
_PRIME = 1_000_003  # every tensor of a model gets separate signs


def sketch(gradient: Sequence[Tensor], largest: int = LARGEST, seed: int = 0) -> Tensor:
    """The gradient as one vector of min(number of weights, `largest`) float32."""
    # A count sketch (Charikar, Chen, Farach-Colton, Theor. Comput. Sci. 312 (2004) 3): number i is
    # added, with a random sign, to index i mod `largest`. Inner products are unbiased, with a
    # deviation of 0.07 % of the norms. `LARGEST` is a prime: with a multiple of the width of a
    # layer, all numbers of one column would share a few indices.
    total = sum(part.numel() for part in gradient)
    if total <= largest:
        return torch.cat([part.flatten().float() for part in gradient])
    folded = torch.zeros(largest, device=gradient[0].device)
    index = 0
    for number, part in enumerate(gradient):
        generator = torch.Generator(part.device).manual_seed(seed * _PRIME + number)
        bits = torch.randint(
            0, 2, (part.numel(),), generator=generator, device=part.device, dtype=torch.int8
        )
        signed = part.flatten().float() * bits.mul_(2).sub_(1)
        offset = 0
        while offset < len(signed):
            piece = signed[offset : offset + largest - index]
            folded[index : index + len(piece)] += piece
            offset += len(piece)
            index = (index + len(piece)) % largest
    return folded


BLOCKS = 8
"""Most blocks of problems: more would cost more passes and tell little more of the variance."""
_AT_ONCE = 2**18  # numbers of each vector that are in float64 at once
_DIGITS = 6


class SlotGramMatrix(NamedTuple):
    """Inner products of the gradients of a role's slots over blocks of problems."""

    role: str
    products: Floats  # (slots, blocks, slots, blocks) float64: <g_sb, g_tc>
    applied: Floats | None  # the same of the applied update; None before the optimizer's first step


def slot_grams(
    learner: Learner, calls: Sequence[Call], advantages: Sequence[float], blocks: int = BLOCKS
) -> list[SlotGramMatrix]:
    """Probe every role of `calls` with two slots or more, on the learner's weights."""
    # Costs about one more backward pass over those roles' rows, and the memory of slots times
    # blocks times two vectors of at most `sketch.LARGEST` numbers. Blocks are of whole problems.
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
            groups: dict[tuple[int, int], list[TrainingRow]] = {
                (slot, block): [] for slot in slots for block in range(count)
            }
            for row in role_rows:
                groups[row.call.slot, block_of[row.call.problem]].append(row)
            shape = (len(slots), count)
            matrices.append(_gram(learner, role, list(groups.values()), totals, shape))
    return matrices


def probe_metrics(grams: Sequence[SlotGramMatrix]) -> MetricRow:
    """Metrics of one probe: `grad/amplification/ROLE` and like names, matrices as `gram/ROLE`."""
    metrics: MetricRow = {}
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
    total = torch.zeros(len(vectors), len(vectors), dtype=torch.float64, device=vectors[0].device)
    for part in torch.stack(list(vectors)).split(_AT_ONCE, dim=1):
        part = part.double()
        total += part @ part.T
    return total.cpu().numpy()


def _adam_scales(learner: Learner) -> list[Tensor] | None:
    # The norm clip is a common factor and cancels. Weights whose second moment is still zero
    # (LoRA's first factor until the second has moved) have no scale and are left out.
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
    short = [float(f"{value:.{_DIGITS}g}") for value in gram.ravel()]
    return np.array(short).reshape(gram.shape).tolist()
