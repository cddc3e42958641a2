"""A run's learners as a learner group of actors, and what speaks for them in the driver.

Every rank of the learner group is asked for the same at the same time, since what a learner does is
collective. Rows are put into Ray's object store once, however many ranks read them there. A rank
that raises while others wait for it, that dies, or that does not answer in time, ends the learner
group: nothing of it can be used again, and all that it had is in the last checkpoint.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import ray
from ray.exceptions import RayError, RayTaskError
from ray.util.placement_group import PlacementGroup
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy
from torch import Tensor

from flowzoo.baselines.backends.backend import LearnersLostError
from flowzoo.baselines.backends.data_parallel import RankError
from flowzoo.baselines.backends.ray.cluster import place
from flowzoo.baselines.backends.ray.learner_worker import (
    Done,
    Joined,
    LearnerState,
    LearnerWorker,
    Meeting,
    Sent,
)
from flowzoo.baselines.backends.ray.worker import Failed, NodeFacts, OpenPlayer
from flowzoo.baselines.backends.told import hear
from flowzoo.baselines.backends.torchrun import WAIT
from flowzoo.baselines.learner.batch import SampledTokens
from flowzoo.baselines.learner.update import Learner
from flowzoo.envs.records import Call
from flowzoo.errors import FlowzooError

JOINED_WITHIN_S = 600.0
"""How long ranks may take to start, to load their models and to meet."""
DONE_WITHIN_S = WAIT.total_seconds() + 60.0
"""How long they may take for anything else; before that they give one another up."""
GRACE_S = 20.0
"""How long the others may take once one has failed."""
_LOOK_S = 1.0

T = TypeVar("T")


class LearnerError(FlowzooError, RuntimeError):
    """Ranks that learn failed, cannot be started, or do not answer."""


class WeightsFile(NamedTuple):
    """Weights of a policy in the object store."""

    file: Any
    """Reference to a safetensors file, as bytes in an array."""
    digest: str
    """Of the tensors in it."""
    size: int
    """Of the file, in bytes."""


def start_learners(
    count: int, open_learners: OpenPlayer, cores: int, gpus: float, of: str = ""
) -> tuple[RemoteLearnerGroup, PlacementGroup]:
    """Actors that learn together, on as few nodes as there can be; their models come later.

    `of` is what errors call the learner group by, if there are others: ` of POLICY`.

    Raises:
        UsageError: the cluster has no room for them.
    """
    bundle = {"CPU": float(cores), **({"GPU": gpus} if gpus else {})}
    group = place([bundle] * count, "learner", of=of)
    actor = ray.remote(LearnerWorker)
    workers = [
        actor.options(
            num_cpus=cores,
            num_gpus=gpus,
            max_restarts=0,  # one that came back would know nothing that the others know
            max_task_retries=0,
            scheduling_strategy=PlacementGroupSchedulingStrategy(group, rank),
        ).remote(rank, count, open_learners, os.getcwd(), of)
        for rank in range(count)
    ]
    return RemoteLearnerGroup(workers, of), group


class RemoteLearnerGroup:
    """The ranks. Not for several threads at a time, but for `end`."""

    def __init__(self, workers: Sequence[Any], of: str = "") -> None:
        """Use `workers`: handles of actors with the methods of `LearnerWorker`, by rank.

        For `of` see `start_learners`.
        """
        self._workers, self._of = list(workers), of
        self.pids: list[int] = []
        """Of their processes, once they have said `facts`."""

    def facts(self, token: str) -> list[NodeFacts]:
        """What every rank's node is like.

        Raises:
            LearnersLostError: a rank cannot be started.
        """
        try:
            found: list[NodeFacts] = self._ask(lambda one: one.facts.remote(token))
        except LearnersLostError as lost:
            why = str(lost.__cause__).strip().splitlines()[-1:]
            raise LearnersLostError(
                f"a learner worker{self._of} cannot be started: {''.join(why)}. What is in the "
                "last checkpoint is good: the same command goes on from there"
            ) from lost
        self.pids = [one.pid for one in found]
        return found

    def join(self, shard: str) -> dict[str, RemoteLearner]:
        """Let the ranks make their learners and meet; what speaks for these, by policy.

        Raises:
            FlowzooError: what a rank raised, or `LearnerError`.
            LearnersLostError: a rank died.
        """
        meeting: Meeting | None = None
        if len(self._workers) > 1 or shard == "full":
            (meeting,) = self._wait([self._workers[0].meeting.remote()], JOINED_WITHIN_S)
        joined: Joined = self._ask(lambda one: one.join.remote(shard, meeting))[0]
        return {
            name: RemoteLearner(self, name, joined.notes[name], state)
            for name, state in joined.states.items()
        }

    def work(self, policy: str, lr_scale: float, work: Callable[..., T], given: Any) -> Done:
        """What the first rank's `Done` says, once all have done `work`."""
        asked = policy, lr_scale, work, ray.put(given)
        return self._ask(lambda one: one.work.remote(*asked), DONE_WITHIN_S)[0]

    def file(self, policy: str) -> WeightsFile:
        """The weights of `policy`, which stay on the first rank's node until they are read."""
        refs = [one.file.options(num_returns=2).remote(policy) for one in self._workers]
        sent: Sent = self._wait([said for said, _ in refs], DONE_WITHIN_S)[0]
        return WeightsFile(refs[0][1], sent.digest, sent.size)

    def end(self) -> None:
        """End the ranks, whatever they are doing."""
        for one in self._workers:
            ray.kill(one)

    def _ask(self, call: Callable[[Any], Any], within: float = JOINED_WITHIN_S) -> list[Any]:
        """What every rank answers, by rank; `call` makes the reference."""
        return self._wait([call(one) for one in self._workers], within)

    def _wait(self, refs: Sequence[Any], within: float) -> list[Any]:
        """Results of `refs`, one of each of the first ranks; an error ends the group."""
        waiting = {ref: rank for rank, ref in enumerate(refs)}
        deadline, found = time.monotonic() + within, dict[int, Any]()
        failed, lost = dict[int, FlowzooError](), dict[int, RayError]()
        while waiting and time.monotonic() < deadline:
            done, _ = ray.wait(list(waiting), timeout=_LOOK_S)
            for ref in done:
                rank = waiting.pop(ref)
                try:
                    found[rank] = ray.get(ref)
                except RayTaskError as error:  # they catch their own: this is about the answer
                    failed[rank] = LearnerError(
                        f"the answer of learner worker {rank}{self._of}: {error}"
                    )
                except RayError as error:
                    lost[rank] = error
                else:
                    if isinstance(found[rank], Failed):
                        failed[rank] = hear(found[rank].error, LearnerError)
            if failed or lost:
                deadline = min(deadline, time.monotonic() + GRACE_S)
        if not failed and not lost and not waiting:
            return [found[rank] for rank in range(len(refs))]
        self.end()
        if lost:
            rank, error = next(iter(lost.items()))
            raise LearnersLostError(
                f"learner worker {rank}{self._of} is gone ({type(error).__name__}), and nothing of "
                "what it had since the last checkpoint can be used: the same command goes on from "
                "there"
            ) from error
        if failed:
            raise _cause(failed)
        raise LearnerError(
            f"learner workers {', '.join(map(str, sorted(waiting.values())))}{self._of} have not "
            f"answered in {within:.0f} s; the last checkpoint is good, and the same command goes "
            "on from it"
        )


