"""What the trainer's loop knows of where its work is done."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, TypeVar

from flowzoo.agents.rollout.episodes import RolloutBatch
from flowzoo.baselines.backends.like import LearnerLike
from flowzoo.baselines.backends.plays import PlayPlan
from flowzoo.baselines.backends.shards import Shard
from flowzoo.baselines.learner.update import Learner
from flowzoo.errors import FlowzooError, UsageError

T = TypeVar("T")


class LearnersLostError(FlowzooError, RuntimeError):
    """Other processes that learn for this one are gone; what they had is in the last checkpoint."""


class NoRoomError(UsageError):
    """A cluster has no room for the workers of a run, for now or for ever."""


class RunBackend(Protocol):
    """One process, one of several ranks that run the same loop, or a driver whose workers play.

    All methods but `stop` and `grading` are collective.

    What is raised on one rank within a method is raised on all.
    """

    writes: bool
    """Whether this process writes the files of the run."""

    def play(
        self, plan: PlayPlan, shards: Sequence[Shard], play: Callable[[Shard], RolloutBatch]
    ) -> list[RolloutBatch]:
        """What `shards` come to, in their order, each played once.

        By a rank with `play`, or by another process that makes the same of `plan`.
        """
        ...

    def once(self, work: Callable[[], T]) -> T:
        """Do `work` where files are written; every rank gets what it returned."""
        ...

    def each(self, work: Callable[[], T]) -> list[T]:
        """Do `work` everywhere; what every rank returned, by rank."""
        ...

    def join(self, make: Callable[[], Mapping[str, Learner]]) -> Mapping[str, LearnerLike]:
        """The learners of the run, who share their work over the ranks.

        Those that `make` makes, or what speaks for those that other processes have.
        """
        ...

    def together(self, works: Mapping[str, Callable[[], T]]) -> dict[str, T]:
        """Do a work for each policy, each with that policy's learner alone; what they return.

        One after another, or at the same time where the learners have processes apart: in threads,
        where the first error ends all of them.
        """
        ...

    def grading(self, here: Callable[[], Mapping[str, Any]]) -> Mapping[str, Any]:
        """What answers are graded with, for the run's record.

        What `here` says of this process, unless others grade, who may have other means.
        """
        ...

    def publish(self, learners: Mapping[str, LearnerLike]) -> dict[str, Any]:
        """Give the learners' weights to whoever plays elsewhere, and prove that they have them.

        At once, or before anything is played with them. May be called while another thread is in
        `play`, where `max_staleness` is above 1. Returns metrics; nothing where nobody plays
        elsewhere.
        """
        ...

    def stop(self) -> None:
        """Let a `play` in another thread end soon, with an error; `close` follows."""
        ...

    def close(self) -> None:
        """Leave the others; may be called again."""
        ...
