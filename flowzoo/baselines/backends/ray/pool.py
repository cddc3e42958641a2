"""Sending shards and weights to workers and collecting results, tolerating actor deaths."""

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import ray
from ray.exceptions import RayError, RayTaskError

from flowzoo.baselines.backends.backend import RolloutSpec, deserialize_error
from flowzoo.baselines.backends.ray.cluster import (
    BACK_WITHIN_S,
    PAUSE_S,
    STARTED_WITHIN_S,
    WorkerError,
    ask_all,
    last_line,
    listed,
)
from flowzoo.baselines.backends.ray.schedule import Schedule, ShardKey
from flowzoo.baselines.backends.ray.weights import PublishedWeights, WeightVersions
from flowzoo.baselines.backends.ray.worker import Failed, Loaded, Played, Reply, Stale
from flowzoo.waits import Wait, WaitKind

PROVED_WITHIN_S = 600.0  # time limit for workers to prove that they have new weights, in seconds
MOST_LOSSES = 10  # number of times that the same shard may be lost with its worker
GLANCE_S = PAUSE_S / 4  # after which calls of other threads are waited for as well
SHARDS = WaitKind("without any answer of a worker the run ends; its last checkpoint is kept")
"""Shards that workers play."""

_log = logging.getLogger("flowzoo")


class _Call(NamedTuple):
    """A pending call of a worker: loading weights, playing a shard, or else opening its player."""

    worker: int
    policy: str = ""
    weights: PublishedWeights | None = None
    shard: ShardKey | None = None
    wait: Wait | None = None
    """The wait for a shard."""


@dataclass(slots=True)
class _WorkerState:
    """The versions that a worker has, by policy."""

    sent: dict[str, int] = field(default_factory=dict)
    """Versions after all calls that it was sent."""
    proved: dict[str, int] = field(default_factory=dict)
    """Versions after all calls that it has answered."""


