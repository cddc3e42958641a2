"""Learning rate over time, and the clock that time is read from."""

from __future__ import annotations

import math
from dataclasses import dataclass

from flowzoo.baselines.learner.config import LearnerConfig


@dataclass(slots=True)
class Clock:
    """Counts updates. Learners that share one tick each other's schedules."""

    ticks: int = 0


def lr_at(tick: int, config: LearnerConfig) -> float:
    """Learning rate at a tick of the clock, counted from 0."""
    if tick < config.warmup:
        return config.lr * (tick + 1) / config.warmup
    if config.schedule == "constant":
        return config.lr
    done = min((tick - config.warmup) / (config.iterations - config.warmup), 1.0)
    left = 1 - done if config.schedule == "linear" else 0.5 * (1 + math.cos(math.pi * done))
    return config.min_lr + (config.lr - config.min_lr) * left
