"""The zygote, a warm process that is forked for programs, and the runner's handle on it."""

import _socket
import contextlib
import ctypes
import gc
import os
import select
import signal
import struct
from collections.abc import Callable
from os import closerange, dup2, getpid
from time import monotonic, process_time
from typing import Any, NamedTuple

from confine import Confinement, confine, set_limits
from delays import own_number
from inside import START, plain_line, say
from task import ProcessTask, read_task
from workspace import Workspace

# The runner sends a job, a few numbers and the job's descriptors, to the waiting copy. Copies are
# numbered, so jobs and kill orders cannot reach the wrong one.

# Number of the copy, index of the first test's blob, CPU seconds.
TASK = struct.Struct("<QII")
# To the zygote: K, kill the copy with this number; F, give copies this many megabytes of files.
ORDER = struct.Struct("<cQ")
# From it: E, wait status, CPU seconds, peak memory, True if nothing is left; F, done; or X and the
# length of the error text that follows.
END = struct.Struct("<cidQ?")
MOST_DESCRIPTORS = 6
pack_start, unpack_task = START.pack, TASK.unpack
each_number = struct.Struct("i").iter_unpack
_TASK_SIZE = TASK.size
_SPACE = _socket.CMSG_SPACE(4 * MOST_DESCRIPTORS)
_TICK = 0.002  # seconds between two polls if the kernel does not report a process's end


class ProcessExit(NamedTuple):
    """End of the process of a program."""

    status: int  # wait status
    cpu: float  # seconds
    peak: int  # `ru_maxrss`
    clean: bool  # True if nothing is left of it


class Zygote:
    """The runner's handle on its zygote."""

    def __init__(self, jobs: _socket.socket, control: _socket.socket) -> None:
        self._jobs, self._control = jobs, control
        self._files_mb = -1
        self._number = 0

    def wait_until_ready(self) -> None:
        """Wait until the zygote has completed the steps that may be denied."""
        self._receive(b"F")

    def start(self, first: int, seconds: int, descriptors: list[int], files_mb: int) -> None:
        """Send a job to the waiting copy."""
        if files_mb != self._files_mb:
            self._files_mb = files_mb
            self._control.sendall(ORDER.pack(b"F", files_mb))
            self._receive(b"F")
        self._number += 1
        rights = struct.pack(f"{len(descriptors)}i", *descriptors)
        ancillary = [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, rights)]
        self._jobs.sendmsg([TASK.pack(self._number, first, seconds)], ancillary)

    def kill(self) -> None:
        """Kill the process that was started last."""
        self._control.sendall(ORDER.pack(b"K", self._number))

    def fileno(self) -> int:
        """Descriptor that is readable after the end of that process."""
        return self._control.fileno()

    def end(self) -> ProcessExit:
        """Wait for the end of that process."""
        return ProcessExit(*self._receive(b"E"))

    def _receive(self, kind: bytes) -> tuple:
        data = self._control.recv(END.size)
        trouble = b"the process that programs are copies of has died"
        if len(data) == END.size and data[:1] == b"X":
            trouble = self._control.recv(END.unpack(data)[3])
        if len(data) != END.size or data[:1] != kind:
            raise OSError(trouble.decode("ascii", "replace"))
        return END.unpack(data)[1:]


