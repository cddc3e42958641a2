"""Learner workers: actors that are ranks of a learner group, which trains some of the policies."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import numpy as np
import numpy.typing as npt
from torch.distributed import TCPStore

from flowzoo.baselines.backends.data_parallel import join_ranks
from flowzoo.baselines.backends.ray.weights import weights_file
from flowzoo.baselines.backends.ray.worker import AnsweringActor, Failed, OpenPlayer
from flowzoo.garbage import pause_collection

if TYPE_CHECKING:
    from flowzoo.baselines.learner.learner_group import LearnerGroup
    from flowzoo.baselines.learner.update import Learner


class Done(NamedTuple):
    """Some work with a learner was done."""

    result: Any  # what it returned, from the first rank
    steps: int
    lr_scale: float


class LearnerWorker(AnsweringActor):
    """The actor."""

    def __init__(
        self, rank: int, world: int, open_learners: OpenPlayer, folder: str, of: str = ""
    ) -> None:
        super().__init__(f"learner worker {rank}{of}", folder)
        self._rank, self._world, self._open = rank, world, open_learners
        self._learners: Mapping[str, Learner] = {}
        self._store: TCPStore | None = None

    def meeting(self) -> tuple[str, int] | Failed:
        """Open a place to meet at, of the first rank: host and port."""

        def listen() -> tuple[str, int]:
            import ray

            host = ray.util.get_node_ip_address()
            self._store = TCPStore(host, 0, self._world, is_master=True, wait_for_workers=False)
            return host, self._store.port

        return self._answer(listen)

    def join(self, shard: str, meeting: tuple[str, int] | None) -> dict[str, Done] | Failed:
        """Make the learners, meet the others at `meeting` (None: alone), and share the work.

        Returns:
            The notes and the state of every learner, by policy.
        """

        def meet() -> dict[str, Done]:
            with pause_collection(freeze=True):
                self._learners = cast("Mapping[str, Learner]", self._open())
            if meeting is not None:
                learner_group = self._meet(shard, meeting)
                for learner in self._learners.values():
                    learner.join(learner_group)
            return {
                name: Done(list(learner.notes), learner.steps, learner.lr_scale)
                for name, learner in self._learners.items()
            }

        return self._answer(meet)

    def work(
        self, policy: str, lr_scale: float, work: Callable[..., Any], given: Sequence[object]
    ) -> Done | Failed:
        """Do `work` with the learner of `policy`, as every rank must."""

        def do() -> Done:
            learner = self._learners[policy]
            learner.lr_scale = lr_scale
            result = work(learner, *given)
            return Done(result if self._rank == 0 else None, learner.steps, learner.lr_scale)

        return self._answer(do)

    def file(self, policy: str) -> tuple[tuple[str, int] | Failed, npt.NDArray[np.uint8] | None]:
        """Digest and size of the weights of `policy`, and their file, from the first rank."""
        chunks: list[npt.NDArray[np.uint8]] = []

        def write() -> tuple[str, int]:
            file, digest = weights_file(self._learners[policy], keep=self._rank == 0)
            if self._rank == 0:
                chunks.append(np.frombuffer(file, np.uint8))
            return digest, len(file)

        return self._answer(write), chunks[0] if chunks else None

    def _meet(self, shard: str, meeting: tuple[str, int]) -> LearnerGroup:
        host, port = meeting
        store = self._store or TCPStore(host, port, self._world, is_master=False)
        cuda = any(learner.model.device.type == "cuda" for learner in self._learners.values())
        return join_ranks(
            host, shard, cuda=cuda, store=store, rank=self._rank, world_size=self._world
        )
