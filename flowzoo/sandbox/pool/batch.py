"""Batches of jobs, and the queue that knows which of their jobs wait for a worker."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from concurrent.futures import Future
from typing import NamedTuple

from flowzoo.sandbox.pool.protocol import Result


class JobBatch:
    """The jobs of one submission, and their results as they come in.

    Args:
        jobs: the payloads.
        deadline: seconds each job may take.
        cpu_seconds: CPU time each job may take.
    """

    def __init__(self, jobs: Sequence[bytes], deadline: float, cpu_seconds: int) -> None:
        self.jobs = jobs
        self.deadline = deadline
        self.cpu_seconds = cpu_seconds
        self.waiting = deque(range(len(jobs)))
        """Jobs that no worker has, by position."""
        self.results: dict[int, Result] = {}
        self.retried: set[int] = set()
        """Jobs that were once lost with the zygote: a second time counts against them."""
        self.future: Future[list[Result]] = Future()


class AssignedJob(NamedTuple):
    """A job that a worker has."""

    id: int
    """What the worker's reply must repeat."""
    batch: JobBatch
    idx: int
    """Position of the job in its batch."""


class JobQueue:
    """All unfinished batches of a pool; those with waiting jobs take turns.

    Belongs to one thread. A future that its owner cancelled loses its waiting jobs; those that a
    worker has run to their end.
    """

    def __init__(self) -> None:
        self._turns: deque[JobBatch] = deque()
        self._live: set[JobBatch] = set()

    def add(self, batches: Iterable[JobBatch]) -> None:
        """Take in batches, in their order."""
        for batch in batches:
            self._turns.append(batch)
            self._live.add(batch)

    def waiting(self) -> int:
        """How many jobs wait for a worker."""
        return sum(len(batch.waiting) for batch in self._turns)

    def take(self, most: int, most_bytes: int) -> tuple[JobBatch, list[int]] | None:
        """Up to `most` jobs of the batch whose turn it is, at least one; None where none waits.

        No job is added once the ones taken have `most_bytes` bytes.
        """
        while self._turns:
            batch = self._turns.popleft()
            if batch.future.cancelled():
                self._live.discard(batch)
                continue
            taken: list[int] = []
            size = 0
            while batch.waiting and len(taken) < most and size < most_bytes:
                taken.append(batch.waiting.popleft())
                size += len(batch.jobs[taken[-1]])
            if batch.waiting:
                self._turns.append(batch)
            return batch, taken
        return None

    def put_back(self, ticket: AssignedJob) -> None:
        """Let a job wait again, before the others of its batch."""
        if not ticket.batch.waiting:
            self._turns.appendleft(ticket.batch)
        ticket.batch.waiting.appendleft(ticket.idx)

    def settle(self, ticket: AssignedJob, result: Result) -> None:
        """Enter the verdict of one job; the last one completes its batch."""
        batch = ticket.batch
        batch.results[ticket.idx] = result
        if len(batch.results) == len(batch.jobs):
            self._live.discard(batch)
            if batch.future.set_running_or_notify_cancel():
                batch.future.set_result([batch.results[idx] for idx in range(len(batch.jobs))])

    def fail(self, error: BaseException) -> None:
        """End every unfinished batch with `error`."""
        for batch in self._live:
            if batch.future.set_running_or_notify_cancel():
                batch.future.set_exception(error)
        self._live.clear()
        self._turns.clear()
