"""Everything in this process, one shard after another."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from flowzoo.agents.rollout.episodes import RolloutBatch
from flowzoo.baselines.backends.like import LearnerLike
from flowzoo.baselines.backends.plays import PlayPlan
from flowzoo.baselines.backends.shards import Shard
from flowzoo.baselines.learner.update import Learner

T = TypeVar("T")


class LocalRunBackend:
    """See `RunBackend`."""

    writes = True

    def play(
        self, plan: PlayPlan, shards: Sequence[Shard], play: Callable[[Shard], RolloutBatch]
    ) -> list[RolloutBatch]:
        """See `RunBackend`."""
        return [play(shard) for shard in shards]

    def once(self, work: Callable[[], T]) -> T:
        """See `RunBackend`."""
        return work()

    def each(self, work: Callable[[], T]) -> list[T]:
        """See `RunBackend`."""
        return [work()]

    def join(self, make: Callable[[], Mapping[str, Learner]]) -> Mapping[str, LearnerLike]:
        """See `RunBackend`: nobody is there to share with."""
        return make()

    def together(self, works: Mapping[str, Callable[[], T]]) -> dict[str, T]:
        """See `RunBackend`: one after another, on the same cores."""
        return {policy: work() for policy, work in works.items()}

    def grading(self, here: Callable[[], Mapping[str, Any]]) -> Mapping[str, Any]:
        """See `RunBackend`: this process is like all that grade."""
        return here()

    def publish(self, learners: Mapping[str, LearnerLike]) -> dict[str, Any]:
        """Nobody plays elsewhere."""
        return {}

    def stop(self) -> None:
        """Whoever plays has an engine, which is closed."""

    def close(self) -> None:
        """Nothing was opened."""
