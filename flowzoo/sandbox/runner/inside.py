"""The process of a program, after it has been confined."""

from __future__ import annotations

import _random
import _sitebuiltins
import atexit
import builtins
import io
import os
import struct
import sys
import types
from os import getpid
from typing import Any

from wire import RECORD

# `threading` and `random` without what they do after every fork, which costs 0.6 ms and 160 pages.
# Where the parent has one thread only, as here, there is nothing to repair but the seed and the
# thread's number, of which `wake_up` takes care.
_register = os.register_at_fork
os.register_at_fork = lambda **hooks: None
try:
    import random
    import threading
finally:
    os.register_at_fork = _register

# The process speaks to the runner over one descriptor, in records `length: u32, kind: 1 byte,
# content`. Texts are the inside of a JSON string in ASCII. Nothing here is trusted: a program can
# write records too, and gains nothing but another way to fail, for it does not know what is
# expected.
#
# | kind | content | meaning |
# |---|---|---|
# | S | `START` | confined; what follows is the program's doing |
# | F | text | confining failed |
# | X | text | the source does not compile |
# | C | | it compiled, and starts |
# | L | | (call, serve) it ran to its end, and the calls begin |
# | R | encoded value | a call returned; (check) the test ran to its end |
# | E, M, U, O | text | a call, or loading, raised; ran out of memory; unplain; too large |
# | Q | encoded | (serve) an answer; (check) a question |

# Process id, the id that /proc has for it (0: not known), and by its clocks: CPU seconds used so
# far, the time on the wall.
START = struct.Struct("<IIdd")
# Peak memory as `ru_maxrss` tells it; stands before the content of what a call came to.
PEAK = struct.Struct("<Q")
# Descriptors: records to the runner, the job's blobs, messages of a session.
SAYS, JOB, HEARS = 3, 4, 5
PROGRAM = "<program>"
FILE = "program.py"  # path that a program sees as `__file__` and `sys.argv[0]`
LINE = 300
THREAD_STACK = 2 * 2**20
_reseed, _random_source = _random.Random.seed, random._inst
_main_thread = threading.main_thread()
# `C` is the one locale that needs no files; text is UTF-8 all the same, by PYTHONUTF8.
ENVIRONMENT = {"HOME": "/tmp", "LANG": "C", "PATH": "/usr/bin:/bin"}


def say(kind: bytes, content: bytes = b"") -> None:
    """Send a record to the runner."""
    data = RECORD.pack(1 + len(content)) + kind + content
    while data:
        data = data[os.write(SAYS, data) :]


def plain_line(text: str) -> bytes:
    """The start of `text` as the inside of a JSON string."""
    return "".join(
        char if " " <= char <= "~" and char not in '"\\' else f"\\u{min(ord(char), 65533):04x}"
        for char in text[:LINE]
    ).encode("ascii")


def type_name(value: object) -> str:
    """The real name of a value's class, regardless of its metaclass."""
    return type.__dict__["__name__"].__get__(type(value))


def describe(error: BaseException) -> tuple[str, str]:
    """Class and message of an exception, bounded; "" where its message cannot be made."""
    name = "AssertionError" if isinstance(error, AssertionError) else type_name(error)
    try:
        return name[:100], str.__getitem__(str(error), slice(0, LINE))
    except BaseException:
        return name[:100], ""


def one_line(error: BaseException) -> bytes:
    """`Class: message`, as a text of a record."""
    name, message = describe(error)
    return plain_line(f"{name}: {message}" if message else name)


