"""Learning rate over time, and how time is counted."""

from __future__ import annotations

import math
from typing import NamedTuple

from flowzoo.baselines.learner.config import LearnerConfig


class UpdateTurn(NamedTuple):
    """Which of a run's policies a learner is; each is updated once an iteration, in their order."""

    place: int = 0
    of: int = 1

    def tick(self, iteration: int) -> int:
        """How many updates of all policies come before this one's, both counted from 0.

        It follows from the settings, so learners that never meet agree about it.
        """
        return iteration * self.of + self.place


ALONE = UpdateTurn()
"""Of the only policy."""


def lr_at(tick: int, config: LearnerConfig) -> float:
    """Learning rate at a tick of the clock, counted from 0."""
    if tick < config.warmup:
        return config.lr * (tick + 1) / config.warmup
    if config.schedule == "constant":
        return config.lr
    done = min((tick - config.warmup) / (config.iterations - config.warmup), 1.0)
    left = 1 - done if config.schedule == "linear" else 0.5 * (1 + math.cos(math.pi * done))
    return config.min_lr + (config.lr - config.min_lr) * left
