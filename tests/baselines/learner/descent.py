"""Updates by plain descent, whose step is the gradient, and log-probs of a microbatch."""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from flowzoo.baselines.learner.batch import Microbatch
from flowzoo.baselines.learner.hidden_states import last_hidden, logps_at
from flowzoo.baselines.learner.update import Learner
from flowzoo.baselines.learner.vocabulary import head_of
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


def token_logps(
    model: Any, batch: Microbatch, temperature: float, **options: Any
) -> tuple[Tensor, Tensor | None]:
    """Log-probs and entropies of the output tokens of a microbatch."""
    states = last_hidden(model, batch)[batch.positions]
    return logps_at(states, head_of(model), batch, temperature, **options)
