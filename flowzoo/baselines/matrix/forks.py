"""The processes of a matrix as forks of one that has imported what every run imports.

Importing torch and transformers takes longer than many a short run trains. So one process, started
by the matrix, imports both and forks for every job. What follows in the fork is as after
`python -m`: a process with its own number, words, variables and log, which can be killed alone.
The server takes no part in any run: it has one thread, computes nothing and opens no device. It
ends with the matrix, and its forks with it (on Linux).

One line of JSON each way: to the server a job, from it the job's process number, and later its
status.
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
    "torch._dynamo",  # which the first optimiser imports
    "transformers.models.auto.modeling_auto",
    "transformers.models.auto.tokenization_auto",
    "transformers.models.qwen3.modeling_qwen3",  # the family of the pocket models
    "numba.core.registry",
    "numba.np.ufunc",
)
"""What the server imports, as far as it is there; a fork imports the rest itself."""
_TICK_S = 0.1
"""How often the server looks for forks that have ended."""
_CLOSE_S = 1.0
"""How long the server may take to see that its matrix has ended."""


class RunServer:
    """The matrix's end: starts the server, and processes by it."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        """Start the server with these variables, one thread each for OpenMP and MKL."""
        mine, theirs = socket.socketpair()
        self._statuses: dict[int, int] = {}
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", __name__, str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,  # a fork writes to its log alone
                env={**environment, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"},
                pass_fds=[theirs.fileno()],
                preexec_fn=end_with(os.getpid()),
            )
        self._socket = mine
        self._rest = b""
        self._started = 0

    def start(self, words: Sequence[str], log: Path, environment: Mapping[str, str]) -> Fork:
        """A process that does what `python -m WORDS` would, its output at the end of `log`.

        Raises:
            OSError: the server has ended.
        """
        job = {"words": [*words], "log": str(log.absolute()), "environment": {**environment}}
        self._socket.sendall((json.dumps(job) + "\n").encode())
        self._started = 0
        while not self._started:
            self._receive()
        return Fork(self, self._started)

    def status(self, pid: int) -> int | None:
        """How the fork of this number ended; None while it runs."""
        while pid not in self._statuses and select.select([self._socket], [], [], 0)[0]:
            try:
                self._receive()
            except OSError:
                return -signal.SIGKILL  # it ended with the server
        return self._statuses.get(pid)

    def close(self) -> None:
        """End the server; forks that still run end with it."""
        self._socket.close()
        try:
            self._process.wait(_CLOSE_S)
        except subprocess.TimeoutExpired:  # it is still importing
            self._process.kill()
            self._process.wait()

    def _receive(self) -> None:
        """Wait for something from the server, and note what it says."""
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
    """As much of `subprocess.Popen` as the jobs of a matrix use."""

    def __init__(self, server: RunServer, pid: int) -> None:
        """The process `pid` of `server`."""
        self._server, self.pid = server, pid
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """The status, or None while it runs."""
        if self.returncode is None:
            self.returncode = self._server.status(self.pid)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """The status, once it has ended.

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
        """End it at once."""
        self.send_signal(signal.SIGKILL)


def end_with(parent: int) -> Callable[[], None]:
    """What a worker does before it starts: see that it is killed if the matrix is (on Linux).

    Else a matrix that was killed and started again would find its runs still being trained.
    """
    if not sys.platform.startswith("linux"):
        return lambda: None
    from flowzoo.sandbox.runner import linux

    def ask() -> None:
        linux.prctl(linux.PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # it died before we asked
            os._exit(1)

    return ask


def serve(connection: socket.socket) -> None:
    """Fork for every line of `connection`, and tell how forks ended, until it is closed."""
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
                _tell(connection, pid=pid)
            for pid, status in _ended():
                _tell(connection, pid=pid, status=status)


def _tell(connection: socket.socket, **said: int) -> None:
    # Without a matrix there is nobody to tell, and the next line that is read is the end.
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        connection.sendall((json.dumps(said) + "\n").encode())


def _ended() -> list[tuple[int, int]]:
    """Forks that have ended since, and how."""
    found: list[tuple[int, int]] = []
    with contextlib.suppress(ChildProcessError):  # there is none
        while (one := os.waitpid(-1, os.WNOHANG))[0]:
            found.append((one[0], os.waitstatus_to_exitcode(one[1])))
    return found


def _become(job: Mapping[str, Any], connection: socket.socket, server: int) -> int:
    """Let this fork of `server` be the job's process; its exit status."""
    try:
        end_with(server)()
        connection.close()
        signal.signal(signal.SIGINT, signal.default_int_handler)
        log = os.open(job["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
        for number in (1, 2):
            os.dup2(log, number)
        os.environ.clear()
        os.environ.update(job["environment"])
        return run_module(job["words"])
    except BaseException as error:  # whatever it is, the fork must not become a second server
        sys.excepthook(type(error), error, error.__traceback__)
        return 1


def run_module(words: Sequence[str]) -> int:
    """`python -m` with these words, in this process; its exit status."""
    sys.argv = list(words)
    warnings.filterwarnings("ignore", ".*found in sys.modules", RuntimeWarning)
    code: Any = 0
    try:
        runpy.run_module(words[0], run_name="__main__", alter_sys=True)
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
    """Serve on the socket of this number."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the matrix's to handle
    with uncollected(freeze=True):
        for name in PRELOADED:
            with contextlib.suppress(ImportError):
                importlib.import_module(name)
    serve(socket.socket(fileno=int(number)))


if __name__ == "__main__":
    main(sys.argv[1])
