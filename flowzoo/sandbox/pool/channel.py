"""The parent's view of a pool's processes: one `PoolZygote`, and one `WorkerConnection` per worker.

Both are handles without a thread of their own. They never block, except `PoolZygote.close`; only
the pool's dispatcher calls them. All descriptors are closed on exec, and closing them is what tells
the other side that the parent is gone.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections import deque
from collections.abc import Mapping

from flowzoo.sandbox.pool.batch import AssignedJob, JobBatch
from flowzoo.sandbox.pool.protocol import FORK, JOB, ORDER, PID, REAP, WorkerReply, split_replies

READ_BYTES = 1 << 18

MOST_WAITING = 10
"""A job ends after this many times its deadline, however long its worker waited for a processor."""

BASE_ENVIRONMENT = {
    "PYTHONHASHSEED": "0",  # sets and dicts of strings iterate alike in every run
    "PYTHONUTF8": "1",
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "SYMPY_GROUND_TYPES": "python",  # gmpy2 aborts the process on numbers that are too big
}
"""Environment of every zygote, before the pool's own `env`."""

PASSED_ON = ("PATH", "HOME", "TMPDIR", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH")
"""Variables taken over from the parent where it has them; no others are: some are secrets."""

# -s -P instead of -I: the last would ignore PYTHONHASHSEED. The environment holds no other
# PYTHON* variable, and the module path is the parent's.
_START = (
    "import sys, json; sys.path[:] = json.loads(sys.argv[5]); "
    "from flowzoo.sandbox.pool.zygote import run_zygote; "
    "run_zygote(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], int(sys.argv[4]))"
)


class PoolZygote:
    """The process that forks the workers.

    Args:
        setup: "module:function" that makes the handler.
        memory_bytes: address space of each worker.
        env: variables added to the environment.
    """

    def __init__(self, setup: str, memory_bytes: int, env: Mapping[str, str]) -> None:
        near, far = socket.socketpair()
        path = [os.path.abspath(entry) for entry in sys.path]
        settings = [str(far.fileno()), str(os.getpid()), setup, str(memory_bytes), json.dumps(path)]
        passed = {name: os.environ[name] for name in PASSED_ON if name in os.environ}
        try:
            # A new process by exec, never a fork of this one: it may have threads and a GPU. Its
            # own session, so that a Ctrl-C at the terminal does not reach it.
            self.process = subprocess.Popen(
                [sys.executable, "-s", "-P", "-c", _START, *settings],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                env={**passed, **BASE_ENVIRONMENT, **env},
                pass_fds=[far.fileno()],
                start_new_session=True,
            )
        except BaseException:
            near.close()
            raise
        finally:
            far.close()
        near.setblocking(False)
        self.control = near
        self.started_at = time.monotonic()
        self.ready = False
        self.error = ""
        self._heard = b""

    def read_report(self) -> bool:
        """Read what the zygote reported; False when it is gone."""
        try:
            data = self.control.recv(READ_BYTES)
        except BlockingIOError:
            return True
        except OSError:
            return False
        self._heard += data
        if not self.ready and not self.error and self._heard.endswith(b"\n"):
            message = json.loads(self._heard)
            self.ready, self.error = "ready" in message, message.get("error", "")
        return bool(data)

    def has_exited(self) -> bool:
        """Whether the process has ended.

        The end of the control stream may come later: for a moment, a fresh worker holds it too.
        """
        return self.process.poll() is not None

    def fork(self) -> socket.socket:
        """Order a worker; returns the parent's end of its stream. OSError where that fails."""
        near, far = socket.socketpair()
        near.setblocking(False)
        try:
            socket.send_fds(self.control, [ORDER.pack(FORK, 0)], [far.fileno()])
        except OSError:
            near.close()
            raise
        finally:
            far.close()
        return near

    def reap(self, pid: int) -> None:
        """Let the zygote collect the dead worker `pid`."""
        with contextlib.suppress(OSError):  # a zygote that is gone leaves it to init
            self.control.send(ORDER.pack(REAP, pid))

    def kill(self) -> None:
        """Kill the process; its workers die with it."""
        self.process.kill()

    def close(self, patience: float = 1.0) -> None:
        """End the process and wait until it is gone; a second call does nothing."""
        self.control.close()
        try:
            self.process.wait(patience)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def forget(self) -> None:
        """In a fork of the parent: let go without touching a process that is not ours."""
        self.control.close()
        self.process.returncode = 0  # or its __del__ would wait for a child we do not have


def runqueue_wait(pid: int) -> float:
    """Seconds that a process could have run and other processes did; 0 where that is not known."""
    try:
        with open(f"/proc/{pid}/schedstat", encoding="ascii") as file:
            return int(file.read().split()[1]) * 1e-9
    except (OSError, ValueError, IndexError):  # no Linux, statistics off, or it is gone
        return 0.0


class WorkerConnection:
    """One worker: its stream, and the jobs sent to it that have no verdict yet.

    `queue[0]` is the job it runs; those behind it are waiting in its pipe.
    """

    def __init__(self, stream: socket.socket) -> None:
        self.stream = stream
        self.fd = stream.fileno()
        self.pid = 0  # known from its hello on
        self.started_at = time.monotonic()
        self.queue: deque[AssignedJob] = deque()
        self.started = 0.0
        """When the job in front was dispatched, or the one before it was answered."""
        self.deadline = 0.0
        """Until when the job in front must have answered."""
        self.waited: float | None = None
        """What `runqueue_wait` said soon after the job in front began; None: not asked yet."""
        self.last = False
        """No more jobs: it is replaced once the one in front has its verdict."""
        self.served = 0
        self.outgoing = memoryview(b"")
        self._incoming = bytearray()
        self._next_id = int.from_bytes(os.urandom(6), "little") + 1

    def send_jobs(self, batch: JobBatch, idxs: list[int]) -> None:
        """Send the jobs of `batch` at the positions `idxs`."""
        parts = [bytes(self.outgoing)]
        for idx in idxs:
            payload = batch.jobs[idx]
            self._next_id += 1
            self.queue.append(AssignedJob(self._next_id, batch, idx))
            parts += JOB.pack(self._next_id, len(payload), batch.cpu_seconds), payload
        idle = len(self.queue) == len(idxs)
        self.outgoing = memoryview(b"".join(parts))
        self.flush()
        if idle:
            self.start_clock()

    def start_clock(self) -> None:
        """The worker begins with the job in front of its queue now."""
        if self.queue:
            self.started = time.monotonic()
            self.deadline = self.started + self.queue[0].batch.deadline
            self.waited = None

    def extend(self) -> bool:
        """Give the job in front the time that its worker waited; False: it has had its deadline."""
        now, allowed = time.monotonic(), self.queue[0].batch.deadline
        if self.waited is None:  # not even looked at: this process was held up all the while
            self.waited = runqueue_wait(self.pid)
            self.deadline = now + allowed
            return True
        last = self.started + MOST_WAITING * allowed
        more = runqueue_wait(self.pid) - self.waited
        self.deadline = min(self.started + allowed + more, last)
        return now < self.deadline or (now < last and self.has_input())

    def has_input(self) -> bool:
        """Whether something came that was not read, perhaps while this process was held up."""
        poll = select.poll()
        poll.register(self.stream, select.POLLIN)
        return bool(poll.poll(0))

    def flush(self) -> None:
        """Send what the stream takes now; what a dead worker does not take is dropped."""
        try:
            while self.outgoing:
                self.outgoing = self.outgoing[self.stream.send(self.outgoing) :]
        except BlockingIOError:
            pass
        except OSError:  # the end of the stream is seen by the next read
            self.outgoing = memoryview(b"")

    def receive(self) -> tuple[list[WorkerReply], bool]:
        """The replies that came, and whether the stream is still good (False: kill the worker)."""
        try:
            data = self.stream.recv(READ_BYTES)
        except BlockingIOError:
            return [], True
        except OSError:
            return [], False
        if not data:
            return [], False
        self._incoming += data
        split = split_replies(self._incoming)
        del self._incoming[: split.used]
        return split.replies, split.sound

    def accept_hello(self, reply: WorkerReply) -> bool:
        """Take the worker's pid from its hello; False where it is none."""
        if len(reply.value) == PID.size:
            self.pid = PID.unpack(reply.value)[0]
        return self.pid > 1

    def kill(self) -> None:
        """Kill the worker's process group and close its stream."""
        if self.pid > 1:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, signal.SIGKILL)
        self.stream.close()
