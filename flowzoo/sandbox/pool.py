"""Killable worker processes: trusted code on hostile data, with a deadline and a memory limit.

    pool = shared_pool("flowzoo.reward.math.judge:setup", name="math")
    results = pool.run([b"...", b"..."], deadline=1.0)  # from any thread

The pool bounds time and memory; it does not isolate: handlers are trusted code.
"""

import contextlib
import ctypes
import gc
import importlib
import json
import math
import os
import resource
import select
import signal
import struct
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cache
from typing import IO, Final, Literal, NoReturn

from flowzoo.errors import FlowzooError, UsageError
from flowzoo.provenance import usable_cores
from flowzoo.waits import Wait, WaitKind

JobStatus = Literal["ok", "timeout", "memory", "crashed"]
Handler = Callable[[bytes], bytes]

# Wall-clock limit of a job in deadlines, regardless of its CPU time.
MOST_WALL: Final = 10
LONGEST: Final = 2**26  # most bytes of a job and of its value
READY_S: Final = 300.0
"""Most seconds for a worker to import what its jobs need."""
SLACK_S: Final = 20.0
"""Seconds after the deadline of a job after which its worker, which hangs, is replaced."""
_ANSWERS: Final = WaitKind("the worker is ended, and its job repeated once", 10.0)
_OK, _TIMEOUT, _MEMORY, _CRASHED = range(4)
_STATUSES: Final[tuple[JobStatus, ...]] = ("ok", "timeout", "memory", "crashed")
_JOB: Final = struct.Struct("<dI")  # deadline in seconds, bytes of the job
_REPLY: Final = struct.Struct("<BI")  # index of the status, bytes of the value
_OPEN_FILES: Final = 64
# Seconds between two checks that the caller is alive: a fork of it may keep the streams open.
_ORPHAN_CHECK: Final = 0.5
_ENDS: Final = (signal.SIGPROF, signal.SIGALRM)  # of a job in its worker: CPU time, wall clock
_PR_SET_PDEATHSIG: Final = 1

# Variables that workers inherit; others may be secrets.
_INHERITED: Final = ("PATH", "HOME", "TMPDIR", "TZ", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH")
_ENVIRONMENT: Final = {
    "PYTHONHASHSEED": "0",  # reproducible iteration over sets of strings
    "PYTHONUTF8": "1",
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
}
# -s -P instead of -I, which would ignore PYTHONHASHSEED.
_FLAGS: Final = ("-s", "-P", "-c")
_START: Final = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); "
    "from flowzoo.sandbox.pool import serve; serve(sys.argv[2], *map(int, sys.argv[3:]))"
)


class PoolError(FlowzooError, RuntimeError):
    """No worker can be started: its setup raises, or its process dies before the first job."""


@dataclass(frozen=True, slots=True)
class JobResult:
    """Result of one job."""

    status: JobStatus
    """`timeout`: killed at its deadline; `memory`: the handler reached its memory limit;
    `crashed`: the handler raised, or its process died."""
    value: bytes = b""
    """Return value of the handler, or the exception that it raised."""


class WorkerPool:
    """Workers for one handler; they start with the first job and end with the caller.

    A worker is a new interpreter, never a fork of the caller, which may have threads and a GPU. It
    forks a child for every job: a child is killed at its deadline, and the next job gets a clean
    process. Without `fresh` it answers itself, and a limit ends it. Handlers are trusted: the pool
    bounds time and memory but does not isolate programs.

    Args:
        setup: "module:function"; the function returns the handler. It should import the modules
            that all jobs need.
        workers: most concurrent jobs. None: the number of usable cores.
        memory_bytes: address space of a job (RLIMIT_AS; macOS does not enforce it).
        env: variables added to the small environment of the workers.
        name: name of the pool in messages.
        fresh: every job gets a new process, which takes a millisecond or two.
    """

    def __init__(
        self,
        setup: str,
        workers: int | None = None,
        memory_bytes: int = 2**30,
        env: Mapping[str, str] | None = None,
        name: str = "pool",
        fresh: bool = True,
    ) -> None:
        self.setup, self.name, self.memory_bytes = setup, name, memory_bytes
        self.fresh = fresh
        self.workers = workers or usable_cores()
        self.env = dict(env or {})
        self._begin()
        _pools.add(self)

    def _begin(self) -> None:
        # A fork of the caller starts without workers, which belong to the parent.
        self._free: list[_Worker] = []
        self._started: list[_Worker] = []
        self._lock = threading.Lock()
        self._slots = threading.BoundedSemaphore(self.workers)
        weakref.finalize(self, _close, self._started, os.getpid())

    def run(self, jobs: Sequence[bytes], deadline: float) -> list[JobResult]:
        """Run `jobs` and return their results in order; safe from any thread.

        Args:
            jobs: payloads of at most 64 MiB.
            deadline: CPU seconds per job, and at most ten times as many wall-clock seconds. If the
                system does not report CPU time (macOS), wall-clock seconds.

        Raises:
            UsageError: `jobs` or `deadline` is invalid.
            PoolError: no worker can be started.
        """
        if not 0 < deadline <= 86_400:
            raise UsageError(f"`deadline` must be in (0, 86400] seconds, got {deadline!r}")
        if any(type(job) is not bytes or len(job) > LONGEST for job in jobs):
            raise UsageError("`jobs` must be bytes objects of at most 64 MiB each")
        if len(jobs) < 2 or self.workers == 1:
            return [self._run(job, deadline) for job in jobs]
        with ThreadPoolExecutor(min(self.workers, len(jobs))) as threads:
            return list(threads.map(lambda job: self._run(job, deadline), jobs))

    def warm(self) -> None:
        """Start a worker without waiting for it."""
        with self._lock:
            if not self._started:
                self._free.append(self._start())

    def _run(self, job: bytes, deadline: float) -> JobResult:
        with self._slots:
            for _ in range(2):  # the job is not the cause if its worker was killed from outside
                with self._lock:
                    worker = self._free.pop() if self._free else self._start()
                result = None
                try:
                    result = worker.run(job, deadline)
                finally:
                    with self._lock:
                        if result is not None:
                            self._free.append(worker)
                        elif worker in self._started:
                            self._started.remove(worker)
                            worker.close()
                if result is not None:
                    return result
                if -worker.process.returncode in _ENDS:
                    return JobResult("timeout")
        return JobResult("crashed")

    def _start(self) -> "_Worker":
        worker = _Worker(self)
        self._started.append(worker)
        return worker

    def close(self) -> None:
        """End all workers; a later job starts new ones."""
        with self._lock:
            self._free.clear()
            _close(self._started, os.getpid())


