"""One of several processes that run the same loop, started by torchrun or by `flowzoo train`."""

import logging
import math
import os
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import cast

import torch
from torch import distributed
from torch.distributed.elastic.multiprocessing import SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

from flowzoo.agents.identity import ModelIdentity
from flowzoo.agents.rollout.episodes import RolloutBatch
from flowzoo.aliases import T
from flowzoo.baselines.backends.backend import (
    LearnerProtocol,
    RolloutSpec,
    RunBackend,
    Shard,
    deserialize_error,
    serialize_error,
)
from flowzoo.baselines.backends.data_parallel import DataParallel, RankError, join_ranks
from flowzoo.baselines.learner.update import Learner
from flowzoo.baselines.settings.config import TrainConfig
from flowzoo.baselines.settings.policies import LearnerGroupPlan
from flowzoo.errors import FlowzooError, UsageError
from flowzoo.functions import call_contained
from flowzoo.grace import GRACE, StepDroppedError

logger = logging.getLogger("flowzoo")
CLOSE_S = 20.0  # time limit for a rank that ends to deliver its messages, in seconds
_NEEDED = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


def meet(config: TrainConfig) -> DataParallel:
    """Meet the other ranks; the learner group that trains with them."""
    missing = [name for name in _NEEDED if name not in os.environ]
    if missing:
        raise UsageError(
            f"`backend` torchrun is run by ranks, and {missing[0]} is not set: start it with "
            "`flowzoo train … --backend torchrun --ranks N`, or with torchrun"
        )
    cuda = config.device != "cpu" and torch.cuda.is_available()
    if cuda:
        index, count = int(os.environ["LOCAL_RANK"]), torch.cuda.device_count()
        if index >= count:
            raise UsageError(
                f"every rank needs a GPU of its own, and this machine has {count}: start at "
                f"most {count} ranks here, or set `device` to cpu"
            )
        torch.cuda.set_device(index)
    return join_ranks(os.environ["MASTER_ADDR"], config.shard, cuda=cuda)


class TorchrunBackend(RunBackend):
    """One of several ranks; each plays its shards with its own engine."""

    # What one rank alone decides it tells the others (`once`), and what one rank alone raises is
    # raised on all, so that none waits for a rank that has gone.

    has_ranks = True

    def __init__(self, learner_group: DataParallel) -> None:
        self._learner_group = learner_group
        self.rank, self.world = learner_group.rank, learner_group.world
        self.writes = learner_group.writes

    @classmethod
    def open(
        cls,
        config: TrainConfig,
        learner_groups: Sequence[LearnerGroupPlan],
        began: Mapping[str, ModelIdentity],
    ) -> "TorchrunBackend":
        """Meet the other ranks."""
        return cls(meet(config))

    def play(
        self, plan: RolloutSpec, shards: Sequence[Shard], play: Callable[[Shard], RolloutBatch]
    ) -> list[RolloutBatch]:
        """Rank r plays every world-size-th shard from the r-th on."""

        def play_own() -> list[tuple[int, RolloutBatch]]:
            indices = range(self.rank, len(shards), self.world)
            return [(index, play(shards[index])) for index in indices]

        played = dict(result for results in self.each(play_own) for result in results)
        return [played[index] for index in range(len(shards))]

    def once(self, work: Callable[[], T]) -> T:
        """Call `work` on the first rank; all ranks get its result."""
        return cast("T", self.each(lambda: work() if self.writes else None)[0])

    def each(self, work: Callable[[], T]) -> list[T]:
        """Results are pickled."""
        result, failed = None, None
        try:
            if GRACE.over:
                raise StepDroppedError
            with GRACE.allow():
                result = call_contained(work, f"rank {self.rank}")
        except KeyboardInterrupt:
            if not GRACE.over:
                raise
            failed = StepDroppedError()
        except Exception as error:
            failed = error
        failure = None if failed is None else serialize_error(f"rank {self.rank}", failed)
        outcomes = self._learner_group.gather((failure, result))
        if failed is not None:
            raise failed
        for rank_failure, _ in outcomes:
            if rank_failure is not None:
                error = deserialize_error(rank_failure, RankError)
                error.reported_elsewhere = True
                raise error
        return [cast("T", value) for _, value in outcomes]

    def join(self, make: Callable[[], Mapping[str, Learner]]) -> Mapping[str, LearnerProtocol]:
        """Join the learners of this rank to the group."""
        learners = make()
        for learner in learners.values():
            learner.join(self._learner_group)
        return learners

    def close(self) -> None:
        """Leave the other ranks; do not wait for a rank that does not answer."""
        if distributed.is_initialized() and not leave(CLOSE_S):
            logger.warning(
                "the other ranks have not answered for %g s: this one ends without them", CLOSE_S
            )


def leave(seconds: float) -> bool:
    """Leave the process group; return true if that took at most `seconds`."""
    # Threads of the group wait for what is on its way to a rank that has gone, and the caller for
    # them. So a daemon thread ends it, which the process does not wait for.
    leaving = threading.Thread(
        target=distributed.destroy_process_group, name="flowzoo-leave", daemon=True
    )
    leaving.start()
    leaving.join(seconds)
    return not leaving.is_alive()


_LOOK_S = 0.1
_SAVED_S = 120  # time for the checkpoint of a signal, in seconds


class RankKilledError(FlowzooError, RuntimeError):
    """A rank was ended by a signal, without a message."""


def launch(ranks: int, arguments: Sequence[str], stop_within: float) -> int:
    """Run `flowzoo` with `arguments` on `ranks` ranks; status of the first failure, or 0."""
    # An older torch, which does not read it, waits for 30 s.
    seconds = math.ceil(stop_within) + _SAVED_S
    os.environ.setdefault("TORCH_ELASTIC_SHUTDOWN_TIMEOUT", str(seconds))
    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=ranks,
        run_id=f"flowzoo-{os.getpid()}",
        rdzv_backend="c10d",
        rdzv_endpoint="127.0.0.1:0",
        local_addr="127.0.0.1",
        max_restarts=0,
        monitor_interval=_LOOK_S,
    )
    for part in ("agent.server.api", "multiprocessing.api"):  # the ranks say what is to be said
        logging.getLogger(f"torch.distributed.elastic.{part}").setLevel(logging.CRITICAL)
    try:
        elastic_launch(config, sys.executable)("-m", "flowzoo.cli", *arguments)
    except ChildFailedError as failed:
        rank, first = failed.get_first_failure()
        if first.exitcode > 0:
            return first.exitcode
        raise RankKilledError(
            f"rank {rank} was ended by signal {-first.exitcode} (9 may be the system's, for want "
            "of memory): the same command goes on from the last checkpoint"
        ) from failed
    except SignalException as stopped:  # the ranks have ended as they do
        return 128 + int(stopped.sigval)
    return 0
