"""The zygote of a pool and the workers it forks: the far side of `worker_pool`.

The zygote is one single-threaded process. It runs the set-up function once, so that every import
is paid once, and then forks a worker whenever the parent orders one. The parent hands the worker's
end of a socket pair over with the order; nothing else is shared. Nothing here imports more than the
standard library: a fork costs time in proportion to the memory in use.

Who dies with whom: the zygote ends when the control stream ends or its parent is gone; a worker
ends when its own stream ends or (Linux) when the zygote does, even inside a hanging handler.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import gc
import importlib
import json
import math
import os
import resource
import select
import signal
import socket
import sys
import time
from collections.abc import Callable
from typing import NoReturn, cast

from flowzoo.sandbox.pool.protocol import (
    DONE,
    FORK,
    HELLO,
    JOB,
    MAX_BYTES,
    NO_MEMORY,
    ORDER,
    PID,
    RAISED,
    REPLY,
)

Handler = Callable[[bytes], bytes]

ORPHAN_CHECK_MS = 500
"""How often the zygote looks whether its parent still lives, where no order wakes it."""

OPEN_FILES = 64
"""Descriptors a worker may have open."""

RESERVE_BYTES = 2**20
"""Memory a worker keeps back, so that it can still report that there is none left."""

_PR_SET_PDEATHSIG = 1


def run_zygote(control_fd: int, parent: int, setup: str, memory_bytes: int) -> NoReturn:  # pyrefly: ignore[bad-return]
    """Set up, report, fork workers until the parent is gone. Entry point of the process.

    Args:
        control_fd: the zygote's end of the control stream.
        parent: process id of the parent.
        setup: "module:function"; the function takes nothing and returns the handler.
        memory_bytes: address space of each worker.
    """
    control = socket.socket(fileno=control_fd)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    try:
        handler = load_handler(setup)
        check_room(memory_bytes)
    except BaseException as error:
        report(control, {"error": describe(error).decode()})
        os._exit(1)
    silence()
    server = ForkServer(control, handler, memory_bytes)
    gc.collect()
    gc.freeze()  # or each collection in a worker would write to, and so copy, every page
    report(control, {"ready": True})
    try:
        server.serve(parent)
    finally:
        server.kill_all()
        os._exit(0)


def load_handler(setup: str) -> Handler:
    """Import "module:function", call the function, return the handler it returns."""
    module, _, name = setup.partition(":")
    made = getattr(importlib.import_module(module), name)()
    if not callable(made):
        raise TypeError(f"{setup} must return a function bytes -> bytes, not {type(made).__name__}")
    return cast(Handler, made)


def check_room(memory_bytes: int) -> None:
    """Raise MemoryError where the set-up alone fills what a worker may use (Linux only)."""
    if not os.path.exists("/proc/self/statm"):
        return
    with open("/proc/self/statm", encoding="ascii") as statm:
        used = int(statm.read().split()[0]) * resource.getpagesize()
    if used + 2 * RESERVE_BYTES > memory_bytes:
        raise MemoryError(
            f"after its set-up the process uses {used / 2**20:.0f} MiB of address space; "
            f"memory_bytes={memory_bytes} leaves its workers no room"
        )


def describe(error: BaseException) -> bytes:
    """Class and message of `error` in at most 500 bytes of UTF-8; never raises."""
    try:
        text = f"{type(error).__name__}: {error}"
    except Exception:  # a message that cannot be printed
        text = type(error).__name__
    return text.encode("utf-8", "replace")[:500].decode("utf-8", "ignore").encode()


def report(control: socket.socket, message: dict[str, object]) -> None:
    """Tell the parent how the set-up went, as a line of JSON."""
    with contextlib.suppress(OSError):
        control.sendall(json.dumps(message).encode() + b"\n")


def silence() -> None:
    """Send what the process prints to nowhere: its streams may be somebody's protocol."""
    sys.stdout.flush()
    sys.stderr.flush()
    nowhere = os.open(os.devnull, os.O_RDWR)
    for fd in (0, 1, 2):
        os.dup2(nowhere, fd)
    os.close(nowhere)


def confine(zygote: int, memory_bytes: int, libc: ctypes.CDLL) -> None:
    """Own session and process group, resource limits, death with the zygote, first to be killed."""
    os.setsid()
    if sys.platform == "linux":
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != zygote:
            os._exit(1)  # it died before the call above took effect
        with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as adjust:
            adjust.write("1000")
    with contextlib.suppress(ValueError, OSError):  # macOS refuses this one limit
        limit_softly(resource.RLIMIT_AS, memory_bytes)
    limit_softly(resource.RLIMIT_NOFILE, OPEN_FILES)