class RolloutPool:
    """Workers that play several batches beside each other, each with its weights."""

    # Every thread may play. One waiting thread carries out calls for all, with the state of the
    # pool under the lock.
    #
    # Ray starts a dead worker again. With its own retries (`max_task_retries`) a call would run on
    # the new actor with its starting weights, so a lost call is given to a free worker, and a
    # worker that came back is given the weights.
    #
    # A worker answers calls in their order, so the weights of a shard and the shard are sent at
    # once; answers are taken in this order, so no result counts before its weights are proved.

    def __init__(
        self,
        workers: Sequence[Any],
        ahead: int = 0,
        proof: Callable[[int, str, Loaded], None] = lambda worker, policy, loaded: None,
    ) -> None:
        self._workers, self._proof = list(workers), proof
        self._states = [_WorkerState() for _ in workers]
        self._weights = WeightVersions(ahead)
        self._schedule: Schedule[tuple[RolloutSpec, Sequence[object]], object] = Schedule(
            len(workers)
        )
        self._calls: dict[Any, _Call] = {}
        """Pending calls, in the order in which they were sent."""
        self._lost: dict[int, float] = {}
        """Time since which a lost worker has not answered, by worker."""
        self._again: dict[int, float] = {}
        """Time at which a lost worker is called again, by worker."""
        self._turn = threading.Condition()
        self._led = False
        self._error: Exception | None = None
        self.losses = 0
        """Calls that were lost with their workers so far."""

    @property
    def present(self) -> int:
        """Number of workers that are not lost."""
        return len(self._workers) - len(self._lost)

    def ask(self, call: Callable[[Any], Any], within: float = STARTED_WITHIN_S) -> list[Any]:
        """Replies of all workers, by worker; `call` makes the reference."""
        return ask_all("rollout worker", self._workers, call, within)

    def play(self, plan: RolloutSpec, work: Sequence[Sequence[object]]) -> list[Any]:
        """Results of all items of `work`, in order, played with the versions of `plan`."""
        versions = self._weights.newest() if plan.versions is None else plan.versions
        for policy, version in versions.items():
            self._weights.get(policy, version)
        plan = replace(plan, versions=versions)
        with self._turn:
            batch = self._schedule.add([(plan, jobs) for jobs in work])
        try:
            self._work_until(lambda: batch.finished or batch.error is not None)
        finally:
            with self._turn:
                self._schedule.remove(batch)
        if batch.error is not None:
            raise batch.error
        return batch.results

    def publish(self, policy: str, version: int, file: Any, digest: str) -> None:
        """Make weights the newest of `policy`; `prove` sends them, or `play` when they are due."""
        self._weights.add(policy, PublishedWeights(version, file, digest))

    def prove(self, within: float = PROVED_WITHIN_S) -> int:
        """Send the newest weights to all free workers; number that proved them."""
        # A worker that is gone, or still plays a shard of which another worker's copy was faster,
        # is left out: it is sent them before its next shard.
        newest, deadline = self._weights.newest(), time.monotonic() + within

        def proved() -> int:
            return sum(state.proved == newest for state in self._states)

        def done() -> bool:
            late = [
                worker
                for worker, state in enumerate(self._states)
                if state.proved != newest
                and worker not in self._lost
                and not self._schedule.is_busy(worker)
            ]
            if late and time.monotonic() > deadline:
                raise WorkerError(
                    f"rollout workers {listed(late)} have not proved in {within:.0f} s that "
                    "they have the new weights; the last checkpoint is good, and the same command "
                    "goes on from it"
                )
            for worker in late:
                self._load(worker, newest)
            return not late and proved() > 0

        self._work_until(done)
        return proved()

    def stop(self) -> None:
        """Make `play`, in any thread, raise an error soon."""
        self._error = WorkerError("the run ends, and what was being played is given up")
        for call in list(self._calls.values()):  # another thread may change them
            if call.wait is not None:
                call.wait.end(answered=False)

    # -- parts ---------------------------------------------------------------------------------

    def _work_until(self, done: Callable[[], bool]) -> None:
        """Carry out calls, or wait while another thread does, until `done`."""
        while True:
            with self._turn:
                self._turn.wait_for(lambda: not self._led or self._error or done())
                self._check()
                if done():
                    return
                self._led = True
            try:
                self._carry_out()
            finally:
                with self._turn:
                    self._led = False
                    self._turn.notify_all()

    def _carry_out(self) -> None:
        """Send what is due and take one answer."""
        with self._turn:
            now = time.monotonic()
            try:
                for worker in [lost for lost, then in self._again.items() if then <= now]:
                    del self._again[worker]
                    self._calls[self._workers[worker].open.remote()] = _Call(worker)
                for worker, shard in self._schedule.assign(now):
                    plan, jobs = shard.batch.work[shard.index]
                    self._load(worker, plan.versions)
                    ref = self._workers[worker].play.remote(plan, jobs)
                    wait = SHARDS.begin(f"rollout worker {worker}", limit_s=SHARDS.limit_s())
                    self._calls[ref] = _Call(worker, shard=shard, wait=wait)
            except Exception as error:  # shards were assigned that no worker was sent
                self._error = error
                raise
            pending = list(self._calls)
        if not pending:
            time.sleep(GLANCE_S)
            return
        ready, _ = ray.wait(pending, timeout=GLANCE_S)
        with self._turn:
            try:
                for ref in ready:
                    self._take(ref)
                self._look()
            except Exception as error:  # no batch is good without this answer
                self._error = error
                raise

    def _look(self) -> None:
        calls = [call for call in self._calls.values() if call.wait is not None]
        limit = SHARDS.limit_s()
        if calls and all(call.wait and call.wait.seconds > limit for call in calls):
            raise WorkerError(
                f"rollout workers {listed(call.worker for call in calls)} have neither answered "
                f"nor ended in {limit:.0f} s; the last checkpoint is good, and the same command "
                "goes on from it"
            )

    def _take(self, ref: Any) -> None:
        """Take the answer of a call, after the answers of the worker's earlier calls."""
        call = self._calls[ref]
        reply = self._reply(ref, call)
        if reply is not None:
            for earlier in [*self._calls]:
                if earlier == ref:
                    break
                if earlier in self._calls and self._calls[earlier].worker == call.worker:
                    self._take(earlier)
        del self._calls[ref]
        if reply is None:
            self._schedule.rest(call.worker)
            self._states[call.worker] = _WorkerState()
            self._again[call.worker] = time.monotonic() + PAUSE_S
        if call.shard is not None and call.wait is not None:
            call.wait.end(reply is not None)
            self._take_shard(call.worker, call.shard, reply)
        elif call.weights is not None and reply is not None:
            self._states[call.worker].proved[call.policy] = call.weights.version
        elif reply is not None:
            self._schedule.wake(call.worker)

    def _take_shard(self, worker: int, shard: ShardKey, reply: Reply | None) -> None:
        state, batch = self._states[worker], shard.batch
        plan, _ = batch.work[shard.index]
        if isinstance(reply, Played) and state.proved == plan.versions:
            self._schedule.finish(worker, shard, reply.result, time.monotonic())
            return
        self._schedule.give_back(worker, shard)
        if isinstance(reply, Failed):
            batch.error = deserialize_error(reply.error, WorkerError)
        elif reply is None:
            batch.losses[shard.index] += 1
            if batch.losses[shard.index] > MOST_LOSSES:
                losses = batch.losses[shard.index]
                batch.error = WorkerError(
                    f"shard {shard.index} was lost with its worker {losses} times: it "
                    "may need more memory than a worker has (lower `shard_jobs`)"
                )
        else:
            # Started again, or without an engine: what it has is sent again, unless it is on
            # its way.
            has = reply.versions if isinstance(reply, Stale) else {}
            state.proved = dict(state.proved.items() & has.items())
            if not any(call.worker == worker and call.weights for call in self._calls.values()):
                state.sent = dict(state.proved)

    def _reply(self, ref: Any, call: _Call) -> Reply | None:
        # None: lost with its worker.
        try:
            reply: Reply = ray.get(ref)
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
        if call.shard is None and isinstance(reply, Failed):
            raise deserialize_error(reply.error, WorkerError)
        if isinstance(reply, Loaded) and call.weights is not None:
            if reply.digest != call.weights.digest:
                raise WorkerError(
                    f"rollout worker {call.worker} does not have the learner's weights of policy "
                    f"{call.policy!r} after loading them (SHA-256 {reply.digest[:12]}, not "
                    f"{call.weights.digest[:12]}): nothing is sampled from it; the last checkpoint "
                    "is good"
                )
            self._proof(call.worker, call.policy, reply)
        return reply

    def _load(self, worker: int, versions: Mapping[str, int]) -> None:
        """Send weights of `versions` that the worker does not have after its pending calls."""
        sent = self._states[worker].sent
        for policy, version in versions.items():
            if sent.get(policy) != version:
                due = self._weights.get(policy, version)
                ref = self._workers[worker].load.remote(policy, version, due.file)
                self._calls[ref] = _Call(worker, policy, due)
                sent[policy] = version

    def _check(self) -> None:
        if self._error is not None:
            raise self._error
        if not self.present:
            seconds = time.monotonic() - max(self._lost.values())
            if seconds > BACK_WITHIN_S:
                raise WorkerError(
                    f"all {len(self._workers)} rollout workers are gone, and none has come back in "
                    f"{seconds:.0f} s: the same command goes on from the last checkpoint once the "
                    "cluster has room for them"
                )
