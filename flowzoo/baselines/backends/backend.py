"""The backend of a run: one process, ranks, or a driver with workers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, TypeVar

from flowzoo.agents.rollout.episodes import RolloutBatch
from flowzoo.baselines.backends.learner_protocol import LearnerProtocol
from flowzoo.baselines.backends.rollout_spec import RolloutSpec, Shard
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
    """True if this process writes the files of the run."""

    def play(
        self, plan: RolloutSpec, shards: Sequence[Shard], play: Callable[[Shard], RolloutBatch]
    ) -> list[RolloutBatch]:
        """Play each of `shards` once; return their batches in order.

        By a rank with `play`, or by another process that makes the same of `plan`.
        """
        ...

    def once(self, work: Callable[[], T]) -> T:
        """Do `work` where files are written; every rank gets what it returned."""
        ...

    def each(self, work: Callable[[], T]) -> list[T]:
        """Do `work` everywhere; what every rank returned, by rank."""
        ...

    def join(self, make: Callable[[], Mapping[str, Learner]]) -> Mapping[str, LearnerProtocol]:
        """The learners of the run, who share their work over the ranks.

        The learners that `make` returns, or proxies of learners in other processes.
        """
        ...

    def together(self, works: Mapping[str, Callable[[], T]]) -> dict[str, T]:
        """Do a work for each policy, each with that policy's learner alone; what they return.

        One after another, or at the same time where the learners have processes apart: in threads,
        where the first error ends all of them.
        """
        ...

    def grading(self, here: Callable[[], Mapping[str, Any]]) -> Mapping[str, Any]:
        """Settings that answers are graded with, for the run's record.

        What `here` says of this process, unless others grade, who may have other means.
        """
        ...

    def publish(self, learners: Mapping[str, LearnerProtocol]) -> dict[str, Any]:
        """Send the learners' weights to remote workers, and check that they have arrived.

        At once, or before anything is played with them. May be called while another thread is in
        `play`, where `max_staleness` is above 1. Returns metrics; empty without remote
        workers.
        """
        ...

    def stop(self) -> None:
        """Let a `play` in another thread end soon, with an error; `close` follows."""
        ...

    def close(self) -> None:
        """Leave the others; may be called again."""
        ...


class LocalRunBackend:
    """Everything in this process."""

    writes = True

    def play(
        self, plan: RolloutSpec, shards: Sequence[Shard], play: Callable[[Shard], RolloutBatch]
    ) -> list[RolloutBatch]:
        """Play the shards one after another."""
        return [play(shard) for shard in shards]

    def once(self, work: Callable[[], T]) -> T:
        """Call `work`."""
        return work()

    def each(self, work: Callable[[], T]) -> list[T]:
        """Call `work`; its result is the only one."""
        return [work()]

    def join(self, make: Callable[[], Mapping[str, Learner]]) -> Mapping[str, LearnerProtocol]:
        """Return the learners unchanged: there are no other ranks."""
        return make()

    def together(self, works: Mapping[str, Callable[[], T]]) -> dict[str, T]:
        """Call the works one after another, on the same cores."""
        return {policy: work() for policy, work in works.items()}

    def grading(self, here: Callable[[], Mapping[str, Any]]) -> Mapping[str, Any]:
        """Return the settings of this process, which grades."""
        return here()

    def publish(self, learners: Mapping[str, LearnerProtocol]) -> dict[str, Any]:
        """No remote workers: nothing to publish."""
        return {}

    def stop(self) -> None:
        """No-op."""

    def close(self) -> None:
        """No-op."""
