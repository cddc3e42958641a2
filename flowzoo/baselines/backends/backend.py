"""The backend of a run: one process, ranks, or a driver with workers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from flowzoo.agents.rollout.episodes import RolloutBatch
from flowzoo.aliases import T
from flowzoo.baselines.backends.rollout_spec import RolloutSpec, Shard
from flowzoo.baselines.learner.update import Learner
from flowzoo.envs.records import Call
from flowzoo.errors import FlowzooError, UsageError


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

    def apply(self, work: Callable[..., T], *given: Any) -> T:
        """Call `work`, a function of a module, with the `Learner` and `given` in its process."""
        # Where several processes train together all of them do it, and the first one's result
        # counts.


class LearnersLostError(FlowzooError, RuntimeError):
    """Other processes that learn for this one are gone; what they had is in the last checkpoint."""


class NoRoomError(UsageError):
    """A cluster has no room for the workers of a run, for now or for ever."""


class RunBackend:
    """The backend of one process; ranks, and a driver with workers, override what differs."""

    # All methods but `stop` and `grading` are collective: what one rank raises is raised on all.

    writes = True
    """True if this process writes the files of the run."""

    def play(
        self, plan: RolloutSpec, shards: Sequence[Shard], play: Callable[[Shard], RolloutBatch]
    ) -> list[RolloutBatch]:
        """Batches of `shards` in order, each played once with `play`, or elsewhere by `plan`."""
        return [play(shard) for shard in shards]

    def once(self, work: Callable[[], T]) -> T:
        """Do `work` where files are written; every rank gets what it returned."""
        return work()

    def each(self, work: Callable[[], T]) -> list[T]:
        """Do `work` everywhere; what every rank returned, by rank."""
        return [work()]

    def join(self, make: Callable[[], Mapping[str, Learner]]) -> Mapping[str, LearnerProtocol]:
        """The learners that `make` returns, or proxies of learners in other processes."""
        return make()

    def together(self, works: Mapping[str, Callable[[], T]]) -> dict[str, T]:
        """Results of a work for each policy, called with its learner; maybe at the same time."""
        return {policy: work() for policy, work in works.items()}

    def grading(self, here: Callable[[], Mapping[str, Any]]) -> Mapping[str, Any]:
        """Settings that answers are graded with, for the run's record: `here`, or the graders'."""
        return here()

    def publish(self, learners: Mapping[str, LearnerProtocol]) -> dict[str, Any]:
        """Send the learners' weights to remote workers, and check that they have arrived."""
        # May be called while another thread is in `play`, where `max_staleness` is above 1.
        return {}

    def stop(self) -> None:
        """Let a `play` in another thread end soon, with an error; `close` follows."""

    def close(self) -> None:
        """Leave the other processes; may be called again."""
