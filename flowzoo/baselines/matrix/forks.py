"""Runs of a matrix as forks of one process that has imported the libraries of all runs."""

import atexit
import contextlib
import gc
import multiprocessing
import os
import runpy
import signal
import subprocess
import sys
import threading
import warnings
from collections.abc import Callable, Mapping, Sequence
from multiprocessing import forkserver
from pathlib import Path

from flowzoo.sandbox.runner import linux

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
ONE_THREAD = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}


class Fork:
    """`python -m ARGUMENTS` in a fork; the part of `subprocess.Popen` that a matrix uses."""

    def __init__(self, arguments: Sequence[str], log: Path, environment: Mapping[str, str]) -> None:
        _start_server()
        self._process = multiprocessing.get_context("forkserver").Process(
            target=_become, args=(list(arguments), str(log.absolute()), dict(environment))
        )
        self._process.start()
        assert self._process.pid is not None
        self.pid = self._process.pid

    def poll(self) -> int | None:
        """Return the exit status, or None while it runs."""
        return self._process.exitcode

    returncode = property(poll)

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end and return the exit status; raises `TimeoutExpired`."""
        self._process.join(timeout)
        status = self.poll()
        if status is None:
            raise subprocess.TimeoutExpired(f"fork {self.pid}", timeout or 0)
        return status

    def send_signal(self, number: int) -> None:
        """Send a signal, unless it has ended."""
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def kill(self) -> None:
        """Kill it."""
        self.send_signal(signal.SIGKILL)


def _start_server() -> None:
    multiprocessing.get_context("forkserver").set_forkserver_preload([*PRELOADED])
    before = {name: os.environ.get(name) for name in ONE_THREAD}
    os.environ.update(ONE_THREAD)  # read when the server imports torch
    try:
        forkserver.ensure_running()
    finally:
        for name, value in before.items():
            os.environ.pop(name)
            if value is not None:
                os.environ[name] = value


def _become(arguments: Sequence[str], log: str, environment: Mapping[str, str]) -> None:
    os.setsid()  # Ctrl-C would reach it from the terminal, and again from the matrix
    threading.Thread(target=_end_with_matrix, daemon=True).start()
    gc.freeze()  # a collection would copy the pages that the fork shares with the server
    signal.signal(signal.SIGINT, signal.default_int_handler)
    file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
    for number in (1, 2):
        os.dup2(file, number)
    os.environ.clear()
    os.environ.update(environment)
    sys.exit(run_module(arguments))


def _end_with_matrix() -> None:
    matrix = multiprocessing.parent_process()
    if matrix is not None:
        matrix.join()
        os.kill(os.getpid(), signal.SIGKILL)


def end_with(parent: int) -> Callable[[], None]:
    """Function for a worker to call first, so that it is killed with its parent (on Linux)."""
    # Otherwise the runs of a killed matrix would still be training when it is started again.
    if not sys.platform.startswith("linux"):
        return lambda: None

    def bind() -> None:
        linux.prctl(linux.PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # it died before the call
            os._exit(1)

    return bind


def run_module(arguments: Sequence[str]) -> int:
    """Run `python -m ARGUMENTS` in this process, and return its exit status."""
    sys.argv = list(arguments)
    warnings.filterwarnings("ignore", ".*found in sys.modules", RuntimeWarning)
    status: object = 0
    try:
        runpy.run_module(arguments[0], run_name="__main__", alter_sys=True)
    except SystemExit as end:
        status = end.code or 0
        if isinstance(status, str):
            sys.stderr.write(f"{status}\n")
    except BaseException as error:
        sys.excepthook(type(error), error, error.__traceback__)
        status = 1
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    return status if isinstance(status, int) else 1
