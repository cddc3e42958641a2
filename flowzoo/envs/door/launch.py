"""Start of agent programs: functions in threads, commands as processes without a shell.

A guard, a separate process, kills the remaining commands when their owner ends.
"""

from __future__ import annotations

import asyncio
import fnmatch
import inspect
import logging
import os
import secrets
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any

from flowzoo.envs.door.run import ProgramRun, ends_noticed, kill_group
from flowzoo.provenance import is_secret_name, redact

_log = logging.getLogger("flowzoo")
_GUARD = """
import os, signal, sys, time
mark, groups = os.fsencode(sys.argv[1]), set()
def kill(stop, target):
    try:
        stop(target, signal.SIGKILL)
    except OSError:
        pass
for line in sys.stdin:
    (groups.add if line[0] == "+" else groups.discard)(int(line[1:]))
for group in groups:
    kill(os.killpg, group)
# Programs that were being started have no group here yet: on Linux their environment names them.
for _ in range(20 if os.path.isdir("/proc/self") else 0):
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{name}/environ", "rb") as file:
                marked = mark in file.read().split(b"\\0")
        except OSError:
            continue
        if marked:
            kill(os.kill, int(name))
    time.sleep(0.05)
"""


class ProgramGuard:
    """Kills groups of processes when this process ends, by a signal or without one.

    Its standard input closes with this process, so SIGKILL is detected too.
    """

    def __init__(self) -> None:
        self.mark = "FLOWZOO_DOOR", secrets.token_hex(16)
        """Name and value in the environment of the programs."""
        self._groups: set[int] = set()
        self._start()

    def _start(self) -> None:
        # In a separate session, so signals to this process's group do not reach it.
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", _GUARD, "=".join(self.mark)],
            bufsize=0,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    def watch(self, group: int) -> None:
        """Kill `group` when this process ends."""
        self._groups.add(group)
        self._tell(f"+{group}\n")

    def forget(self, group: int) -> None:
        """Stop watching `group`, which has ended."""
        self._groups.discard(group)
        self._tell(f"-{group}\n")

    def _tell(self, lines: str) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(lines.encode())
        except BrokenPipeError:  # it was killed, for example when memory ran out
            self._process.wait()
            try:
                self._start()
            except OSError as error:
                warning = "if this process is killed, its agent programs keep running: %s"
                _log.warning(warning, error)
                return
            self._tell("".join(f"+{group}\n" for group in self._groups))


MOST_OUTPUT = 2**20
"""Most bytes of a command's output."""
MOST_THREADS = 1024
"""Most threads of functions whose episodes have ended; threads cannot be killed."""
INHERITED = (
    "PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LANGUAGE", "LC_*", "TZ", "TERM", "TMPDIR",
    "TEMP", "TMP", "PYTHON*", "VIRTUAL_ENV", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH",
    "*_NUM_THREADS", "http_proxy", "https_proxy", "all_proxy", "no_proxy", "HTTP_PROXY",
    "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY", "SSL_CERT_FILE", "SSL_CERT_DIR", "*_CA_BUNDLE",
    "NODE_EXTRA_CA_CERTS",
)  # fmt: skip
"""Patterns of the environment variables that commands inherit; secret names are left out."""
_LONGEST = 500  # characters of a reason
_NOT_PROGRAMS = os.path.dirname(asyncio.__file__), str(Path(__file__).parents[2])
_LOOK_S = 0.02  # seconds between two polls of a process


class ProgramThreads:
    """Threads of functions; a bounded number may outlive their episodes."""

    def __init__(self) -> None:
        self._runs: set[ProgramRun] = set()  # runs with a live thread

    def start(self, run: ProgramRun, base_url: str) -> None:
        """Run a function in a thread; at the limit its episode ends instead."""
        left = len(self._runs) >= MOST_THREADS and sum(of.end is not None for of in self._runs)
        if left >= MOST_THREADS:
            run.finish(
                "threads",
                f"functions of {left:,} ended episodes are still running, so it was not started: "
                "set a timeout in their clients, or use a command, which can be killed",
            )
            return
        self._runs.add(run)
        args = (run, base_url, self._finish, asyncio.get_running_loop())
        threading.Thread(target=_call, args=args, name="agent program", daemon=True).start()

    async def _finish(self, run: ProgramRun, *end: Any) -> None:
        self._runs.discard(run)
        await ends_noticed()  # the program may have left a reply unread just now
        run.finish(*end)


def launch(
    run: ProgramRun, base_url: str, guard: Callable[[], ProgramGuard], threads: ProgramThreads
) -> Coroutine[Any, Any, None] | None:
    """Start a program; for a command, return the coroutine that watches it."""
    if isinstance(run.program.run, tuple):
        return _command(run, base_url, guard())
    threads.start(run, base_url)
    return None


