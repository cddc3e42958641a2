"""What the trainer's loop knows of where its work is done."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol, TypeVar

from flowzoo.agents.rollout.episodes import RolloutBatch
from flowzoo.baselines.backends.shards import Shard
from flowzoo.baselines.learner.update import Learner

T = TypeVar("T")


class RunBackend(Protocol):
    """One process, or one of several ranks that run the same loop; all methods are collective.

    What is raised on one rank within a method is raised on all.
    """

    writes: bool
    """Whether this process writes the files of the run."""

    def play(
        self, shards: Sequence[Shard], play: Callable[[Shard], RolloutBatch]
    ) -> list[RolloutBatch]:
        """What `shards` come to, in their order, each played once with `play` by some rank."""
        ...

    def once(self, work: Callable[[], T]) -> T:
        """Do `work` where files are written; every rank gets what it returned."""
        ...

    def each(self, work: Callable[[], T]) -> list[T]:
        """Do `work` everywhere; what every rank returned, by rank."""
        ...

    def join(self, learners: Mapping[str, Learner]) -> None:
        """Let the learners share their work over the ranks; before their first update."""
        ...

    def close(self) -> None:
        """Leave the others."""
        ...