def _close(workers: "list[_Worker]", owner: int) -> None:
    while workers and os.getpid() == owner:
        workers.pop().close()


_pools: weakref.WeakSet[WorkerPool] = weakref.WeakSet()


def _after_fork() -> None:
    for pool in tuple(_pools):
        for worker in pool._started:
            worker.process.returncode = 0  # a child of the parent; this process cannot wait for it
        pool._begin()


os.register_at_fork(after_in_child=_after_fork)


@cache
def shared_pool(
    setup: str, env: tuple[tuple[str, str], ...] = (), name: str = "pool"
) -> WorkerPool:
    """Return this process's pool with these settings."""
    return WorkerPool(setup, env=dict(env), name=name)


class _Worker:
    """One worker, on the caller's side."""

    def __init__(self, pool: WorkerPool) -> None:
        path = json.dumps([os.path.abspath(entry) for entry in sys.path])
        inherited = {key: os.environ[key] for key in _INHERITED if key in os.environ}
        numbers = map(str, (pool.memory_bytes, os.getpid(), int(pool.fresh)))
        self.process = subprocess.Popen(
            [sys.executable, *_FLAGS, _START, path, pool.setup, *numbers],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**inherited, **_ENVIRONMENT, **pool.env},
            start_new_session=True,  # Ctrl-C in the terminal interrupts only the caller
        )
        self.title = f"worker pool {pool.name!r}, {pool.setup}"
        self.is_ready = False

    def run(self, job: bytes, deadline: float) -> JobResult | None:
        """Run one job; return None if the worker itself died.

        Raises:
            PoolError: the setup failed.
        """
        stdin, stdout = self.process.stdin, self.process.stdout
        assert stdin is not None
        assert stdout is not None
        if not self.is_ready:
            with self._waiting(READY_S):
                first = _read_reply(stdout)
            if first is None or first.status != "ok":
                reason = first.value.decode() if first else "the process died"
                raise PoolError(f"{self.title}: no worker can be started: {reason}")
            self.is_ready = True
        with self._waiting(MOST_WALL * deadline + SLACK_S):
            with contextlib.suppress(OSError):
                stdin.write(_JOB.pack(deadline, len(job)) + job)
                stdin.flush()
            return _read_reply(stdout)

    def _waiting(self, limit_s: float) -> AbstractContextManager[Wait]:
        # A worker that is stopped reads and writes nothing: its end, at the limit, ends the pipes.
        return _ANSWERS.wait(self.title, self.title, limit_s=limit_s, give_up=self.process.kill)

    def close(self) -> None:
        self.process.kill()
        with contextlib.suppress(OSError):
            self.process.communicate()


def _read_reply(stream: IO[bytes]) -> JobResult | None:
    """Read one reply; None if the stream ends before its end."""
    header = stream.read(_REPLY.size)
    if len(header) < _REPLY.size:
        return None
    status, length = _REPLY.unpack(header)
    value = stream.read(length)
    return JobResult(_STATUSES[status], value) if len(value) == length else None