def limit_softly(kind: int, value: int) -> None:
    """Set a limit to `value`, or to what the process inherited where that is lower."""
    hard = resource.getrlimit(kind)[1]
    lowest = value if hard == resource.RLIM_INFINITY else min(value, hard)
    resource.setrlimit(kind, (lowest, lowest))


def allow_cpu(seconds: int, current: int) -> int:
    """Let the process use `seconds` more of CPU time, rounded up; returns the limit now set.

    The kernel counts over the life of the process, so the limit moves along with the jobs; only
    the soft one, which alone can be raised again.
    """
    wanted = math.floor(time.process_time()) + 1 + seconds
    if wanted != current:
        hard = resource.getrlimit(resource.RLIMIT_CPU)[1]
        if hard != resource.RLIM_INFINITY:
            wanted = min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_CPU, (wanted, hard))
    return wanted


def work(fd: int, handler: Handler) -> NoReturn:
    """A worker's life: say hello, answer job after job, end with the stream."""
    reserve = bytearray(RESERVE_BYTES)
    write_all(fd, REPLY.pack(0, HELLO, 0.0, PID.size) + PID.pack(os.getpid()))
    cpu_limit = -1
    with open(fd, "rb", buffering=1 << 16, closefd=False) as stream:
        while len(header := stream.read(JOB.size)) == JOB.size:
            id_, length, cpu_seconds = JOB.unpack(header)
            payload = stream.read(length)
            if len(payload) < length:
                break
            cpu_limit = allow_cpu(cpu_seconds, cpu_limit)
            begun = time.perf_counter()
            try:
                kind, value = answer(handler, payload)
            except MemoryError:
                reserve.clear()
                kind, value = NO_MEMORY, b""
            took = time.perf_counter() - begun
            write_all(fd, REPLY.pack(id_, kind, took, len(value)) + value)
    os._exit(0)


def answer(handler: Handler, payload: bytes) -> tuple[int, bytes]:
    """Kind and value of the reply to one job; raises nothing but MemoryError."""
    try:
        value = handler(payload)
        if type(value) is not bytes:
            return RAISED, b"TypeError: the handler returned " + type(value).__name__.encode()
        if len(value) > MAX_BYTES:
            return RAISED, b"ValueError: the handler returned more than %d bytes" % MAX_BYTES
        return DONE, value
    except MemoryError:
        raise
    except BaseException as error:  # SystemExit and KeyboardInterrupt are verdicts too
        return RAISED, describe(error)


def write_all(fd: int, data: bytes) -> None:
    """Write all of `data`; a parent that is gone ends the process."""
    view = memoryview(data)
    try:
        while view:
            view = view[os.write(fd, view) :]
    except OSError as error:
        os._exit(0 if error.errno in (errno.EPIPE, errno.ECONNRESET) else 1)


class ForkServer:
    """Where the zygote forks and reaps its workers, as the parent orders.

    Args:
        control: the zygote's end of the control stream.
        handler: what the workers run.
        memory_bytes: address space of each worker.
    """

    def __init__(self, control: socket.socket, handler: Handler, memory_bytes: int) -> None:
        self._control = control
        self._handler = handler
        self._memory_bytes = memory_bytes
        self._libc = ctypes.CDLL(None)  # loaded here: not every worker has to
        self._pid = os.getpid()
        self._children: set[int] = set()

    def serve(self, parent: int) -> None:
        """Obey orders; returns when the process `parent` is gone.

        A dead worker stays a zombie until the parent has ordered its reaping: until then the
        kernel gives its number to nobody else, so the parent's kill can hit no stranger.
        """
        poll = select.poll()
        poll.register(self._control, select.POLLIN)
        dying: set[int] = set()
        while True:
            ready = poll.poll(10 if dying else ORPHAN_CHECK_MS)
            if os.getppid() != parent:
                return
            if ready:
                message, fds, _, _ = socket.recv_fds(self._control, ORDER.size, 1)
                if not message:
                    return
                kind, pid = ORDER.unpack(message)
                if kind == FORK:
                    self._fork(fds[0])
                elif pid in self._children:
                    dying.add(pid)
            for pid in tuple(dying):
                if os.waitpid(pid, os.WNOHANG)[0]:
                    dying.discard(pid)
                    self._children.discard(pid)

    def kill_all(self) -> None:
        """Kill the process groups of all workers."""
        for pid in self._children:
            with contextlib.suppress(OSError):
                os.killpg(pid, signal.SIGKILL)

    def _fork(self, fd: int) -> None:
        """Fork a worker on the stream `fd`; where that fails, closing `fd` tells the parent."""
        with contextlib.suppress(OSError):
            pid = os.fork()
            if pid == 0:
                try:
                    self._control.close()
                    confine(self._pid, self._memory_bytes, self._libc)
                    work(fd, self._handler)
                finally:
                    os._exit(1)  # nothing a worker does may unwind into the zygote's code
            self._children.add(pid)
        os.close(fd)
