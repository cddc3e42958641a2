"""The killable worker pool: unbounded work with a hard deadline and a memory limit.

    pool = shared_pool("flowzoo.reward.math.worker:setup", deadline=1.0)
    results = pool.submit_batch([b"...", b"..."])          # from any thread
    results = await pool.asubmit_batch([b"...", b"..."])   # without blocking the loop

`setup` is imported and called once, in a clean single-threaded process (the zygote, started by
exec), and returns the handler `bytes -> bytes`; workers are forks of that process. A handler that
hangs is killed at the deadline of its job, one that dies takes only its own job with it, and the
batch goes on. Nothing a handler or a payload does raises here: it is a status. What raises is a
set-up that fails (`UsageError`) and a machine on which no worker starts (`PoolError`).

There are no signal handlers and no alarms, and nothing forks the calling process, so the pool
works under threads, asyncio, pytest-xdist and Ray, and inside daemonic processes. After a fork of
the caller, the child starts processes of its own at its next submission. Handlers are trusted
code that meets hostile data: the pool bounds time and memory, it is no sandbox for programs.
A handler should be a function of its payload: a job may be run again after a failure that was not
its own.
"""

from __future__ import annotations

import contextlib
import functools
import math
import os
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from typing import ParamSpec

from flowzoo.errors import UsageError
from flowzoo.sandbox.pool.batch import JobBatch
from flowzoo.sandbox.pool.dispatch import Dispatcher
from flowzoo.sandbox.pool.protocol import Result
from flowzoo.sandbox.pool.settings import (
    PoolSettings,
    check_deadline,
    check_jobs,
    usable_cores,
)

P = ParamSpec("P")

DEFAULT_DEADLINE = 1.0
DEFAULT_MEMORY = 2**30


def rss_of(pids: Sequence[int]) -> int:
    """Resident bytes of the processes together, shared pages counted for each; the dead count 0."""
    if sys.platform != "linux":
        listing = ",".join(map(str, pids))
        command = ["ps", "-o", "rss=", "-p", listing]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        return 1024 * sum(int(line) for line in done.stdout.split())
    total = 0
    for pid in pids:
        with (
            contextlib.suppress(OSError, IndexError),
            open(f"/proc/{pid}/statm", encoding="ascii") as statm,
        ):
            total += int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return total