class ZygoteServer:
    """The zygote's side."""

    # It never sees a job, so all its copies are equal: a warm interpreter without traces of earlier
    # programs. A copy is forked and confined in advance; it waits for its job, runs it and ends.
    # The zygote waits for that end, kills and removes the remains, and forks the next copy.

    def __init__(
        self, jobs: _socket.socket, control: _socket.socket, workspace: Workspace,
        confinement: Confinement, proc: int | None,
    ) -> None:  # fmt: skip
        self._jobs, self._control = jobs, control
        self._place, self._confinement = workspace, confinement
        self._number = 0
        self._files_mb = 0
        self._proc = proc
        self._score, self._own_score = open_score(proc)

    def say_ready(self) -> None:
        """Report to the runner that no step was denied."""
        self._control.sendall(END.pack(b"F", 0, 0.0, 0, True))

    def serve(self) -> ProcessTask:
        """Fork copies until the runner ends; return in a copy that has a task."""
        receive, confinement, private = self._jobs.recvmsg, self._confinement, self._place.private
        proc = self._proc
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(self))  # not deallocated in copies
        gc.collect()
        gc.freeze()
        gc.disable()
        try:
            self._obey(0)
            self.say_ready()
            while pid := self._fork():
                self._follow(pid)
        except BaseException as error:
            text = plain_line(f"{type(error).__name__}: {error}")
            self._control.sendall(END.pack(b"X", 0, 0.0, len(text), False) + text)
            os._exit(1)
        return await_task(receive, confinement, self._number, private, proc)

    def _fork(self) -> int:
        # The kernel kills copies first when out of memory.
        os.chdir(self._place.prepare(self._files_mb))
        self._number += 1
        if self._score < 0:
            return os.fork()
        os.write(self._score, b"1000")
        pid = os.fork()
        if pid:
            os.write(self._score, self._own_score)
        return pid

    def _follow(self, pid: int) -> None:
        control, kind = self._control, b"E"
        end = -1
        with contextlib.suppress(OSError, AttributeError):  # Python may be built without it
            end = os.pidfd_open(pid)
        watched, patience = ([end, control], None) if end >= 0 else ([control], _TICK)
        ended, status, usage = os.wait4(pid, os.WNOHANG)
        while not ended:
            ready, _, _ = select.select(watched, (), (), patience)
            if end < 0 or end in ready:
                ended, status, usage = os.wait4(pid, os.WNOHANG)
            elif self._obey(pid):
                kind = b"F"
                self._number -= 1
        if end >= 0:
            os.close(end)
        clean = self._place.restore(pid)
        cpu = usage.ru_utime + usage.ru_stime
        control.sendall(END.pack(kind, status, cpu, usage.ru_maxrss, clean))

    def _obey(self, pid: int) -> bool:
        """Execute an order of the runner; True if the copy `pid` must be replaced."""
        data = self._control.recv(ORDER.size)
        if len(data) != ORDER.size:
            os._exit(0)  # the runner has ended
        kind, value = ORDER.unpack(data)
        if kind == b"F":
            self._files_mb = value
        if pid and (kind == b"F" or value == self._number):
            os.kill(pid, signal.SIGKILL)
        return kind == b"F"


def open_score(proc: int | None) -> tuple[int, bytes]:
    """Descriptor and value of this process's `oom_score_adj`; -1 if it cannot be changed."""
    if proc is None:
        return -1, b""
    score = -1
    try:
        score = os.open("self/oom_score_adj", os.O_RDWR | os.O_CLOEXEC, dir_fd=proc)
        own_id = os.read(score, 16).strip()
        os.write(score, b"1000")
        os.write(score, own_id)
    except OSError:
        if score >= 0:
            os.close(score)
        return -1, b""
    return score, own_id


def await_task(
    receive: Callable[..., Any],
    confinement: Confinement,
    own_id: int,
    private: str,
    proc: int | None,
) -> ProcessTask:
    """In copy number `own`: confine the process, wait for a job and receive it."""
    # Short, since each page that it writes to is copied. See `Workspace` for `private`.
    trouble, number_in_proc = b"", own_number(proc)
    try:
        confine(confinement)
    except BaseException as error:
        trouble = plain_line(f"{type(error).__name__}: {error}")
    while True:
        data, ancillary, _, _ = receive(_TASK_SIZE, _SPACE)
        if not data:
            os._exit(0)  # the runner has ended
        target, first, seconds = unpack_task(data)
        if target == own_id:  # else it was for an earlier copy that was stopped before receiving it
            break
    ((_, _, rights),) = ancillary
    number = 0
    for (fd,) in each_number(rights):
        dup2(fd, number)
        number += 1
    closerange(number, 1 << 20)
    if not trouble:
        try:
            if private:
                os.mkdir(f"{private}{getpid()}", 0o700)
                os.chdir(f"{private}{getpid()}")
            task = read_task(first)
            set_limits(seconds, *task.limits)
            say(b"S", pack_start(getpid(), number_in_proc, process_time(), monotonic()))
            return task
        except BaseException as error:
            trouble = plain_line(f"{type(error).__name__}: {error}")
    say(b"F", trouble)
    os._exit(1)
