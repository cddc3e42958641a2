"""Interface of a policy's learner, in this process or in others."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeVar

from flowzoo.envs.records import Call

T = TypeVar("T")


class LearnerProtocol(Protocol):
    """A `Learner` of this process, or the proxy of one in other processes."""

    steps: int
    """Optimizer steps so far: the version of the weights."""
    lr_scale: float
    """Factor on the scheduled learning rate."""
    notes: list[str]
    """Remarks about how it trains."""

    def update(self, calls: Sequence[Call], advantages: Sequence[float]) -> dict[str, float]:
        """Train on `calls` with one advantage each; see `Learner.update`."""
        ...

    def apply(self, work: Callable[..., T], *given: Any) -> T:
        """Call `work` with the `Learner` and `given`, in the learner's process.

        `work` is a function of a module, so that other processes find it by its name, and
        everything about it can be pickled. Where several processes train together, all of them do
        it, and what the first one's returns is the answer.
        """
        ...