def _call(
    run: ProgramRun,
    base_url: str,
    ended: Callable[..., Coroutine[Any, Any, None]],
    loop: asyncio.AbstractEventLoop,
) -> None:
    # In the program's thread.
    try:
        answer = run.program.run(run.question, base_url, run.key)
        if inspect.iscoroutine(answer):
            answer = asyncio.run(answer)
        if answer is None or isinstance(answer, str):
            end = ("answer", "", answer)
        else:
            end = ("crash", f"expected a str as its result, got {type(answer).__name__}", None)
    except BaseException as error:  # also SystemExit, which ends the program
        end = ("crash", clean(_describe(error), base_url, run.key), None)
    asyncio.run_coroutine_threadsafe(ended(run, *end), loop)


def _describe(error: BaseException) -> str:
    # The first frames are internal (and asyncio's for an async program).
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)[1:]
        if os.path.dirname(frame.filename) not in _NOT_PROGRAMS
    ]
    home = frames[0].filename if frames else ""
    lines = [frame.lineno for frame in frames if frame.filename == home]
    where = f" ({os.path.basename(home)}, line {lines[-1]})" if lines else ""
    return f"{type(error).__name__}: {error}{where}"


def clean(reason: str, base_url: str, key: str) -> str:
    """A reason as one line, without secrets and parts that differ between runs."""
    text = redact(reason.replace(key, "KEY").replace(base_url, "URL"))
    text = " ".join(text.split())
    text = "".join(character for character in text if character.isprintable())
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"


def inherited(variables: Sequence[str]) -> dict[str, str]:
    """The part of this process's environment for a command that needs `variables`."""
    return {
        name: value
        for name, value in os.environ.items()
        if name in variables
        or (any(fnmatch.fnmatchcase(name, of) for of in INHERITED) and not is_secret_name(name))
    }


async def _command(run: ProgramRun, base_url: str, guard: ProgramGuard) -> None:
    command: tuple[str, ...] = run.program.run
    here = "127.0.0.1"
    skipped = ",".join(filter(None, (os.environ.get("NO_PROXY"), here)))
    environment = {
        **inherited(run.program.variables),
        "OPENAI_BASE_URL": base_url,
        "OPENAI_API_KEY": run.key,
        guard.mark[0]: guard.mark[1],
        "NO_PROXY": skipped,
        "no_proxy": skipped,
    }
    pipe = asyncio.subprocess.PIPE
    try:
        process = await asyncio.create_subprocess_exec(
            *command, stdin=pipe, stdout=pipe, stderr=pipe, env=environment, start_new_session=True
        )
    except OSError as error:
        run.finish("crash", f"{command[0]} cannot be started: {error.strerror}")
        return
    guard.watch(process.pid)
    run.stop = lambda: kill_group(process.pid)
    if run.end is not None:  # the run ended during the start
        run.stop()
    outputs = asyncio.gather(_read(run, process.stdout, MOST_OUTPUT), _tail(process.stderr))
    await _write(process.stdin, run.question)
    # `wait` returns when the pipes are closed, but an orphaned child may keep them open.
    while (status := process.returncode) is None:
        await asyncio.sleep(_LOOK_S)
    kill_group(process.pid)
    guard.forget(process.pid)
    run.stop = lambda: None  # the id may be reused by another process
    output, errors = await outputs
    await ends_noticed()
    if status == 0:
        run.finish("answer", "", output.decode("utf-8", "replace").strip() or None)
        return
    kind = f"exit status {status}" if status > 0 else f"signal {-status}"
    last = errors.decode("utf-8", "replace").strip().rpartition("\n")[2]
    run.finish("crash", clean(f"{kind}: {last}" if last else kind, base_url, run.key))


async def _write(stream: asyncio.StreamWriter | None, question: str) -> None:
    assert stream is not None
    try:
        stream.write(question.encode("utf-8", "replace"))
        await stream.drain()
        stream.close()
    except (BrokenPipeError, ConnectionResetError):
        pass  # it ended, or does not read its input


async def _read(run: ProgramRun, stream: asyncio.StreamReader | None, most: int) -> bytes:
    assert stream is not None
    output = bytearray()
    while chunk := await stream.read(2**16):
        output += chunk
        if len(output) > most:
            run.finish("output", f"it printed more than {most:,} bytes")
            return b""
    return bytes(output)


async def _tail(stream: asyncio.StreamReader | None) -> bytes:
    assert stream is not None
    output = b""
    while chunk := await stream.read(2**16):
        output = (output + chunk)[-4000:]
    return output
