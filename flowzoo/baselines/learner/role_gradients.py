"""The gradient of each role's share of the loss, at the price of one backward pass in all.

The loss of a step is a sum over rows, so the gradients of its roles add up to its gradient. The
learner runs the micro-batches role by role; `take` moves what has gathered in the parameters'
`.grad` aside, and `merge` puts the sum of all roles back. Memory: one copy of the gradients per
role beyond the first. Norms and inner products are kept, the gradients are not.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import combinations
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from flowzoo.baselines.learner.coherence import dot
from flowzoo.baselines.learner.learner_group import LearnerGroup, SingleProcess


class RoleGramMatrix(NamedTuple):
    """Inner products of the roles' gradients in one step, before clipping."""

    roles: tuple[str, ...]
    products: np.ndarray
    """(roles, roles) float64, symmetric; the diagonal has the squared norms."""
    calls: tuple[int, ...]
    """Rows of each role in the step, trained or not."""

    @property
    def norms(self) -> np.ndarray:
        """(roles,) norms."""
        return np.sqrt(np.diag(self.products))


class RoleGradients:
    """Collects the gradients of one step, role by role."""

    def __init__(
        self, parameters: Sequence[nn.Parameter], learner_group: LearnerGroup | None = None
    ) -> None:
        """Watch `parameters`, whose gradients are clear; `learner_group` trains them."""
        self._parameters = list(parameters)
        self._learner_group = learner_group or SingleProcess()
        self._roles: list[str] = []
        self._calls: list[int] = []
        self._parts: list[list[Tensor]] = []

    def take(self, role: str, calls: int) -> None:
        """Move the gradients aside as those of `role`, which has `calls` rows in the step."""
        self._roles.append(role)
        self._calls.append(calls)
        self._parts.append(
            [torch.zeros_like(p) if p.grad is None else p.grad for p in self._parameters]
        )
        for parameter in self._parameters:
            parameter.grad = None

    @torch.no_grad()
    def merge(self) -> RoleGramMatrix:
        """Make the gradients the sum over roles; the parts are given up."""
        count = len(self._parts)
        products = np.zeros((count, count))
        parts = [self._learner_group.local(part) for part in self._parts]
        for i in range(count):
            for j in range(i, count):
                products[i, j] = products[j, i] = dot(parts[i], parts[j])
        products = self._learner_group.all_reduce(products)
        total, *others = self._parts
        for place, (parameter, grad) in enumerate(zip(self._parameters, total, strict=True)):
            for part in others:
                grad.add_(part[place])
            parameter.grad = grad
        self._parts = []
        return RoleGramMatrix(tuple(self._roles), products, tuple(self._calls))


def gram_metrics(grams: Sequence[RoleGramMatrix]) -> dict[str, float]:
    """Metrics of the steps of an iteration, each a mean over the steps it is defined in.

    `grad/norm/ROLE`; `grad/mass/ROLE`, the role's share in the sum of norms (what the loss weighs);
    `grad/mass_call/ROLE`, the same of norms per call; `grad/cos/A/B` for every pair of roles whose
    gradients are not 0, names in alphabetical order; `grad/conflict`, the share of negative ones
    among these; of the mass shares `grad/effective_roles`, exp of their entropy, and
    `grad/dominance`, the largest.
    """
    seen: dict[str, list[float]] = {}
    for gram in grams:
        for name, value in _one_step(gram).items():
            seen.setdefault(name, []).append(value)
    return {name: math.fsum(values) / len(values) for name, values in seen.items()}


def _one_step(gram: RoleGramMatrix) -> dict[str, float]:
    found: dict[str, float] = {}
    norms = gram.norms
    per_call = norms / np.array(gram.calls)
    for role, norm in zip(gram.roles, norms, strict=True):
        found[f"grad/norm/{role}"] = float(norm)
    if norms.sum() > 0:
        masses = norms / norms.sum()
        for role, mass, by_call in zip(gram.roles, masses, per_call / per_call.sum(), strict=True):
            found[f"grad/mass/{role}"] = float(mass)
            found[f"grad/mass_call/{role}"] = float(by_call)
        some = masses[masses > 0]
        found["grad/effective_roles"] = math.exp(-float(np.sum(some * np.log(some))))
        found["grad/dominance"] = float(masses.max())
    cosines: list[float] = []
    for (i, one), (j, two) in combinations(enumerate(gram.roles), 2):
        if norms[i] > 0 and norms[j] > 0:
            cosines.append(float(gram.products[i, j]) / float(norms[i] * norms[j]))
            found[f"grad/cos/{one}/{two}"] = cosines[-1]
    if cosines:
        found["grad/conflict"] = sum(cosine < 0 for cosine in cosines) / len(cosines)
    return found