class RemoteLearner:
    """Proxy in the driver of one policy's learner on all ranks of a group."""

    def __init__(
        self, learner_group: RemoteLearnerGroup, policy: str, notes: list[str], state: LearnerState
    ) -> None:
        """Of `policy`; made by `RemoteLearnerGroup.join`."""
        self._learner_group, self._policy = learner_group, policy
        self.notes = notes
        self.steps, self.lr_scale = state

    def update(self, calls: Sequence[Call], advantages: Sequence[float]) -> dict[str, float]:
        """See `Learner`."""
        return self.apply(Learner.update, calls, advantages)

    def gaps(self, rows: Sequence[SampledTokens]) -> Tensor:
        """See `Learner`; every rank has the same rows."""
        return self.apply(Learner.gaps, rows)

    def apply(self, work: Callable[..., T], *given: Any) -> T:
        """See `LearnerLike`.

        Raises:
            FlowzooError: what a rank raised; `LearnerError` in place of what is not the package's.
            LearnersLostError: a rank died.
        """
        done = self._learner_group.work(self._policy, self.lr_scale, work, given)
        self.steps, self.lr_scale = done.state
        return done.made

    def file(self) -> WeightsFile:
        """The weights of now."""
        return self._learner_group.file(self._policy)


def _cause(failed: Mapping[int, FlowzooError]) -> FlowzooError:
    """What is to be raised: rather not that another rank has gone."""
    own = [error for error in failed.values() if not isinstance(error, RankError)]
    kinds = [error for error in own if not isinstance(error, LearnerError)]
    return [*kinds, *own, *failed.values()][0]
