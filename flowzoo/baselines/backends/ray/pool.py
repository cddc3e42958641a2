"""Sending shards and weights to workers and collecting results, tolerating actor deaths."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import ray
from ray.exceptions import RayError, RayTaskError, TaskCancelledError

from flowzoo.baselines.backends.errors_wire import deserialize_error
from flowzoo.baselines.backends.ray.cluster import (
    BACK_WITHIN_S,
    LOOK_S,
    PAUSE_S,
    STARTED_WITHIN_S,
    WorkerError,
    ask_all,
    last_line,
    listed,
)
from flowzoo.baselines.backends.ray.schedule import Schedule
from flowzoo.baselines.backends.ray.weights import PublishedWeights, WeightVersions
from flowzoo.baselines.backends.ray.worker import Failed, Loaded, Played, Reply, Stale
from flowzoo.baselines.backends.rollout_spec import RolloutSpec

PROVED_WITHIN_S = 600.0  # time limit for workers to prove that they have new weights, in seconds
MOST_LOSSES = 10  # number of times that the same shard may be lost with its worker

_log = logging.getLogger("flowzoo")


class _Call(NamedTuple):
    """A pending call of a worker: loading weights of a policy, or playing a shard."""

    worker: int
    policy: str = ""
    digest: str = ""
    index: int = -1
    schedule: Schedule[Any, Any] | None = None


class CalledOff(NamedTuple):
    """In place of an answer: the call was cancelled before it began."""


class RolloutPool:
    """Workers that play together. Not for several threads at a time, but for `publish`."""

    # Ray starts a dead worker again. With its own retries (`max_task_retries`) a call would run on
    # the new actor with its starting weights, so a lost call is given to a free worker, and a
    # worker that came back answers `Stale` and is given the weights.

    def __init__(
        self,
        workers: Sequence[Any],
        ahead: int = 0,
        proof: Callable[[int, str, Loaded], None] = lambda worker, policy, loaded: None,
    ) -> None:
        self._workers, self._proof = list(workers), proof
        self._weights = WeightVersions(ahead)
        self._calls: dict[Any, _Call] = {}
        self._lost: dict[int, float] = {}
        """Time since which a lost worker has not answered, by worker."""
        self._stopped = False
        self.proved = 0
        """Workers that had proved at the last `prove` that they have the weights."""
        self.losses = 0
        """Calls that were lost with their workers so far."""

    def ask(self, call: Callable[[Any], Any], within: float = STARTED_WITHIN_S) -> list[Any]:
        """Replies of all workers, by worker; `call` makes the reference."""
        return ask_all("rollout worker", self._workers, call, within)

    def play(self, plan: RolloutSpec, work: Iterable[Sequence[Any]]) -> Iterator[Any]:
        """Results of all items of `work`, in order, played with the versions of `plan`."""
        versions = self._weights.newest() if plan.versions is None else plan.versions
        self._prove(self._weights.choose(versions), PROVED_WITHIN_S)
        plan = replace(plan, versions=self._weights.versions)
        schedule: Schedule[Any, Any] = Schedule(work, len(self._workers))
        losses: Counter[int] = Counter()
        again = dict.fromkeys(self._lost, 0.0)
        for worker in {call.worker for call in self._calls.values()} | set(self._lost):
            schedule.rest(worker)  # it still plays a redundant copy, or is gone
        while True:
            self._check()
            self._try_again(schedule, again)
            for worker, index, jobs in schedule.assign(time.monotonic()):
                ref = self._workers[worker].play.remote(plan, jobs)
                self._calls[ref] = _Call(worker, index=index, schedule=schedule)
            if schedule.finished:
                return
            for ref in self._landed():
                call = self._calls.pop(ref)
                reply, now = self._reply(ref, call), time.monotonic()
                is_current = call.schedule is schedule
                if reply is None:
                    schedule.rest(call.worker)
                    again[call.worker] = now + PAUSE_S
                    losses[call.index] += is_current
                    if losses[call.index] > MOST_LOSSES:
                        raise WorkerError(
                            f"shard {call.index} was lost with its worker {MOST_LOSSES} times: it "
                            "may need more memory than a worker has (lower `shard_jobs`)"
                        )
                elif call.worker not in again:
                    schedule.wake(call.worker)
                if not is_current:
                    continue
                if isinstance(reply, Played):
                    for worker in schedule.finish(call.worker, call.index, reply.result, now):
                        self._cancel(worker, call.index)
                else:
                    schedule.give_back(call.worker, call.index, now)
                if isinstance(reply, Stale):
                    self._load(call.worker)
                elif isinstance(reply, Failed):
                    raise deserialize_error(reply.error, WorkerError)
            yield from schedule.ready()

    def publish(self, policy: str, version: int, file: Any, digest: str) -> None:
        """Make weights the newest of `policy`; `prove` sends them, or `play` when they are due."""
        self._weights.add(policy, PublishedWeights(version, file, digest))

    def prove(self, policies: Sequence[str], within: float = PROVED_WITHIN_S) -> int:
        """Send the newest weights of `policies` to all workers; number that proved them."""
        # A worker that is gone is left out: it will answer `Stale` once it is back.
        self._weights.choose(self._weights.newest(policies))
        self._prove(policies, within)
        return self.proved

    def stop(self) -> None:
        """Make `play`, in any thread, raise an error soon."""
        self._stopped = True

    # -- parts ---------------------------------------------------------------------------------

    def _prove(self, policies: Sequence[str], within: float) -> None:
        if not policies:
            return
        deadline = time.monotonic() + within
        waiting, proved = set(range(len(self._workers))), dict[int, set[str]]()
        for worker in waiting:
            self._load(worker, policies)
        while waiting:
            self._check()
            for ref in self._landed():
                call = self._calls.pop(ref)
                reply = self._reply(ref, call)
                if isinstance(reply, Loaded) and self._weights[call.policy].digest == call.digest:
                    proved.setdefault(call.worker, set()).add(call.policy)
                elif reply is None and len(self._lost) == len(self._workers):
                    time.sleep(PAUSE_S)
                    self._load(call.worker, policies)
                elif reply is not None:  # it was lost, is back, and has loaded older ones
                    self._load(call.worker, policies)
            all_lost = len(self._lost) == len(self._workers)
            waiting = {
                worker
                for worker in waiting
                if not proved.get(worker, set()).issuperset(policies)
                and (all_lost or worker not in self._lost)
            }
            if waiting and time.monotonic() > deadline:
                raise WorkerError(
                    f"rollout workers {listed(waiting)} have not proved in {within:.0f} s that "
                    "they have the new weights; the last checkpoint is good, and the same command "
                    "goes on from it"
                )
        self.proved = sum(
            policies_of_worker.issuperset(policies) for policies_of_worker in proved.values()
        )

    def _landed(self) -> list[Any]:
        if not self._calls:
            time.sleep(PAUSE_S / 4)
            return []
        ready, _ = ray.wait(list(self._calls), timeout=LOOK_S / 2)
        return ready

    def _reply(self, ref: Any, call: _Call) -> Reply | CalledOff | None:
        # None: lost with its worker.
        try:
            reply: Reply = ray.get(ref)
        except TaskCancelledError:
            return CalledOff()
        except RayTaskError as error:  # workers catch their own errors: this is about the answer
            raise WorkerError(
                f"the answer of rollout worker {call.worker} was lost: {last_line(error)}"
            ) from error
        except RayError as error:
            self.losses += 1
            if call.worker not in self._lost:
                _log.warning(
                    "rollout worker %d is gone (%s); what it was doing is repeated",
                    call.worker, type(error).__name__,
                )  # fmt: skip
            self._lost.setdefault(call.worker, time.monotonic())
            return None
        self._lost.pop(call.worker, None)
        if call.policy and isinstance(reply, Failed):
            raise deserialize_error(reply.error, WorkerError)
        if isinstance(reply, Loaded) and reply.digest != call.digest:
            raise WorkerError(
                f"rollout worker {call.worker} does not have the learner's weights of policy "
                f"{call.policy!r} after loading them (SHA-256 {reply.digest[:12]}, not "
                f"{call.digest[:12]}): nothing is sampled from it; the last checkpoint is good"
            )
        if isinstance(reply, Loaded):
            self._proof(call.worker, call.policy, reply)
        return reply

    def _load(self, worker: int, policies: Iterable[str] | None = None) -> None:
        # A lost worker has one load waiting for it at most: each holds on to its weights.
        under_way = {
            call.digest if worker not in self._lost else call.policy
            for call in self._calls.values()
            if call.worker == worker and call.policy
        }
        for policy in self._weights.policies if policies is None else policies:
            due = self._weights[policy]
            if not under_way & {policy, due.digest}:
                ref = self._workers[worker].load.remote(policy, due.version, due.file)
                self._calls[ref] = _Call(worker, policy, due.digest)

    def _try_again(self, schedule: Schedule[Any, Any], again: dict[int, float]) -> None:
        now = time.monotonic()
        for worker in [lost_worker for lost_worker, then in again.items() if then <= now]:
            del again[worker]
            if self._weights.policies:
                self._load(worker)
            else:
                schedule.wake(worker)

    def _cancel(self, worker: int, index: int) -> None:
        for ref, call in self._calls.items():
            if (call.worker, call.index) == (worker, index):
                ray.cancel(ref)

    def _check(self) -> None:
        if self._stopped:
            raise WorkerError("the run ends, and what was being played is given up")
        if len(self._lost) == len(self._workers):
            seconds = time.monotonic() - max(self._lost.values())
            if seconds > BACK_WITHIN_S:
                raise WorkerError(
                    f"all {len(self._workers)} rollout workers are gone, and none has come back in "
                    f"{seconds:.0f} s: the same command goes on from the last checkpoint once the "
                    "cluster has room for them"
                )
