"""The runner: a warm process that forks one confined process for each program."""

import fcntl
import gc
import json
import os
import sys
import types
from collections.abc import Callable
from typing import Any

import calls
import check
import inside
import opening
from channel import HostChannel
from confine import MODES, BoxMode
from server import BoxServer
from task import ProcessTask
from wire import BROKEN
from zygote import Zygote

ENVIRONMENT = {
    "PYTHONHASHSEED": "0", "PYTHONUTF8": "1", "MALLOC_ARENA_MAX": "1", "LD_BIND_NOW": "1",
}  # fmt: skip
# First descriptor for the stream to the host: 0, 1 and 2 belong to programs.
_ASIDE = 16
_FOLDER = os.path.dirname(os.path.abspath(__file__))

_IMPORTED = ("call", "serve")  # styles of programs with an entry
# Code, its namespace, functions that report an exception and end the process.
LoadedProgram = tuple[types.CodeType, dict[str, Any], Callable[..., int], Callable[[int], None]]


def main() -> LoadedProgram:
    """Serve until the host ends the stream; return only in the process of a stdin program."""
    if sys.flags.hash_randomization:  # `-I` ignores the variable that fixes the seed
        command = [sys.executable, "-s", "-P", "-S", "-B", _FOLDER, *sys.argv[1:]]
        os.execve(sys.executable, command, ENVIRONMENT)
    channel = _take_stream()
    try:
        mode, options = _read_arguments(sys.argv[1:])
        server = BoxServer(mode, options, channel)
        server.get_ready()
        side = server.split()
        if isinstance(side, Zygote):
            server.serve(side)
            os._exit(0)
    except BaseException as error:  # report every error to the host, which starts another box
        text = inside.plain_line(f"{type(error).__name__}: {error}")
        try:
            channel.send(BROKEN, {}, detail=text)
        finally:
            os._exit(1)
    del server, channel
    task = side.serve()
    inside.wake_up()
    gc.enable()
    return *begin(task), inside.report, inside.finish


def begin(task: ProcessTask) -> tuple[types.CodeType, dict[str, Any]]:
    """Return the code of a stdin program and its namespace; run the other styles to their end."""
    is_test = task.style in ("check", "lockstep", "alone")
    sources = task.blobs if is_test else task.blobs[:1]
    blobs = [os.pread(inside.JOB, size, start) for start, size in sources]
    scope = inside.open_module(inside.IMPORTED if task.style in _IMPORTED else inside.MAIN)
    if is_test:
        check.run_test(blobs, task.entry, scope, task.style)
        os._exit(0)
    code = inside.compile_program(blobs[0])
    if code is None:
        os._exit(1)
    inside.say(b"C")
    opening.offer(blobs[0])
    if task.style == "stdin":
        os.closerange(inside.SAYS, inside.HEARS + 1)
        return code, scope
    function = calls.load(code, scope, task.entry)
    if function is not None and task.style == "call":
        calls.answer_calls(function, task.blobs[1:], task.most)
    elif function is not None:
        calls.serve(function, scope, task.most)
    os._exit(0)


def _take_stream() -> HostChannel:
    # The runner must not occupy a program's descriptors.
    source = fcntl.fcntl(0, fcntl.F_DUPFD_CLOEXEC, _ASIDE)
    target = fcntl.fcntl(1, fcntl.F_DUPFD_CLOEXEC, _ASIDE)
    null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    for number in (0, 1, *range(inside.SAYS, inside.HEARS + 1)):
        if number != null:
            os.dup2(null, number, inheritable=False)
    if null > inside.HEARS:
        os.close(null)
    for fd in (source, target):
        os.set_blocking(fd, True)
    return HostChannel(source, target)


def _read_arguments(arguments: list[str]) -> tuple[BoxMode, dict[str, Any]]:
    mode, *rest = arguments or [""]
    if mode not in MODES:
        raise ValueError(f"unknown mode {mode!r}; expected one of {', '.join(MODES)}")
    options = json.loads(rest[0]) if rest else {}
    if unknown := set(options) - {"uid", "packages", "folder"}:
        raise ValueError(f"unknown options {sorted(unknown)}; expected: uid, packages, folder")
    return MODES[mode], options
