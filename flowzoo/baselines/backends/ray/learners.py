"""A run's learners as a learner group of actors, and their proxies in the driver."""

import os
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, NamedTuple

import ray
from ray.exceptions import RayError, RayTaskError
from ray.util.placement_group import PlacementGroup

from flowzoo.aliases import T
from flowzoo.baselines.backends.backend import LearnersLostError, deserialize_error
from flowzoo.baselines.backends.data_parallel import RANKS, WAIT_S, RankError
from flowzoo.baselines.backends.ray.cluster import start_actors
from flowzoo.baselines.backends.ray.learner_worker import Done, LearnerWorker
from flowzoo.baselines.backends.ray.worker import Failed, NodeFacts, OpenPlayer
from flowzoo.baselines.learner.update import Learner
from flowzoo.baselines.settings.policies import LearnerGroupPlan
from flowzoo.envs.records import Call
from flowzoo.errors import FlowzooError
from flowzoo.waits import LIMITS


def run_concurrently(
    lines: Sequence[Mapping[str, Callable[[], T]]], stop: Callable[[], None]
) -> dict[str, T]:
    """Run `lines` concurrently, the works of a line in order; return results by name."""
    # `stop` ends what is waited for, soon, with an error; it may be called more than once and from
    # any thread. What other works raise after the first error comes of `stop`, and is dropped.
    results: dict[str, T] = {}
    raised: list[Exception] = []

    def do(line: Mapping[str, Callable[[], T]]) -> None:
        for name, work in line.items():
            if raised:
                return
            try:
                results[name] = work()
            except Exception as error:
                raised.append(error)
                stop()
                return

    if len(lines) < 2:
        return {name: work() for line in lines for name, work in line.items()}
    with ThreadPoolExecutor(len(lines), "flowzoo-at-once") as threads:
        try:
            for done in [threads.submit(do, line) for line in lines]:
                done.result()
        except BaseException:  # an interruption, or `stop` has failed
            stop()
            raise
    if raised:
        raise raised[0]
    return {name: results[name] for line in lines for name in line}


JOINED_WITHIN_S = 600.0  # time limit for ranks to start, load their models and meet, in seconds
DONE_WITHIN_S = WAIT_S + 60.0
"""Time limit for any other call, in seconds; ranks give one another up before."""
GRACE_S = 20.0  # time limit for the other ranks once one has failed, in seconds
_LOOK_S = 1.0


def _done_within() -> float:
    return LIMITS.wait_s + 60.0 if LIMITS.wait_s else DONE_WITHIN_S


class LearnerError(FlowzooError, RuntimeError):
    """Ranks that learn failed, cannot be started, or do not answer."""


class WeightsFile(NamedTuple):
    """Weights of a policy in the object store."""

    file: Any  # reference to a safetensors file, as bytes in an array
    digest: str  # digest of the tensors in the file
    size: int  # size of the file, in bytes


def start_learners(
    count: int, open_learners: OpenPlayer, cores: int, gpus: float, of: str = ""
) -> "tuple[RemoteLearnerGroup, PlacementGroup]":
    """Actors that learn together, on as few nodes as there can be; their models come later."""
    workers, group = start_actors(
        "learner", LearnerWorker,
        [(rank, count, open_learners, os.getcwd(), of) for rank in range(count)],
        cores=cores, gpus=gpus, of=of,
        restarts=0,  # one that came back would know nothing that the others know
    )  # fmt: skip
    return RemoteLearnerGroup(workers, of), group


