"""The gradient of each role's share of the loss, at the price of one backward pass in all.

Gradient mass is flowzoo's definition; that of arXiv 2605.24202 is not public.
"""

import math
from collections.abc import Sequence
from itertools import combinations
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from flowzoo.aliases import StateDict
from flowzoo.baselines.learner.config import CoherenceForm
from flowzoo.baselines.learner.learner_group import LearnerGroup
from flowzoo.errors import UsageError

PUBLISHED_EPS = 1e-8
"""Added to the product of norms in the published cosine."""


class RoleGramMatrix(NamedTuple):
    """Inner products of the roles' gradients in one step, before clipping."""

    roles: tuple[str, ...]
    products: np.ndarray  # (roles, roles) float64, symmetric; the diagonal has the squared norms
    calls: tuple[int, ...]  # rows of each role in the step, trained or not

    @property
    def norms(self) -> np.ndarray:
        """(roles,) norms."""
        return np.sqrt(np.diag(self.products))


class RoleGradients:
    """Collects the gradients of one step, role by role."""

    # The loss is a sum over rows, so the roles' gradients add up to its gradient. This costs the
    # memory of one copy of the gradients for each role beyond the first.

    def __init__(
        self, parameters: Sequence[nn.Parameter], learner_group: LearnerGroup | None = None
    ) -> None:
        self._parameters = list(parameters)
        self._learner_group = learner_group or LearnerGroup()
        self._roles: list[str] = []
        self._calls: list[int] = []
        self._parts: list[list[Tensor]] = []

    def take(self, role: str, calls: int) -> None:
        """Move the gradients aside as `role`'s, which has `calls` rows in the step."""
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
        for index, (parameter, grad) in enumerate(zip(self._parameters, total, strict=True)):
            for part in others:
                grad.add_(part[index])
            parameter.grad = grad
        self._parts = []
        return RoleGramMatrix(tuple(self._roles), products, tuple(self._calls))


def gram_metrics(grams: Sequence[RoleGramMatrix]) -> dict[str, float]:
    """Metrics `grad/` of an iteration, each a mean over the steps that it is defined in."""
    # mass: share in the sum of norms; mass_square: of squared norms; mass_call: of norms per call;
    # conflict: share of negative cosines; effective_roles: exp of the entropy of the mass shares;
    # dominance: the largest.
    seen: dict[str, list[float]] = {}
    for gram in grams:
        for name, value in _one_step(gram).items():
            seen.setdefault(name, []).append(value)
    return {name: math.fsum(values) / len(values) for name, values in seen.items()}


def _one_step(gram: RoleGramMatrix) -> dict[str, float]:
    metrics: dict[str, float] = {}
    norms = gram.norms
    per_call = norms / np.array(gram.calls)
    for role, norm in zip(gram.roles, norms, strict=True):
        metrics[f"grad/norm/{role}"] = float(norm)
    if norms.sum() > 0:
        masses = norms / norms.sum()
        shares = zip(gram.roles, norms, masses, per_call / per_call.sum(), strict=True)
        for role, norm, mass, by_call in shares:
            metrics[f"grad/mass/{role}"] = float(mass)
            metrics[f"grad/mass_square/{role}"] = float(norm**2 / (norms @ norms))
            metrics[f"grad/mass_call/{role}"] = float(by_call)
        some = masses[masses > 0]
        metrics["grad/effective_roles"] = math.exp(-float(np.sum(some * np.log(some))))
        metrics["grad/dominance"] = float(masses.max())
    cosines: list[float] = []
    for (i, role), (j, other_role) in combinations(enumerate(gram.roles), 2):
        if norms[i] > 0 and norms[j] > 0:
            cosines.append(float(gram.products[i, j]) / float(norms[i] * norms[j]))
            metrics[f"grad/cos/{role}/{other_role}"] = cosines[-1]
    if cosines:
        metrics["grad/conflict"] = sum(cosine < 0 for cosine in cosines) / len(cosines)
    return metrics


class Coherence:
    """The running mean of one policy's gradients, and the scale it gives."""

    def __init__(self, strength: float, window: int, form: CoherenceForm = "flowzoo") -> None:
        self.strength, self.window = strength, window
        self.is_published = form == "published"
        """True if the gradient is scaled before it is clipped, and the mean takes scaled ones."""
        self.learner_group = LearnerGroup()
        """Over which the gradients are spread."""
        self.count = 0
        self.mean: list[Tensor] = []
        """The running mean, one tensor a parameter; empty before the first step."""

    @torch.no_grad()
    def apply(self, parameters: Sequence[nn.Parameter]) -> tuple[float, float]:
        """Scale the gradients in place and take them into the mean; cosine to it, and scale."""
        grads = [torch.zeros_like(p) if p.grad is None else p.grad for p in parameters]
        if not self.mean:
            start = torch.clone if self.is_published else torch.zeros_like
            self.mean = [start(grad) for grad in grads]
        floor = PUBLISHED_EPS if self.is_published else 0.0
        cosine = _cosine(grads, self.mean, self.learner_group, floor)
        self.count += 1
        scale = 1 - self.strength * max(0.0, cosine)
        # Published: a decay from the start, of scaled gradients; else a true mean until the window.
        share = 1 / (self.window if self.is_published else min(self.count, self.window))
        for mean, grad in zip(self.mean, grads, strict=True):
            mean.lerp_(grad * scale if self.is_published else grad, share)
            grad.mul_(scale)
        return cosine, scale

    def state_dict(self) -> StateDict:
        """State for `load_state_dict`."""
        return {"count": self.count, "mean": self.mean}

    def load_state_dict(self, state: StateDict, parameters: Sequence[nn.Parameter]) -> None:
        """Take over what `state_dict` returned."""
        mean: list[Tensor] = state["mean"]
        if mean and [m.shape for m in mean] != [p.shape for p in parameters]:
            raise UsageError("the saved mean of gradients is of a policy with other weights.")
        self.count = state["count"]
        self.mean = [m.to(p.device) for m, p in zip(mean, parameters, strict=False)]


def dot(left: Sequence[Tensor], right: Sequence[Tensor]) -> float:
    """Inner product of two gradients given tensor by tensor; the tensors' sums add in float64."""
    parts: list[Tensor] = []
    for a, b in zip(left, right, strict=True):
        first = a.flatten().float()
        # Lower precision is converted once for a gradient's own product.
        second = first if b is a else b.flatten().float()
        parts.append(torch.dot(first, second))
    return float(torch.stack(parts).double().sum()) if parts else 0.0


def _cosine(
    left: Sequence[Tensor], right: Sequence[Tensor], learner_group: LearnerGroup, floor: float
) -> float:
    left, right = learner_group.local(left), learner_group.local(right)
    parts = np.array([dot(left, left), dot(right, right), dot(left, right)])
    left_square, right_square, product = learner_group.all_reduce(parts).tolist()
    size = math.sqrt(left_square * right_square) + floor
    return product / size if size > 0 else 0.0
