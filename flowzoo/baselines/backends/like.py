"""What a run needs of the learner of a policy, wherever it is."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeVar

from flowzoo.envs.records import Call

T = TypeVar("T")


class LearnerLike(Protocol):
    """A `Learner` of this process, or the proxy of one in other processes."""

    steps: int
    """Optimiser steps so far: the version of the weights."""
    lr_scale: float
    """Factor on the scheduled learning rate."""
    notes: list[str]
    """What is to be said about how it trains."""

    def update(self, calls: Sequence[Call], advantages: Sequence[float]) -> dict[str, float]:
        """Train on `calls` with one advantage each; see `Learner.update`."""
        ...

    def apply(self, work: Callable[..., T], *given: Any) -> T:
        """What `work` returns of the `Learner` and `given`, done where that is.

        `work` is a function of a module, so that other processes find it by its name, and
        everything about it can be pickled. Where several processes train together, all of them do
        it, and what the first one's returns is the answer.
        """
        ...
