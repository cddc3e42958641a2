"""Runs a function in a separate process for every episode: `python fork_server.py`.

The server imports the installed modules that the program needs, and forks for each run. The fork
executes the program's own module anew, with `OPENAI_BASE_URL` and `OPENAI_API_KEY` of its run, and
ends with the function. So nothing of a library passes from one episode to another: event loops,
clients in globals or never closed, threads, default settings. Modules that the program imports
late are reported by the first fork, which runs alone until it sends a request, or for some seconds.
Modules of the program's own package are never imported before, as they may make a run's client.

Settings and jobs on standard input and results on standard output are lines of JSON; what programs
print goes to standard error. This file imports nothing of flowzoo.
"""

import asyncio
import contextlib
import gc
import importlib
import importlib.util
import inspect
import json
import os
import selectors
import signal
import site
import socket
import sys
import sysconfig
import tempfile
import time
import traceback
import types
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

MOST_ANSWER = 2**25
"""Most characters of an answer."""
MOST_REASON = 10_000
"""Most characters of an error's text."""
_NAMES_AT_ONCE = 500
_ALONE_S = 5.0  # most seconds of a first run without others, which it may wait for
_INSTALLED = tuple(
    {
        *(sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")),
        *site.getsitepackages(),
    }
)
_NOT_PROGRAMS = os.path.dirname(asyncio.__file__), str(Path(__file__).parents[2])


class ForkServer:
    """Forks for the runs of one program."""

    def __init__(self, where: str, name: str) -> None:
        self.where, self.name = where, name
        self.package = "" if where.endswith(".py") else where.partition(".")[0]
        self.code: types.CodeType | None = None  # once, so that no run sees a changed file
        if where.endswith(".py"):
            self.code = compile(Path(where).read_bytes(), os.path.abspath(where), "exec")
        self.results = os.dup(1)
        os.dup2(2, 1)
        self.runs: dict[int, tuple[int, IO[str]]] = {}  # number and result of a run, by process
        self.waiting: list[dict[str, Any]] = []
        self.learned, self.reports = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.learned.setblocking(False)
        self.is_warm = False  # a run has sent its first request, so its modules are modules
        self.warm_at = 0.0

    def serve(self) -> None:
        """Start and end runs until standard input ends."""
        ended, wakes = socket.socketpair()
        for end in (ended, wakes):
            end.setblocking(False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(wakes.fileno(), warn_on_full_buffer=False)
        selector, text = selectors.DefaultSelector(), b""
        for source in (0, self.learned, ended):
            selector.register(source, selectors.EVENT_READ)
        while True:
            ready = {key.fileobj for key, _ in selector.select(self._patience())}
            if ended in ready:
                ended.recv(2**16)
                self._reap()
            if self.learned in ready:
                self._learn()
            if 0 in ready:
                chunk = os.read(0, 2**16)
                if not chunk:
                    return
                *lines, text = (text + chunk).split(b"\n")
                for line in lines:
                    self._obey(json.loads(line))
            self._start_waiting()

    def _patience(self) -> float | None:
        # Seconds until the runs that wait for the first one start; None: none does.
        is_alone = self.waiting and not self.is_warm
        return max(0.0, self.warm_at - time.monotonic()) if is_alone else None

    def _obey(self, job: dict[str, Any]) -> None:
        if job.get("warm"):
            self.is_warm = True
            return
        if "stop" not in job:
            self.waiting.append(job)
            return
        for process, (number, _) in self.runs.items():
            if number == job["stop"]:
                for stop in (os.killpg, os.kill):  # it may not have its group yet
                    with contextlib.suppress(ProcessLookupError, PermissionError):
                        stop(process, signal.SIGKILL)
        for waits in [waits for waits in self.waiting if waits["run"] == job["stop"]]:
            self.waiting.remove(waits)
            self._tell(waits["run"], -signal.SIGKILL, "")

    def _start_waiting(self) -> None:
        self.is_warm |= bool(self.runs) and time.monotonic() >= self.warm_at
        while self.waiting and (self.is_warm or not self.runs):
            job = self.waiting.pop(0)
            try:
                self._start(job)
            except OSError as error:  # of this run alone: others that end make room for the next
                reason = f"its process cannot be started: {error.strerror}"
                self._tell(job["run"], 1, json.dumps(["crash", reason, None]))

    def _start(self, job: dict[str, Any]) -> None:
        result = tempfile.TemporaryFile("w+", encoding="utf-8")  # noqa: SIM115 - closed by `_reap`
        try:
            process = self._fork(lambda: self._work(job, result))
        except OSError:
            result.close()
            raise
        self.runs[process] = job["run"], result
        self.warm_at = time.monotonic() + _ALONE_S

    def _reap(self) -> None:
        with contextlib.suppress(ChildProcessError):
            while ended := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT):
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(ended.si_pid, signal.SIGKILL)  # what the program left behind
                _, status = os.waitpid(ended.si_pid, 0)
                if ended.si_pid in self.runs:
                    number, result = self.runs.pop(ended.si_pid)
                    with result:
                        result.seek(0)
                        self._tell(number, os.waitstatus_to_exitcode(status), result.read())

    def _tell(self, number: int, status: int, result: str) -> None:
        line = json.dumps({"run": number, "status": status, "result": result}).encode() + b"\n"
        while line:
            line = line[os.write(self.results, line) :]

    # -- modules -------------------------------------------------------------------------------

    def preload(self, names: list[str]) -> None:
        """Import modules, of which forks then have a copy."""
        for name in names:
            if name.partition(".")[0] == self.package:
                continue
            # What cannot be imported alone, or exits, is imported by the program, in its forks.
            with contextlib.suppress(Exception, SystemExit):
                importlib.import_module(name)
        gc.freeze()  # so that collections in forks copy no pages

    def _learn(self) -> None:
        with contextlib.suppress(BlockingIOError, TimeoutError):
            while names := self.learned.recv(2**17).decode().split():
                self.preload(names)
                self.is_warm = True

    def _report(self, modules: set[str]) -> None:
        names = [name for name, module in [*sys.modules.items()] if name not in modules
                 and is_installed(module)]  # fmt: skip
        modules.update(names)
        for start in range(0, len(names) or 1, _NAMES_AT_ONCE):
            text = " ".join(names[start : start + _NAMES_AT_ONCE]) or "sys"
            self.reports.send(text.encode())

    # -- forks ---------------------------------------------------------------------------------

    def _fork(self, work: Callable[[], None]) -> int:
        sys.stdout.flush()
        sys.stderr.flush()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # threads that libraries started
            process = os.fork()
        if process == 0:
            _become(work)
        return process

    def _load(self) -> Callable[..., Any]:
        if self.code is None:
            return getattr(importlib.import_module(self.where), self.name)
        module = types.ModuleType(f"flowzoo_named_{Path(self.where).stem}")
        module.__file__ = self.code.co_filename
        sys.modules[module.__name__] = module
        exec(self.code, module.__dict__)
        return getattr(module, self.name)

    def _work(self, job: dict[str, Any], result: IO[str]) -> None:
        modules, is_first = set(sys.modules), not self.is_warm

        def note(event: str, _: tuple[Any, ...]) -> None:
            nonlocal is_first
            if is_first and event == "socket.connect":
                is_first = False
                self._report(modules)

        if is_first:
            sys.addaudithook(note)
        os.environ |= {"OPENAI_BASE_URL": job["base_url"], "OPENAI_API_KEY": job["key"]}
        end = outcome(lambda: self._load()(*job["given"]))
        json.dump(end, result)
        result.flush()
        self._report(modules)


def outcome(call: Callable[[], Any]) -> tuple[str, str, str | None]:
    """Status, reason and answer of a call of a program, whose coroutine is run to its end."""
    try:
        answer = call()
        if inspect.iscoroutine(answer):
            answer = asyncio.run(answer)
    except BaseException as error:  # also SystemExit, which ends the program
        return "crash", describe(error), None
    if answer is not None and not isinstance(answer, str):
        return "crash", f"expected a str as its result, got {type(answer).__name__}", None
    if answer is not None and len(answer) > MOST_ANSWER:
        return "output", f"its answer has more than {MOST_ANSWER:,} characters", None
    return "answer", "", answer


def describe(error: BaseException) -> str:
    """An error with the program's file and line; frames of flowzoo and asyncio are left out."""
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if os.path.dirname(frame.filename) not in _NOT_PROGRAMS
        and not frame.filename.startswith((_NOT_PROGRAMS[1], "<frozen"))
    ]
    home = frames[0].filename if frames else ""
    lines = [frame.lineno for frame in frames if frame.filename == home]
    where = f" ({os.path.basename(home)}, line {lines[-1]})" if lines else ""
    return f"{type(error).__name__}: {str(error)[:MOST_REASON]}{where}"


def is_installed(module: types.ModuleType | None) -> bool:
    """True for modules of Python and of installed packages, which a program does not change."""
    origin = getattr(getattr(module, "__spec__", None), "origin", None)
    return isinstance(origin, str) and (
        origin.startswith(_INSTALLED) or "site-packages" in origin or "dist-packages" in origin
    )


def _become(work: Callable[[], None]) -> None:
    status = 1
    try:
        os.setsid()
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        null = os.open(os.devnull, os.O_RDONLY)
        os.dup2(null, 0)
        if numpy_random := sys.modules.get("numpy.random"):
            numpy_random.seed()  # Python's own generator does so by itself
        work()
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError):
                stream.flush()
        os._exit(status)  # threads and handlers of the program end with it


if __name__ == "__main__":
    line = bytearray()
    while not line.endswith(b"\n"):
        line += os.read(0, 1)
    settings = json.loads(line)
    sys.path[:] = settings["path"]
    server = ForkServer(settings["where"], settings["name"])
    server.preload(settings["modules"])
    server.serve()