def serve(setup: str, memory_bytes: int, parent: int, fresh: int) -> NoReturn:
    """Answer jobs until the process `parent` is gone. Entry point of a worker."""
    # Output of the handler must not reach the stream of replies.
    jobs, replies = os.fdopen(os.dup(0), "rb"), os.dup(1)
    null = os.open(os.devnull, os.O_RDWR)
    for fd in (0, 1, 2):
        os.dup2(null, fd)
    try:
        module, _, name = setup.partition(":")
        handler: Handler = getattr(importlib.import_module(module), name)()
    except BaseException as error:
        _write_reply(replies, _CRASHED, _description(error))
        os._exit(1)
    libc = ctypes.CDLL(None)
    gc.freeze()  # a garbage collection in a child would write to, and copy, every page
    _write_reply(replies, _OK, b"")
    if not fresh:
        _confine(memory_bytes)
        for number in _ENDS:
            signal.signal(number, signal.SIG_DFL)
    while True:
        while not select.select([jobs], [], [], _ORPHAN_CHECK)[0]:
            if os.getppid() != parent:
                os._exit(0)
        header = jobs.read(_JOB.size)
        if len(header) < _JOB.size:
            os._exit(0)
        deadline, length = _JOB.unpack(header)
        job = jobs.read(length)
        if not fresh:
            _write_reply(replies, *_run_with_timers(handler, job, deadline))
            continue
        near, far = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                for fd in (jobs.fileno(), replies, near):
                    os.close(fd)
                _detach(libc)
                _confine(memory_bytes, deadline)
                _write_reply(far, *_outcome(handler, job))
                os._exit(0)
            finally:
                os._exit(1)  # exceptions must not reach the code of the worker
        os.close(far)
        _write_reply(replies, *_wait(child, near, deadline, parent))
        os.close(near)


def _wait(child: int, stream: int, deadline: float, parent: int) -> tuple[int, bytes]:
    start, data = time.monotonic(), bytearray()
    pause, is_late = min(deadline, _ORPHAN_CHECK), False
    while not is_late:
        if select.select([stream], [], [], pause)[0]:
            chunk = os.read(stream, 2**18)
            if not chunk:
                break
            data += chunk
            continue
        wall = time.monotonic() - start
        left = min(deadline - _processor_time(child, wall), MOST_WALL * deadline - wall)
        pause = min(max(left, 0.001), _ORPHAN_CHECK)
        is_late = left <= 0 or os.getppid() != parent
    for kill in (os.killpg, os.kill):  # before `setsid` the child has no group
        with contextlib.suppress(ProcessLookupError, PermissionError):
            kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    if is_late:
        return _TIMEOUT, b""
    size = _REPLY.size
    # The child may have died while it wrote.
    is_whole = len(data) >= size and len(data) == size + _REPLY.unpack_from(data)[1]
    is_sound = is_whole and data[0] < len(_STATUSES)
    return (data[0], bytes(data[size:])) if is_sound else (_CRASHED, b"")


def _processor_time(pid: int, wall: float) -> float:
    try:
        with open(f"/proc/{pid}/schedstat", encoding="ascii") as file:
            return int(file.read().split()[0]) * 1e-9
    except (OSError, ValueError, IndexError):
        return wall


def _run_with_timers(handler: Handler, job: bytes, deadline: float) -> tuple[int, bytes]:
    # The kernel ends this process at a limit, and the signal tells the caller which it was.
    signal.setitimer(signal.ITIMER_PROF, deadline)
    signal.setitimer(signal.ITIMER_REAL, MOST_WALL * deadline)
    outcome = _outcome(handler, job)
    signal.setitimer(signal.ITIMER_PROF, 0)
    signal.setitimer(signal.ITIMER_REAL, 0)
    return outcome


def _detach(libc: ctypes.CDLL) -> None:
    os.setsid()
    if sys.platform == "linux":
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _confine(memory_bytes: int, deadline: float = math.inf) -> None:
    if sys.platform == "linux":
        with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:
            file.write("1000")
    limits = {
        resource.RLIMIT_CORE: 0,
        resource.RLIMIT_AS: memory_bytes,
        resource.RLIMIT_NOFILE: _OPEN_FILES,
    }
    if deadline < math.inf:
        limits[resource.RLIMIT_CPU] = math.ceil(deadline) + 1
    for kind, value in limits.items():
        hard = resource.getrlimit(kind)[1]
        lowest = value if hard == resource.RLIM_INFINITY else min(value, hard)
        with contextlib.suppress(ValueError, OSError):  # macOS does not support RLIMIT_AS
            resource.setrlimit(kind, (lowest, lowest))


def _outcome(handler: Handler, job: bytes) -> tuple[int, bytes]:
    # Also after an exit or an interrupt in the handler.
    try:
        status, value = _OK, handler(job)
        if type(value) is not bytes or len(value) > LONGEST:
            raise TypeError("the handler must return bytes, at most 64 MiB")
    except MemoryError:
        status, value = _MEMORY, b""
    except BaseException as error:  # also SystemExit and KeyboardInterrupt
        status, value = _CRASHED, _description(error)
    return status, value


def _description(error: BaseException) -> bytes:
    try:
        text = f"{type(error).__name__}: {error}"
    except Exception:  # the message cannot be printed
        text = type(error).__name__
    return text.encode("utf-8", "replace")[:500].decode("utf-8", "ignore").encode()


def _write_reply(fd: int, status: int, value: bytes) -> None:
    _write(fd, _REPLY.pack(status, len(value)) + value)


def _write(fd: int, data: bytes) -> None:
    # The process ends if the reader has ended.
    view = memoryview(data)
    try:
        while view:
            view = view[os.write(fd, view) :]
    except OSError:
        os._exit(0)
