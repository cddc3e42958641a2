"""The engine of a sandbox: one thread with an event loop that drives all boxes."""

import asyncio
import contextlib
import logging
import os
import selectors
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import Future
from typing import Any

from flowzoo.errors import FlowzooError
from flowzoo.sandbox.backends import Backend, BoxError, KilledError
from flowzoo.sandbox.box.box import Box, BoxSet, BoxStartError
from flowzoo.sandbox.box.job import ProgramJob
from flowzoo.sandbox.box.run import run_program
from flowzoo.sandbox.judge import settle
from flowzoo.sandbox.program import Case, Verdict
from flowzoo.waits import WaitKind

_log = logging.getLogger(__name__)

TRIES = 2  # most boxes that are tried for a program
CLOSE_SECONDS = 30.0  # seconds that `close` waits for the engine's thread
_PROGRAMS = WaitKind("at its limits, and then another box's, it is given up without a verdict (SE)")

# Selects a backend and adds its first box to the set.
Opener = Callable[[set[Box]], Awaitable[tuple[Backend, Box]]]


class SandboxError(FlowzooError):
    """The sandbox, not a program, failed; verdicts of other programs are kept.

    Args:
        message: the failure and the remedy.
        verdicts: verdicts of the whole batch; programs that could not be judged have the status SE.
    """

    def __init__(self, message: str, verdicts: tuple[Verdict, ...] = ()) -> None:
        super().__init__(message)
        self.verdicts = verdicts


class ProgramBatch:
    """Programs of one `run`, with the verdicts so far."""

    def __init__(self, works: Sequence[ProgramJob], stop: bool) -> None:
        self.waiting = deque(works)
        self.stop = stop
        # The verdicts by row, when all are known.
        self.future: Future[dict[int, Verdict]] = Future()
        self._verdicts: dict[int, Verdict] = {}
        self._total = len(works)

    def settle(self, work: ProgramJob, verdict: Verdict) -> None:
        """Set a verdict; the last one completes the future."""
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


