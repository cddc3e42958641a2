"""A command in a fork of a process that has imported what is heavy.

A fork server that has torch and the trainer runs this file in every fork (`warm` in `conftest.py`).
What follows is as after `python -m`: a process with its own number, words, variables and output,
which can be killed. The runs that a matrix starts are forks of the matrix, and the ranks that
torchrun's launcher starts are forks of the launcher.
"""

import atexit
import gc
import importlib
import os
import runpy
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from flowzoo.baselines.matrix.forks import run_module

HELD = Path(__file__).parent / "held" / "sitecustomize.py"


class Fork:
    """As much of `subprocess.Popen` as the jobs of a matrix and torchrun's launcher use."""

    def __init__(
        self, args: Sequence[str], *, env: Mapping[str, str], stdout: Any = None,
        stderr: Any = None, stdin: int = subprocess.DEVNULL, start_new_session: bool = False,
        preexec_fn: Callable[[], None] = lambda: None,
    ) -> None:  # fmt: skip
        if list(args[:2]) != [sys.executable, "-m"]:
            raise ValueError(f"expected `python -m MODULE`, got {args}")
        self.returncode: int | None = None
        sys.stdout.flush()
        sys.stderr.flush()
        self.pid = os.fork()
        if not self.pid:
            code = 1
            try:
                if start_new_session:
                    os.setsid()
                preexec_fn()
                forget()
                for number, file in ((1, stdout), (2, stderr)):
                    if file is not None:
                        os.dup2(file.fileno(), number)
                os.environ.clear()
                os.environ.update(env)
                code = run_module(args[2:])
            finally:
                os._exit(code)

    def poll(self) -> int | None:
        """The status, or None while it runs."""
        return self._look(os.WNOHANG)

    def wait(self, timeout: float | None = None) -> int | None:
        """The status, once it has ended."""
        return self._look(0)

    def _look(self, options: int) -> int | None:
        if self.returncode is None:
            pid, status = os.waitpid(self.pid, options)
            if pid:
                self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Send a signal, unless it has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        """Ask it to end."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """End it."""
        self.send_signal(signal.SIGKILL)


def forget() -> None:
    """What a new interpreter has not: handlers of signals, and work for its end."""
    atexit._clear()
    for number in signal.valid_signals():
        if callable(signal.getsignal(number)):
            signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)


def become(words: Sequence[str], environment: Mapping[str, str], out: str, err: str) -> int:
    """Let this fork be the command; its output goes to two files."""
    gc.freeze()  # what was imported before the fork is no garbage, and to look at it copies it
    for number, path in ((1, out), (2, err)):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored where tests run behind nohup
    os.environ.clear()
    os.environ.update(environment)
    from flowzoo.baselines.matrix import jobs
    from flowzoo.baselines.matrix import run as matrix_run

    matrix_run.MIN_FORKED_RUNS = 10**9  # a matrix is such a fork itself
    jobs.subprocess = SimpleNamespace(Popen=Fork, DEVNULL=subprocess.DEVNULL)
    if "--backend=torchrun" in words:
        handler = importlib.import_module(
            "torch.distributed.elastic.multiprocessing.subprocess_handler.subprocess_handler"
        )
        vars(handler)["Popen"] = Fork
    if "FLOWZOO_TEST_HOLD" in os.environ:
        runpy.run_path(str(HELD))
    return run_module(words)


if __name__ == "<run_path>":
    # Given by the fork server; `sys.exit` tells it the status.
    sys.exit(become(globals()["WORDS"], globals()["VARIABLES"], globals()["OUT"], globals()["ERR"]))
