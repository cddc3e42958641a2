"""Updates by plain descent, whose step is the gradient."""

from collections.abc import Iterable

import torch
from torch import Tensor

from flowzoo.baselines.learner.update import Learner
from flowzoo.envs.records import Call

ADVANTAGES = [0.5, -1.0, 2.0, -0.3, 1.0, 0.0, 1.5, -2.0, 0.7]
"""Advantages of the nine rows of `role_rows`."""


def flat(weights: Iterable[Tensor]) -> Tensor:
    """All weights as one vector."""
    return torch.cat([weight.detach().flatten() for weight in weights])


def descend(learner: Learner) -> Learner:
    """Plain descent at rate 1, so that an update moves the weights by minus the gradient."""
    learner.optimizer = torch.optim.SGD(learner.parameters, lr=1.0)
    return learner


def moved(learner: Learner, calls: list[Call], advantages: list[float]) -> Tensor:
    """Minus what an update adds to the weights."""
    before = flat(learner.parameters)
    learner.update(calls, advantages)
    return before - flat(learner.parameters)
