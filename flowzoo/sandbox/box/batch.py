"""Batches of programs, and whose turn it is."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass

from flowzoo.sandbox.box.job import TestPlan, digest_tests, job_key
from flowzoo.sandbox.program import Limits, Program, Test, Verdict


@dataclass(frozen=True, slots=True)
class ProgramJob:
    """One program of a batch."""

    row: int  # index among the programs of the call
    program: Program
    plan: TestPlan
    limits: Limits


class ProgramBatch:
    """Programs of one `run`, and their verdicts as they come in."""

    def __init__(self, works: Sequence[ProgramJob], stop: bool) -> None:
        self.waiting = deque(works)
        self.stop = stop
        # The verdicts by row, once all are there.
        self.future: Future[dict[int, Verdict]] = Future()
        self._verdicts: dict[int, Verdict] = {}
        self._total = len(works)

    def settle(self, work: ProgramJob, verdict: Verdict) -> None:
        """Enter a verdict; the last one completes the future."""
        self._verdicts[work.row] = verdict
        if len(self._verdicts) < self._total or self.future.done():
            return
        if self.future.set_running_or_notify_cancel():
            self.future.set_result(self._verdicts)

    def fail(self, error: BaseException) -> None:
        """End the batch with an error."""
        self.waiting.clear()
        if not self.future.done() and self.future.set_running_or_notify_cancel():
            self.future.set_exception(error)


def cache_keys(
    works: Sequence[ProgramJob], tests: Sequence[Sequence[Test]], stop: bool
) -> list[bytes]:
    """Keys under which a cache keeps verdicts; a tests object that is shared is read once."""
    by_id = {id(program_tests): program_tests for program_tests in tests}
    digests = {key: digest_tests(program_tests) for key, program_tests in by_id.items()}
    return [
        job_key(work.program, digests[id(tests[work.row])], work.limits, stop) for work in works
    ]


class ProgramQueue:
    """Batches that have waiting programs; they take turns, a program each."""

    def __init__(self) -> None:
        self._batches: deque[ProgramBatch] = deque()

    def add(self, batch: ProgramBatch) -> None:
        """Queue a batch."""
        self._batches.append(batch)

    def take(self) -> tuple[ProgramBatch, ProgramJob] | None:
        """The next program; None where none waits. Batches that were cancelled are dropped."""
        while self._batches:
            batch = self._batches.popleft()
            if batch.future.done() or not batch.waiting:
                continue
            work = batch.waiting.popleft()
            if batch.waiting:
                self._batches.append(batch)
            return batch, work
        return None

    def drain(self) -> Iterable[tuple[ProgramBatch, ProgramJob]]:
        """Take everything that waits now."""
        jobs = []
        while (job := self.take()) is not None:
            jobs.append(job)
        return jobs
