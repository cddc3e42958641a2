"""Learner workers: actors that are ranks of a learner group, which trains some of the policies."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import numpy as np
import numpy.typing as npt
from torch import distributed
from torch.distributed import TCPStore

from flowzoo.baselines.backends.data_parallel import join_ranks
from flowzoo.baselines.backends.ray.weights import weights_file
from flowzoo.baselines.backends.ray.worker import AnsweringActor, Failed, OpenPlayer
from flowzoo.garbage import pause_collection

if TYPE_CHECKING:
    from flowzoo.baselines.learner.learner_group import LearnerGroup
    from flowzoo.baselines.learner.update import Learner


class Meeting(NamedTuple):
    """Address at which the ranks of a learner group meet."""

    host: str
    port: int


class LearnerState(NamedTuple):
    """State of a learner that the driver keeps."""

    steps: int
    lr_scale: float


class Joined(NamedTuple):
    """A rank has its learners, and has met the others; both are by policy."""

    notes: Mapping[str, list[str]]
    states: Mapping[str, LearnerState]


class Done(NamedTuple):
    """Some work was done; what it returned comes from the first rank."""

    result: Any
    state: LearnerState


class Sent(NamedTuple):
    """Weights are in the object store; what comes from the first rank says which."""

    digest: str
    size: int


LearnerReply = Meeting | Joined | Done | Sent | Failed


class LearnerWorker(AnsweringActor):
    """The actor."""

    def __init__(
        self, rank: int, world: int, open_learners: OpenPlayer, folder: str, of: str = ""
    ) -> None:
        super().__init__(f"learner worker {rank}{of}", folder)
        self._rank, self._world, self._open = rank, world, open_learners
        self._learners: Mapping[str, Learner] = {}
        self._store: TCPStore | None = None

    def meeting(self) -> LearnerReply:
        """Open a place to meet at; of the first rank."""

        def listen() -> Meeting:
            import ray

            host = ray.util.get_node_ip_address()
            self._store = TCPStore(host, 0, self._world, is_master=True, wait_for_workers=False)
            return Meeting(host, self._store.port)

        return self._answer(listen)

    def join(self, shard: str, meeting: Meeting | None) -> LearnerReply:
        """Make the learners, meet the others at `meeting` (None: alone), and share the work."""

        def meet() -> Joined:
            with pause_collection(freeze=True):
                self._learners = cast("Mapping[str, Learner]", self._open())
            if meeting is not None:
                learner_group = self._meet(shard, meeting)
                for learner in self._learners.values():
                    learner.join(learner_group)
            notes = {name: list(learner.notes) for name, learner in self._learners.items()}
            return Joined(
                notes, {name: _state(learner) for name, learner in self._learners.items()}
            )

        return self._answer(meet)

    def work(
        self, policy: str, lr_scale: float, work: Callable[..., Any], given: Sequence[object]
    ) -> LearnerReply:
        """Do `work` with the learner of `policy`, as every rank must."""

        def do() -> Done:
            learner = self._learners[policy]
            learner.lr_scale = lr_scale
            result = work(learner, *given)
            return Done(result if self._rank == 0 else None, _state(learner))

        return self._answer(do)

    def file(self, policy: str) -> tuple[LearnerReply, npt.NDArray[np.uint8] | None]:
        """The weights of `policy` as a safetensors file, from the first rank."""
        chunks: list[npt.NDArray[np.uint8]] = []

        def write() -> Sent:
            file, digest = weights_file(self._learners[policy], keep=self._rank == 0)
            if self._rank == 0:
                chunks.append(np.frombuffer(file, np.uint8))
            return Sent(digest, len(file))

        return self._answer(write), chunks[0] if chunks else None

    def _meet(self, shard: str, meeting: Meeting) -> LearnerGroup:
        store = self._store or distributed.TCPStore(
            meeting.host, meeting.port, self._world, is_master=False
        )
        cuda = any(learner.model.device.type == "cuda" for learner in self._learners.values())
        return join_ranks(
            meeting.host, shard, cuda=cuda, store=store, rank=self._rank, world_size=self._world
        )


def _state(learner: Learner) -> LearnerState:
    return LearnerState(learner.steps, learner.lr_scale)