class WorkerPool:
    """Worker processes behind one handler; started at the first submission.

    Args:
        setup: "module:function", imported in the zygote; takes nothing, returns the handler
            `bytes -> bytes`. It should do once whatever the first job would otherwise pay for.
        workers: most processes at a time; None: the usable cores.
        deadline: seconds a job may take from its dispatch to a free worker; a batch may set its
            own. On Linux the time that the worker waits for a processor is not counted, up to ten
            deadlines in all.
        memory_bytes: address space of a worker (RLIMIT_AS; not enforced by macOS).
        cpu_seconds: CPU time of a job, a second net under the deadline; None: the deadline,
            rounded up, and one second.
        env: variables added to the zygote's small environment.
        recycle_after: jobs after which a worker is replaced, so that caches cannot fill it.
        name: of the dispatcher's thread and in messages.
    """

    def __init__(
        self,
        setup: str,
        workers: int | None = None,
        deadline: float = DEFAULT_DEADLINE,
        memory_bytes: int = DEFAULT_MEMORY,
        cpu_seconds: int | None = None,
        env: Mapping[str, str] | None = None,
        recycle_after: int = 2000,
        name: str = "pool",
    ) -> None:
        self.settings = PoolSettings(
            setup=setup,
            workers=usable_cores() if workers is None else workers,
            deadline=deadline,
            memory_bytes=memory_bytes,
            cpu_seconds=cpu_seconds,
            env=tuple(sorted((env or {}).items())),
            recycle_after=recycle_after,
            name=name,
        )
        self.closed = False
        self._dispatcher: Dispatcher | None = None
        self._finalizer: weakref.finalize | None = None
        self._lock = threading.Lock()
        _pools.add(self)

    def submit_batch(self, jobs: Sequence[bytes], deadline: float | None = None) -> list[Result]:
        """Run `jobs` and wait; the results stand in the order of the jobs.

        Safe from any thread; in a coroutine use `asubmit_batch`.

        Args:
            jobs: payloads, at most 64 MiB each.
            deadline: seconds for each job; None: the pool's.

        Raises:
            UsageError: wrong arguments, a closed pool, or a set-up that fails.
            PoolError: no worker can be started.
        """
        future = self._submit(jobs, deadline)
        try:
            return future.result()
        except BaseException:
            future.cancel()  # after a Ctrl-C, do not start the jobs that still wait
            raise

    async def asubmit_batch(
        self, jobs: Sequence[bytes], deadline: float | None = None
    ) -> list[Result]:
        """As `submit_batch`, without blocking the event loop; cancelling drops waiting jobs."""
        import asyncio  # costs the workers memory, and who awaits this has it anyway

        return await asyncio.wrap_future(self._submit(jobs, deadline))

    def warm(self, job: bytes) -> None:
        """Start the processes with a job whose result nobody waits for.

        A set-up that fails is said by the first batch that is waited for.

        Raises:
            UsageError: the pool is closed.
        """
        self._submit([job], None)

    def _submit(self, jobs: Sequence[bytes], deadline: float | None) -> Future[list[Result]]:
        checked = check_jobs(jobs)
        limit = check_deadline(self.settings.deadline if deadline is None else deadline)
        batch = JobBatch(checked, limit, self.settings.cpu_seconds or math.ceil(limit) + 1)
        if not checked:
            batch.future.set_result([])
            return batch.future
        with self._lock:
            if self.closed:
                raise UsageError(f"the worker pool {self.settings.name!r} is closed")
            while not self._running().submit(batch):
                self._dispatcher = None
        return batch.future

    def _running(self) -> Dispatcher:
        """The dispatcher of this process, started where there is none; holds the lock."""
        if self._dispatcher is not None and self._dispatcher.owner != os.getpid():
            self._leave()  # a fork that Python did not see
        if self._dispatcher is None:
            if self._finalizer is not None:
                self._finalizer.detach()
            self._dispatcher = Dispatcher(self.settings)
            # Also runs when the interpreter ends. It holds the dispatcher, not the pool.
            self._finalizer = weakref.finalize(self, self._dispatcher.close)
        return self._dispatcher

    def _leave(self) -> None:
        """In a fork: forget the processes of the parent."""
        if self._dispatcher is not None:
            self._dispatcher.forget()
            self._dispatcher = None
        if self._finalizer is not None:
            self._finalizer.detach()
            self._finalizer = None
        self._lock = threading.Lock()  # another thread of the parent may have held it

    def worker_pids(self) -> list[int]:
        """Process ids of the workers that run now."""
        dispatcher = self._dispatcher
        if dispatcher is None or dispatcher.owner != os.getpid():
            return []
        return [channel.pid for channel in list(dispatcher.channels.values()) if channel.pid]

    def rss_bytes(self) -> int:
        """Resident memory of all workers, in bytes; pages they share count once for each."""
        return rss_of(self.worker_pids())

    def close(self) -> None:
        """End all processes; batches under way raise PoolError. A second call does nothing."""
        with self._lock:
            self.closed = True
            dispatcher, self._dispatcher = self._dispatcher, None
        if dispatcher is not None:
            dispatcher.close()

    def __enter__(self) -> WorkerPool:
        """The pool itself."""
        return self

    def __exit__(self, *exc: object) -> None:
        """Close the pool."""
        self.close()


_pools: weakref.WeakSet[WorkerPool] = weakref.WeakSet()
_shared_pools: dict[PoolSettings, WorkerPool] = {}
_shared_lock = threading.Lock()


def _shared(make: Callable[P, WorkerPool]) -> Callable[P, WorkerPool]:
    """`make` with the same arguments, which gives a pool again that is there with its settings."""

    @functools.wraps(make)
    def shared_pool(*args: P.args, **named: P.kwargs) -> WorkerPool:
        fresh = make(*args, **named)
        with _shared_lock:
            pool = _shared_pools.get(fresh.settings)
            if pool is None or pool.closed:
                pool = _shared_pools[fresh.settings] = fresh
            return pool

    return shared_pool


shared_pool = _shared(WorkerPool)
"""The pool of this process with these settings: one for all callers, closed at its end."""


def _after_fork() -> None:
    global _shared_lock
    _shared_lock = threading.Lock()
    for pool in tuple(_pools):
        pool._leave()


os.register_at_fork(after_in_child=_after_fork)
