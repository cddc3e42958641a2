"""Fork server of a matrix: one process imports the libraries of all runs, and forks for every run.

Importing torch and transformers takes longer than many a short run trains. A fork behaves as after
`python -m`: a process with its own pid, arguments, environment and log, which can be killed alone.
The server has one thread, computes nothing and opens no device. It ends with the matrix, and its
forks with it (on Linux).

The protocol is one line of JSON each way: a job to the server, its pid back, and later its status.
"""

from __future__ import annotations

import atexit
import contextlib
import importlib
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from flowzoo.garbage import uncollected

PRELOADED = (
    "flowzoo.commands.train",
    "flowzoo.baselines.training.trainer",
    "torch._dynamo",  # imported by the first optimizer
    "transformers.models.auto.modeling_auto",
    "transformers.models.auto.tokenization_auto",
    "transformers.models.qwen3.modeling_qwen3",  # the family of the pocket models
    "numba.core.registry",
    "numba.np.ufunc",
)
"""Modules that the server imports if they are installed; a fork imports the rest itself."""
_TICK_S = 0.1
"""Seconds between two checks for forks that have ended."""
_CLOSE_S = 1.0
"""Seconds within which the server must notice that its matrix has ended."""


class RunServer:
    """Client in the matrix: starts the server, and processes through it."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        """Start the server with this environment, and one thread each for OpenMP and MKL."""
        self._socket, remote = socket.socketpair()
        self._statuses: dict[int, int] = {}
        with remote:
            self._process = subprocess.Popen(
                [sys.executable, "-m", __name__, str(remote.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,  # forks write to their logs
                env={**environment, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"},
                pass_fds=[remote.fileno()],
                preexec_fn=end_with(os.getpid()),
            )
        self._rest = b""
        self._started = 0

    def start(self, arguments: Sequence[str], log: Path, environment: Mapping[str, str]) -> Fork:
        """Start `python -m ARGUMENTS`, with its output appended to `log`.

        Raises:
            OSError: the server has ended.
        """
        job = {
            "arguments": [*arguments],
            "log": str(log.absolute()),
            "environment": {**environment},
        }
        self._socket.sendall((json.dumps(job) + "\n").encode())
        self._started = 0
        while not self._started:
            self._receive()
        return Fork(self, self._started)

    def status(self, pid: int) -> int | None:
        """Exit status of a fork; None while it runs."""
        while pid not in self._statuses and select.select([self._socket], [], [], 0)[0]:
            try:
                self._receive()
            except OSError:
                return -signal.SIGKILL  # the fork ended with the server
        return self._statuses.get(pid)

    def close(self) -> None:
        """End the server and all forks that still run."""
        self._socket.close()
        try:
            self._process.wait(_CLOSE_S)
        except subprocess.TimeoutExpired:  # still importing
            self._process.kill()
            self._process.wait()

    def _receive(self) -> None:
        """Wait for a message of the server, and record it."""
        data = self._socket.recv(2**16)
        if not data:
            raise OSError("the process that starts the runs of this matrix has ended")
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            answer = json.loads(line)
            if "status" in answer:
                self._statuses[answer["pid"]] = answer["status"]
            else:
                self._started = answer["pid"]


class Fork:
    """The part of `subprocess.Popen` that the jobs of a matrix use."""

    def __init__(self, server: RunServer, pid: int) -> None:
        """Wrap the process `pid` of `server`."""
        self._server, self.pid = server, pid
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """Return the exit status, or None while it runs."""
        if self.returncode is None:
            self.returncode = self._server.status(self.pid)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end and return the exit status.

        Raises:
            TimeoutExpired: it still runs after `timeout` seconds.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        while self.poll() is None:
            if deadline is not None and time.monotonic() >= deadline:
                raise subprocess.TimeoutExpired(f"fork {self.pid}", timeout or 0)
            time.sleep(_TICK_S / 2)
        assert self.returncode is not None
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Send a signal, unless it has ended."""
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def kill(self) -> None:
        """Kill it."""
        self.send_signal(signal.SIGKILL)


def end_with(parent: int) -> Callable[[], None]:
    """Function for a worker to call first, so that it is killed with its parent (on Linux).

    Otherwise the runs of a killed matrix would still be training when it is started again.
    """
    if not sys.platform.startswith("linux"):
        return lambda: None
    from flowzoo.sandbox.runner import linux

    def bind() -> None:
        linux.prctl(linux.PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # it died before the call
            os._exit(1)

    return bind


def serve(connection: socket.socket) -> None:
    """Fork for every line of `connection`, and report exit statuses, until it is closed."""
    with connection, connection.makefile("r", encoding="utf-8") as lines:
        while True:
            ready = select.select([connection], [], [], _TICK_S)[0]
            if ready:
                line = lines.readline()
                if not line:
                    return
                me = os.getpid()
                pid = os.fork()
                if not pid:
                    os._exit(_become(json.loads(line), connection, me))
                _send(connection, pid=pid)
            for pid, status in _ended():
                _send(connection, pid=pid, status=status)


def _send(connection: socket.socket, **message: int) -> None:
    # After the matrix has ended, the next read returns the end of the connection.
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        connection.sendall((json.dumps(message) + "\n").encode())


def _ended() -> list[tuple[int, int]]:
    """Pids and exit statuses of forks that have ended since the last call."""
    statuses: list[tuple[int, int]] = []
    with contextlib.suppress(ChildProcessError):  # no child is left
        while (child := os.waitpid(-1, os.WNOHANG))[0]:
            statuses.append((child[0], os.waitstatus_to_exitcode(child[1])))
    return statuses


def _become(job: Mapping[str, Any], connection: socket.socket, server: int) -> int:
    """Run the job in this fork of `server`, and return its exit status."""
    try:
        end_with(server)()
        connection.close()
        signal.signal(signal.SIGINT, signal.default_int_handler)
        log = os.open(job["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
        for number in (1, 2):
            os.dup2(log, number)
        os.environ.clear()
        os.environ.update(job["environment"])
        return run_module(job["arguments"])
    except BaseException as error:  # else the fork would become a second server
        sys.excepthook(type(error), error, error.__traceback__)
        return 1


def run_module(arguments: Sequence[str]) -> int:
    """Run `python -m ARGUMENTS` in this process, and return its exit status."""
    sys.argv = list(arguments)
    warnings.filterwarnings("ignore", ".*found in sys.modules", RuntimeWarning)
    code: Any = 0
    try:
        runpy.run_module(arguments[0], run_name="__main__", alter_sys=True)
    except SystemExit as end:
        code = end.code or 0
        if isinstance(code, str):
            sys.stderr.write(f"{code}\n")
    except BaseException as error:
        sys.excepthook(type(error), error, error.__traceback__)
        code = 1
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    return code if isinstance(code, int) else 1


def main(number: str) -> None:
    """Serve on the socket with this file descriptor."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the matrix handles Ctrl-C
    with uncollected(freeze=True):
        for name in PRELOADED:
            with contextlib.suppress(ImportError):
                importlib.import_module(name)
    serve(socket.socket(fileno=int(number)))


if __name__ == "__main__":
    main(sys.argv[1])
