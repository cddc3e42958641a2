"""The coherence regulariser: gradients that repeat what went before count less.

A gradient g is scaled by 1 - strength * max(0, cos(g, m)), where m is the running mean of the
gradients before it. The mean is the plain one over the first `window` steps and an exponential
one of weight 1 / window after them: one buffer instead of `window` gradients. It is taken of the
gradients after norm clipping, so that a spike does not own it, and the scale is applied after the
clip, which would otherwise undo it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from flowzoo.baselines.learner.learner_group import LearnerGroup, SingleProcess
from flowzoo.errors import UsageError


class Coherence:
    """The running mean of one policy's gradients, and the scale it gives."""

    def __init__(self, strength: float, window: int) -> None:
        """Nothing has been seen yet."""
        self.strength, self.window = strength, window
        self.learner_group: LearnerGroup = SingleProcess()
        """Over which the gradients are spread."""
        self.count = 0
        self.mean: list[Tensor] = []
        """The running mean, one tensor a parameter; empty before the first step."""

    @torch.no_grad()
    def apply(self, parameters: Sequence[nn.Parameter]) -> tuple[float, float]:
        """Scale the gradients of `parameters` in place, and take them into the mean.

        Returns the cosine to the mean so far (0 at the first step) and the scale.
        """
        grads = [torch.zeros_like(p) if p.grad is None else p.grad for p in parameters]
        if not self.mean:
            self.mean = [torch.zeros_like(grad) for grad in grads]
        cosine = _cosine(grads, self.mean, self.learner_group)
        self.count += 1
        scale = 1 - self.strength * max(0.0, cosine)
        for mean, grad in zip(self.mean, grads, strict=True):
            mean.lerp_(grad, 1 / min(self.count, self.window))
            grad.mul_(scale)
        return cosine, scale

    def state_dict(self) -> dict[str, Any]:
        """What `load_state_dict` needs to go on."""
        return {"count": self.count, "mean": self.mean}

    def load_state_dict(self, state: dict[str, Any], parameters: Sequence[nn.Parameter]) -> None:
        """Take over what `state_dict` returned.

        Raises:
            UsageError: the mean is of other parameters.
        """
        mean: list[Tensor] = state["mean"]
        if mean and [m.shape for m in mean] != [p.shape for p in parameters]:
            raise UsageError("the saved mean of gradients is of a policy with other weights.")
        self.count = state["count"]
        self.mean = [m.to(p.device) for m, p in zip(mean, parameters, strict=False)]


def dot(left: Sequence[Tensor], right: Sequence[Tensor]) -> float:
    """Inner product of two gradients given tensor by tensor; the tensors' sums add in float64."""
    parts = [
        torch.dot(a.flatten().float(), b.flatten().float())
        for a, b in zip(left, right, strict=True)
    ]
    return float(torch.stack(parts).double().sum()) if parts else 0.0


def _cosine(left: Sequence[Tensor], right: Sequence[Tensor], learner_group: LearnerGroup) -> float:
    """Cosine of two gradients; 0 where one is 0."""
    left, right = learner_group.local(left), learner_group.local(right)
    parts = np.array([dot(left, left), dot(right, right), dot(left, right)])
    one, other, both = learner_group.all_reduce(parts).tolist()
    size = math.sqrt(one * other)
    return both / size if size > 0 else 0.0