class RemoteLearnerGroup:
    """The ranks. Not for several threads at a time, but for `end`."""

    def __init__(self, workers: Sequence[Any], of: str = "") -> None:
        self._workers, self._of = list(workers), of
        self.pids: list[int] = []
        """Process ids, known after `facts`."""

    def facts(self, token: str) -> list[NodeFacts]:
        """Facts about every rank's node."""
        try:
            facts: list[NodeFacts] = self._ask(lambda node: node.facts.remote(token))
        except LearnersLostError as lost:
            why = str(lost.__cause__).strip().splitlines()[-1:]
            raise LearnersLostError(
                f"a learner worker{self._of} cannot be started: {''.join(why)}. What is in the "
                "last checkpoint is good: the same command goes on from there"
            ) from lost
        self.pids = [node.pid for node in facts]
        return facts

    def join(self, shard: str) -> "dict[str, RemoteLearner]":
        """Let the ranks make their learners and meet; proxies of the learners, by policy."""
        meeting: tuple[str, int] | None = None
        if len(self._workers) > 1 or shard == "full":
            (meeting,) = self._wait([self._workers[0].meeting.remote()], JOINED_WITHIN_S)
        joined: dict[str, Done] = self._ask(lambda worker: worker.join.remote(shard, meeting))[0]
        return {name: RemoteLearner(self, name, state) for name, state in joined.items()}

    def work(self, policy: str, lr_scale: float, work: Callable[..., T], given: Any) -> Done:
        """`Done` of the first rank, once all ranks have done `work`."""
        arguments = policy, lr_scale, work, ray.put(given)
        of = f"{policy} {getattr(work, '__name__', '')}"
        return self._ask(lambda worker: worker.work.remote(*arguments), _done_within(), of)[0]

    def file(self, policy: str) -> WeightsFile:
        """The weights of `policy`, which stay on the first rank's node until they are read."""
        refs = [worker.file.options(num_returns=2).remote(policy) for worker in self._workers]
        (sent, *_) = self._wait([sent for sent, _ in refs], _done_within(), f"{policy} file")
        return WeightsFile(refs[0][1], *sent)

    def end(self) -> None:
        """Kill the ranks at once."""
        for worker in self._workers:
            ray.kill(worker)

    def _ask(
        self, call: Callable[[Any], Any], within: float = JOINED_WITHIN_S, of: str = ""
    ) -> list[Any]:
        # What a learner does is collective, so every rank is asked at the same time. Arguments are
        # in Ray's object store once, however many ranks read them there.
        return self._wait([call(worker) for worker in self._workers], within, of)

    def _wait(self, refs: Sequence[Any], within: float, of: str = "") -> list[Any]:
        # A rank that raises while others wait for it, dies, or does not answer in time ends the
        # group: nothing of it can be used again, and all that it had is in the last checkpoint.
        with RANKS.wait(f"learner workers{self._of}", f"{self._of} {of}", limit_s=within):
            return self._answers(refs, within)

    def _answers(self, refs: Sequence[Any], within: float) -> list[Any]:
        waiting = {ref: rank for rank, ref in enumerate(refs)}
        deadline, replies = time.monotonic() + within, dict[int, Any]()
        failed, lost = dict[int, FlowzooError](), dict[int, RayError]()
        while waiting and time.monotonic() < deadline:
            done, _ = ray.wait(list(waiting), timeout=_LOOK_S)
            for ref in done:
                rank = waiting.pop(ref)
                try:
                    replies[rank] = ray.get(ref)
                except RayTaskError as error:  # they catch their own: this is about the answer
                    failed[rank] = LearnerError(
                        f"the answer of learner worker {rank}{self._of}: {error}"
                    )
                except RayError as error:
                    lost[rank] = error
                else:
                    if isinstance(replies[rank], Failed):
                        failed[rank] = deserialize_error(replies[rank].error, LearnerError)
            if failed or lost:
                deadline = min(deadline, time.monotonic() + GRACE_S)
        if not failed and not lost and not waiting:
            return [replies[rank] for rank in range(len(refs))]
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

    def __init__(self, learner_group: RemoteLearnerGroup, policy: str, state: Done) -> None:
        self._learner_group, self._policy = learner_group, policy
        self.notes: list[str]
        self.notes, self.steps, self.lr_scale = state

    def update(self, calls: Sequence[Call], advantages: Sequence[float]) -> dict[str, float]:
        """Update on all ranks; return the first rank's metrics."""
        return self.apply(Learner.update, calls, advantages)

    def apply(self, work: Callable[..., T], *given: Any) -> T:
        """Call `work` on all ranks; return the first rank's result."""
        result, self.steps, self.lr_scale = self._learner_group.work(
            self._policy, self.lr_scale, work, given
        )
        return result

    def file(self) -> WeightsFile:
        """The weights of now."""
        return self._learner_group.file(self._policy)


def _cause(failed: Mapping[int, FlowzooError]) -> FlowzooError:
    # preferably not the loss of another rank
    causes = [error for error in failed.values() if not isinstance(error, RankError)]
    kinds = [error for error in causes if not isinstance(error, LearnerError)]
    return [*kinds, *causes, *failed.values()][0]


class RemoteLearnerGroups:
    """The learner groups of a run, each in a separate placement group."""

    def __init__(
        self, plans: Sequence[LearnerGroupPlan], open_learners: OpenPlayer, cores: int, gpus: float
    ) -> None:
        self.groups: list[PlacementGroup] = []
        self._learner_groups: dict[tuple[str, ...], RemoteLearnerGroup] = {}
        """Learner groups by their policies."""
        for policies, count in plans:
            opener = open_learners._replace(given=(*open_learners.given, policies))
            of = f" of {', '.join(policies)}" if len(plans) > 1 else ""
            self._learner_groups[policies], group = start_learners(count, opener, cores, gpus, of)
            self.groups.append(group)

    @property
    def pids(self) -> dict[str, list[int]]:
        """Policy -> the processes of its learner group, by rank, once they have said `facts`."""
        return {name: group.pids for names, group in self._learner_groups.items() for name in names}

    def facts(self, token: str) -> list[NodeFacts]:
        """Facts about every rank's node; see `RemoteLearnerGroup.facts`."""
        return [node for group in self._learner_groups.values() for node in group.facts(token)]

    def join(self, shard: str) -> dict[str, RemoteLearner]:
        """Make the learners on all ranks; proxies by policy, in the order of their names."""
        works = [
            {str(names): partial(group.join, shard)}
            for names, group in self._learner_groups.items()
        ]
        joined = run_concurrently(works, self.end).values()
        learners = {
            name: learner for group_learners in joined for name, learner in group_learners.items()
        }
        return {name: learners[name] for name in sorted(learners)}

    def together(self, works: Mapping[str, Callable[[], T]]) -> dict[str, T]:
        """Results of `works`, by policy; policies of one learner group take turns."""
        lines = [
            {name: works[name] for name in names if name in works} for names in self._learner_groups
        ]
        results = run_concurrently([line for line in lines if line], self.end)
        return {name: results[name] for name in works}

    def end(self) -> None:
        """Kill all ranks at once; may be called from any thread."""
        for group in self._learner_groups.values():
            group.end()
