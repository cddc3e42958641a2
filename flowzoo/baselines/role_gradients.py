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

from flowzoo.baselines.coherence import dot


class RoleGram(NamedTuple):
    """Inner products of the roles' gradients in one step, before clipping."""

    roles: tuple[str, ...]
    products: np.ndarray
    """(roles, roles) float64, symmetric; the diagonal has the squared norms."""

    @property
    def norms(self) -> np.ndarray:
        """(roles,) norms."""
        return np.sqrt(np.diag(self.products))


class RoleGradients:
    """Collects the gradients of one step, role by role."""

    def __init__(self, parameters: Sequence[nn.Parameter]) -> None:
        """Watch `parameters`, whose gradients are clear."""
        self._parameters = list(parameters)
        self._roles: list[str] = []
        self._parts: list[list[Tensor]] = []

    def take(self, role: str) -> None:
        """Move the gradients aside as those of `role`."""
        self._roles.append(role)
        self._parts.append(
            [torch.zeros_like(p) if p.grad is None else p.grad for p in self._parameters]
        )
        for parameter in self._parameters:
            parameter.grad = None

    @torch.no_grad()
    def merge(self) -> RoleGram:
        """Make the gradients the sum over roles; the parts are given up."""
        count = len(self._parts)
        products = np.zeros((count, count))
        for i in range(count):
            for j in range(i, count):
                products[i, j] = products[j, i] = dot(self._parts[i], self._parts[j])
        total, *others = self._parts
        for place, (parameter, grad) in enumerate(zip(self._parameters, total, strict=True)):
            for part in others:
                grad.add_(part[place])
            parameter.grad = grad
        self._parts = []
        return RoleGram(tuple(self._roles), products)


def gram_metrics(grams: Sequence[RoleGram]) -> dict[str, float]:
    """Metrics of the steps of an iteration, each a mean over the steps it is defined in.

    `grad/norm/ROLE`; `grad/mass/ROLE`, the role's share in the sum of norms; `grad/cos/A/B` for
    every pair of roles whose gradients are not 0, names in alphabetical order.
    """
    seen: dict[str, list[float]] = {}
    for gram in grams:
        norms, total = gram.norms, float(gram.norms.sum())
        for role, norm in zip(gram.roles, norms, strict=True):
            seen.setdefault(f"grad/norm/{role}", []).append(float(norm))
            if total > 0:
                seen.setdefault(f"grad/mass/{role}", []).append(float(norm) / total)
        for (i, one), (j, two) in combinations(enumerate(gram.roles), 2):
            if norms[i] > 0 and norms[j] > 0:
                cosine = float(gram.products[i, j]) / float(norms[i] * norms[j])
                seen.setdefault(f"grad/cos/{one}/{two}", []).append(cosine)
    return {name: math.fsum(values) / len(values) for name, values in seen.items()}
