"""One of several processes that run the same loop, started by torchrun or by `flowzoo train`.

Every rank plays its shards with an engine of its own, gets all rows, computes the same advantages
and takes part in every update; the first writes the files. What one rank alone decides, it tells
the others (`once`), and what one rank alone raises is raised on all, so that none waits for a
rank that has gone. A rank that is killed takes the others with it through the launcher.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import Any, TypeVar, cast

import torch
from torch import distributed

from flowzoo.agents.rollout.episodes import RolloutBatch
from flowzoo.baselines.backends.data_parallel import (
    DataParallel,
    FullyShardedDataParallel,
    RankError,
)
from flowzoo.baselines.backends.like import LearnerLike
from flowzoo.baselines.backends.plays import PlayPlan
from flowzoo.baselines.backends.shards import Shard
from flowzoo.baselines.backends.told import hear, tell
from flowzoo.baselines.learner.update import Learner
from flowzoo.baselines.settings.config import TrainConfig
from flowzoo.errors import FlowzooError, UsageError

T = TypeVar("T")

logger = logging.getLogger("flowzoo")
WAIT = timedelta(hours=2)
"""How long a rank waits for one that neither answers nor dies."""
CLOSE_S = 20.0
"""How long a rank that ends waits for what it has sent, in seconds."""
_NEEDED = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


def meet(config: TrainConfig) -> DataParallel:
    """Meet the other ranks; the learner group that trains with them.

    Raises:
        UsageError: not started as a rank, or there are fewer GPUs than ranks here.
    """
    missing = [name for name in _NEEDED if name not in os.environ]
    if missing:
        raise UsageError(
            f"`backend` torchrun is run by ranks, and {missing[0]} is not set: start it with "
            "`flowzoo train … --backend torchrun --ranks N`, or with torchrun"
        )
    if os.environ["MASTER_ADDR"] in ("127.0.0.1", "localhost"):
        # Else gloo looks up the host's name, which need not lead anywhere.
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo0" if sys.platform == "darwin" else "lo")
    kinds = "gloo"
    if config.device != "cpu" and torch.cuda.is_available():
        place, there = int(os.environ["LOCAL_RANK"]), torch.cuda.device_count()
        if place >= there:
            raise UsageError(
                f"every rank needs a GPU of its own, and this machine has {there}: start at "
                f"most {there} ranks here, or set `device` to cpu"
            )
        torch.cuda.set_device(place)
        kinds = "cpu:gloo,cuda:nccl"
    distributed.init_process_group(kinds, timeout=WAIT)
    return FullyShardedDataParallel() if config.shard == "full" else DataParallel()


class TorchrunBackend:
    """See `RunBackend`."""

    def __init__(self, learner_group: DataParallel) -> None:
        """Run beside the ranks of `learner_group`."""
        self._learner_group = learner_group
        self.rank, self.world = learner_group.rank, learner_group.world
        self.writes = learner_group.writes

    def play(
        self, plan: PlayPlan, shards: Sequence[Shard], play: Callable[[Shard], RolloutBatch]
    ) -> list[RolloutBatch]:
        """See `RunBackend`: rank r plays every so many-th shard from the r-th on."""

        def mine() -> list[tuple[int, RolloutBatch]]:
            own = range(self.rank, len(shards), self.world)
            return [(place, play(shards[place])) for place in own]

        played = dict(one for every in self.each(mine) for one in every)
        return [played[place] for place in range(len(shards))]

    def once(self, work: Callable[[], T]) -> T:
        """See `RunBackend`."""
        return cast("T", self.each(lambda: work() if self.writes else None)[0])

    def each(self, work: Callable[[], T]) -> list[T]:
        """See `RunBackend`; what is returned is pickled."""
        made, failed = None, None
        try:
            made = work()
        except Exception as error:
            failed = error
        told = None if failed is None else tell(f"rank {self.rank}", failed)
        found = self._learner_group.gather((told, made))
        if failed is not None:
            raise failed
        for wrong, _ in found:
            if wrong is not None:
                raise _received(wrong)
        return [cast("T", value) for _, value in found]

    def join(self, make: Callable[[], Mapping[str, Learner]]) -> Mapping[str, LearnerLike]:
        """See `RunBackend`."""
        learners = make()
        for learner in learners.values():
            learner.join(self._learner_group)
        return learners

    def together(self, works: Mapping[str, Callable[[], T]]) -> dict[str, T]:
        """See `RunBackend`: one after another, in the same order on all ranks."""
        return {policy: work() for policy, work in works.items()}

    def grading(self, here: Callable[[], Mapping[str, Any]]) -> Mapping[str, Any]:
        """See `RunBackend`: every rank grades what it plays."""
        return here()

    def publish(self, learners: Mapping[str, LearnerLike]) -> dict[str, Any]:
        """Every rank plays with an engine of its own."""
        return {}

    def stop(self) -> None:
        """Nothing is played in another thread."""

    def close(self) -> None:
        """See `RunBackend`: the ranks part, and nobody waits for one that does not answer."""
        if distributed.is_initialized() and not leave(CLOSE_S):
            logger.warning(
                "the other ranks have not answered for %g s: this one ends without them", CLOSE_S
            )


def leave(seconds: float) -> bool:
    """Leave the process group; whether that was done within so many seconds.

    What is still on its way to a rank that has gone is waited for by threads of the group, and so
    by whoever ends it. That is a thread of its own here, which the process does not wait for.
    """
    leaving = threading.Thread(
        target=distributed.destroy_process_group, name="flowzoo-leave", daemon=True
    )
    leaving.start()
    leaving.join(seconds)
    return not leaving.is_alive()


def _received(told: bytes | str) -> FlowzooError:
    """The error that another rank has told of."""
    error = hear(told, RankError)
    error.told_elsewhere = True
    return error