class SandboxEngine:
    """Boxes, queue and thread of one sandbox in one process."""

    # A caller submits a batch and gets a future, from any thread and with or without a loop. A
    # program is a queue entry until it gets a box, then a task on the loop.

    def __init__(self, opener: Opener, workers: int) -> None:
        self.owner = os.getpid()
        # The backend, when its first box is ready; UsageError if none works.
        self.opened: Future[Backend] = Future()
        self._opener = opener
        self._workers = workers
        self._turns: deque[ProgramBatch] = deque()  # with queued programs, served round robin
        self._batches: set[ProgramBatch] = set()
        self._inbox: list[ProgramBatch] = []
        self._lock = threading.Lock()
        self._ended = False
        self._sets: list[BoxSet] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._selector = selectors.DefaultSelector()
        self._loop = asyncio.SelectorEventLoop(self._selector)
        self._closing = asyncio.Event()
        self._thread = threading.Thread(target=self._run, name="sandbox", daemon=True)
        self._thread.start()

    # May be called from any thread.

    def submit(self, batch: ProgramBatch) -> bool:
        """Queue `batch`; False if the engine has ended."""
        with self._lock:
            if self._ended:
                return False
            self._inbox.append(batch)
            if len(self._inbox) == 1:
                self._loop.call_soon_threadsafe(self._take_in)
        return True

    @property
    def ended(self) -> bool:
        """True if it accepts no more batches."""
        return self._ended

    def boxes(self) -> list[Box]:
        """All running boxes, of programs and of checks."""
        return [box for kind in self._sets for box in tuple(kind.boxes)]

    def close(self) -> None:
        """Kill all boxes, fail unfinished batches and wait for the end."""
        # Uses no lock, since the garbage collector may call it at any point of any thread.
        if os.getpid() != self.owner:
            return
        with contextlib.suppress(RuntimeError):  # the loop has ended already
            self._loop.call_soon_threadsafe(self._closing.set)
        if threading.current_thread() is not self._thread:
            self._thread.join(CLOSE_SECONDS)

    def forget(self) -> None:
        """In a fork of the owner: close inherited descriptors, without effect on the owner."""
        # Only close the descriptor of the loop's selector: unregistering files would also affect
        # the owner's.
        self._selector.close()
        for box in self.boxes():
            box.wire.forget()
        if self.opened.done() and self.opened.exception() is None:
            self.opened.result().forget()

    # Methods of the thread.

    def _run(self) -> None:
        failure: BaseException = SandboxError("the sandbox was closed")
        try:
            self._loop.run_until_complete(self._main())
        except FlowzooError as error:
            failure = error
        except BaseException as error:
            failure = SandboxError(f"the sandbox failed: {error!r}")
            failure.__cause__ = error
        finally:
            with self._lock:
                self._ended = True
            if not self.opened.done():
                self.opened.set_exception(failure)
            for batch in (*self._inbox, *self._batches):
                batch.fail(failure)
            self._loop.close()

    async def _main(self) -> None:
        first: set[Box] = set()
        backend = None
        opening = asyncio.ensure_future(self._opener(first))
        closing = asyncio.create_task(self._closing.wait())
        try:
            await asyncio.wait([opening, closing], return_when=asyncio.FIRST_COMPLETED)
            if not opening.done():
                opening.cancel()
                await asyncio.wait([opening])
                return
            backend, box = opening.result()
            self._sets = [BoxSet(backend) for _ in range(2)]
            self._sets[0].add(box)
            self.opened.set_result(backend)
            self._take_in()
            await closing
        finally:
            closing.cancel()
            for task in tuple(self._tasks):
                task.cancel()
            if self._tasks:
                await asyncio.wait(self._tasks)
            for kind in self._sets:
                await kind.close()
            if backend is not None:
                backend.close()

    def _take_in(self) -> None:
        with self._lock:
            fresh, self._inbox = self._inbox, []
        for batch in fresh:
            self._batches.add(batch)
            self._turns.append(batch)
            batch.future.add_done_callback(lambda _, batch=batch: self._forget_batch(batch))
        self._hand_out()

    def _hand_out(self) -> None:
        if not self._sets:
            return  # the backend is not open yet
        while len(self._tasks) < self._workers and (turn := self._take_turn()) is not None:
            task = self._loop.create_task(self._serve(*turn))
            self._tasks.add(task)
            task.add_done_callback(self._forget_task)

    def _take_turn(self) -> tuple[ProgramBatch, ProgramJob] | None:
        # Pops the next program; cancelled batches are dropped.
        while self._turns:
            batch = self._turns.popleft()
            if batch.future.done() or not batch.waiting:
                continue
            work = batch.waiting.popleft()
            if batch.waiting:
                self._turns.append(batch)
            return batch, work
        return None

    def _forget_task(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not self._closing.is_set():
            self._hand_out()

    async def _serve(self, batch: ProgramBatch, work: ProgramJob) -> None:
        # A program that a signal ended is run again once in other boxes: if it happens again, the
        # program is the cause.
        boxes, checkers = self._sets
        trouble, failures, was_killed = "", 0, False
        while failures < TRIES:
            starts = boxes.started + checkers.started
            try:
                with _PROGRAMS.wait("a program in the sandbox"):
                    cases = await run_program(
                        work, batch.stop, boxes, checkers, believed=was_killed
                    )
            except KilledError:
                was_killed = True
            except BoxStartError as error:
                trouble = str(error)
                if boxes.started + checkers.started == starts:  # the others did not start either
                    for other in list(iter(self._take_turn, None)):
                        self._settle(*other, _failed_cases(trouble), {})
                break
            except BoxError as error:
                failures += 1
                trouble = f"the box failed twice; the second time {error}"
            except Exception as error:
                failures += 1
                _log.exception("a program could not be judged")
                trouble = f"an internal error of the sandbox (see the log): {error!r}"
            else:
                facts = {"retried": True} if failures or was_killed else {}
                if any(case.status == "SE" for case in cases):
                    facts["test_failed"] = True  # another box would not help
                self._settle(batch, work, cases, facts)
                return
        self._settle(batch, work, _failed_cases(trouble), {"retried": True})

    def _settle(
        self, batch: ProgramBatch, work: ProgramJob, cases: list[Case], facts: dict[str, Any]
    ) -> None:
        backend = self.opened.result()
        verdict = settle(cases, work.plan.total, backend.tier, batch.stop, facts)
        batch.settle(work, verdict)

    def _forget_batch(self, batch: ProgramBatch) -> None:
        with contextlib.suppress(RuntimeError):  # the loop has ended already
            self._loop.call_soon_threadsafe(self._batches.discard, batch)


def _failed_cases(trouble: str) -> list[Case]:
    return [Case("SE", trouble[:1000])]


def follow(future: Future[Backend]) -> Future[Backend]:
    """Return a separate future for one waiter, whose cancellation does not affect the others."""
    waiter: Future[Backend] = Future()

    def copy(done: Future[Backend]) -> None:
        if not waiter.set_running_or_notify_cancel():
            return
        error = done.exception()
        if error is not None:
            waiter.set_exception(error)
        else:
            waiter.set_result(done.result())

    future.add_done_callback(copy)
    return waiter
