"""Learning rates over time, and what is odd about them."""

import math
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

from flowzoo.baselines.learner.config import LearnerConfig

ODD = 0.05
"""Share of a run's steps from which on a rate of 0, or one that rises again, is reported."""


class UpdateTurn(NamedTuple):
    """Position of a learner among the run's policies, which are updated in order."""

    index: int = 0
    of: int = 1

    def tick(self, iteration: int) -> int:
        """Number of updates of all policies before this one's, both counted from 0."""
        # It follows from the settings, so learners that never meet agree about it.
        return iteration * self.of + self.index


ALONE = UpdateTurn()  # the turn of a run with one policy


def lr_in(iteration: int, turn: UpdateTurn, config: LearnerConfig) -> float:
    """Learning rate of a policy in an iteration, counted from 0."""
    tick = iteration if config.schedule_clock == "iteration" else turn.tick(iteration)
    return lr_at(tick, config)


def lr_at(tick: int, config: LearnerConfig) -> float:
    """Learning rate at a tick of the clock, counted from 0."""
    published = config.schedule_clock == "published"
    if tick < config.warmup:
        return config.lr * (tick if published else tick + 1) / config.warmup
    if config.schedule == "constant":
        return config.lr
    done = (tick - config.warmup) / (config.iterations - config.warmup)
    if not published:  # whose cosine goes on past its end
        done = min(done, 1.0)
    left = 1 - done if config.schedule == "linear" else 0.5 * (1 + math.cos(math.pi * done))
    return config.min_lr + (config.lr - config.min_lr) * left


def odd_rates(rates: Sequence[float]) -> Iterator[str]:
    """Describe the course of a policy's rates by step where it is 0, or rises after it has fallen.

    The first step is number 1. No more than `ODD` of all steps are left out.
    """
    least = 1e-9 * max(rates, default=0.0)
    fallen, rising = False, []
    for step, (before, rate) in enumerate(pairwise(rates), start=2):
        fallen |= rate < before
        if fallen and rate > before:
            rising.append(step)
    zero = [step for step, rate in enumerate(rates, start=1) if rate <= least]
    if len(zero) > ODD * len(rates):
        yield f"is 0, so that nothing is learned, in {_steps(zero, rates)}"
    if len(rising) > ODD * len(rates):
        highest = max(rates[step - 1] for step in rising)
        yield f"rises again after it has fallen, up to {highest:.2g}, in {_steps(rising, rates)}"


def _steps(steps: Sequence[int], rates: Sequence[float]) -> str:
    return f"{len(steps)} of {len(rates)} steps (first {steps[0]}, last {steps[-1]})"