def prepare(path: list[str]) -> dict[str, Any]:
    """Make the interpreter look as if it had just started; the namespace of `__main__`."""
    # Done once, with the descriptors of a program in place.
    os.environ.clear()
    os.environ.update(ENVIRONMENT)
    sys.argv[:] = [FILE]
    sys.orig_argv[:] = ["python", FILE]
    sys.path[:] = path
    sys.executable = ""
    open_streams()
    threading.stack_size(THREAD_STACK)
    main = types.ModuleType("__main__")
    sys.modules["__main__"] = main
    main.__dict__["__builtins__"] = builtins
    main.__dict__["__file__"] = FILE
    for name in ("exit", "quit"):  # the site module's, which the box starts without
        setattr(builtins, name, _sitebuiltins.Quitter(name, "Ctrl-D (i.e. EOF)"))
    builtins.help = _sitebuiltins._Helper()
    return main.__dict__


def open_streams() -> None:
    """Standard input and output, on the current descriptors."""
    sys.stdin = sys.__stdin__ = _text(0, "r", "<stdin>")
    sys.stdout = sys.__stdout__ = _text(1, "w", "<stdout>")
    sys.stderr = sys.__stderr__ = _text(2, "w", "<stderr>")


def register_hooks() -> None:
    """Have `threading` and `random` repair themselves, for a box in which programs can fork."""
    os.register_at_fork(after_in_child=threading._after_fork)  # type: ignore[attr-defined]
    os.register_at_fork(after_in_child=random.seed)


def wake_up() -> None:
    """Set right what a fork leaves wrong in a copy of the interpreter."""
    _reseed(_random_source)
    _main_thread._native_id = getpid()  # type: ignore[attr-defined] - as the thread itself sets it


def _text(fd: int, mode: str, name: str) -> io.TextIOWrapper:
    # As in a fresh interpreter: no line end is translated.
    file = io.FileIO(fd, mode, closefd=False)
    file.name = name
    buffer = io.BufferedReader(file) if mode == "r" else io.BufferedWriter(file)
    errors = "backslashreplace" if fd == 2 else "strict"
    text = io.TextIOWrapper(buffer, "utf-8", errors, newline="\n", line_buffering=fd == 2)
    text.mode = mode  # type: ignore[attr-defined] - as `open` sets it
    return text


def compile_program(source: bytes) -> types.CodeType | None:
    """The code of a program; None, and a record, where it does not compile."""
    try:
        return compile(source, PROGRAM, "exec", dont_inherit=True)
    except BaseException as error:
        say(b"X", one_line(error))
        return None


def without_own_frame(error: BaseException) -> types.TracebackType | None:
    """The traceback from the program's first frame on, also in the exception itself."""
    trace = error.__traceback__
    if trace is not None:
        trace = trace.tb_next
        BaseException.with_traceback(error, trace)
    return trace


def report(error: BaseException) -> int:
    """Do what the interpreter does about an exception at the top; the exit code."""
    if isinstance(error, SystemExit):
        code = error.code
        if code is None:
            return 0
        if isinstance(code, int):
            return code & 0xFF if -(2**63) <= code < 2**63 else 255
        sys.stderr.write(f"{code}\n")
        return 1
    try:
        sys.excepthook(type(error), error, without_own_frame(error))
    except BaseException as second:
        sys.__excepthook__(type(second), second, second.__traceback__)
    return 1


def finish(code: int) -> None:
    """End as the interpreter ends: threads, exit functions, buffers."""
    try:
        if len(threading._active) > 1 or threading._threading_atexits:  # type: ignore[attr-defined]
            threading._shutdown()  # type: ignore[attr-defined] - what the interpreter itself calls
        atexit._run_exitfuncs()
    except BaseException as error:
        sys.__excepthook__(type(error), error, error.__traceback__)
    try:
        if sys.stdout is not None and not sys.stdout.closed:
            sys.stdout.flush()
    except BaseException as error:
        sys.__excepthook__(type(error), error, error.__traceback__)
        code = 120
    try:
        sys.stderr.flush()
    finally:
        os._exit(code)


def print_trace(error: BaseException) -> None:
    """Write the traceback to stderr; no error in it may escape."""
    try:
        sys.__excepthook__(type(error), error, without_own_frame(error))
        sys.__stderr__.flush()  # type: ignore[union-attr]
    except BaseException:
        return
