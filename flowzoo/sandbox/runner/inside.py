"""The process of a program, after it has been confined."""

import _io
import _random
import _sitebuiltins
import atexit
import builtins
import contextlib
import gc
import io
import os
import struct
import sys
import types
from os import getpid
from typing import Any

from wire import RECORD

# `threading` and `random` without their hooks after forks, which cost 0.6 ms and 160 pages. With a
# single thread in the parent, as here, only the seed and the thread's number must be repaired,
# which `wake_up` does.
_register = os.register_at_fork
os.register_at_fork = lambda **hooks: None
try:
    import random
    import threading
finally:
    os.register_at_fork = _register

# The process sends records `length: u32, kind: 1 byte, content` to the runner over one descriptor.
# Texts are the content of a JSON string in ASCII. Records are not trusted: a program can write them
# too, but can only fail that way, since it does not know the expected values.
#
# | kind | content | meaning |
# |---|---|---|
# | S | `START` | confined; later records may come from the program |
# | F | text | confining failed |
# | X | text | the source does not compile |
# | C | | it compiled and starts |
# | L | | (call, serve) it ran to its end, and the calls begin |
# | R | encoded value | a call returned; (check) the test ran to its end |
# | E, M, U, O | text | a call, or loading, raised; ran out of memory; unplain; too large |
# | Q | encoded | (serve) an answer; (check) a question |

# Process id, its id in /proc (0: unknown), CPU seconds used so far, wall-clock time.
START = struct.Struct("<IIdd")
# Peak memory as `ru_maxrss`, before the content of a call's result.
PEAK = struct.Struct("<Q")
# Descriptors: records to the runner, the job's blobs, messages of a session.
SAYS, JOB, HEARS = 3, 4, 5
PROGRAM = "<program>"
FILE = "program.py"  # path that a program sees as `__file__` and `sys.argv[0]`
# Names of the program's module: alone, and with an entry that is called, as if it were imported.
MAIN, IMPORTED = "__main__", "program"
LINE = 300
THREAD_STACK = 2 * 2**20
_reseed, _random_source = _random.Random.seed, random._inst
_main_thread = threading.main_thread()
# `C` is the only locale that needs no files; text is still UTF-8, by PYTHONUTF8.
ENVIRONMENT = {"HOME": "/tmp", "LANG": "C", "PATH": "/usr/bin:/bin"}


def say(kind: bytes, content: bytes = b"") -> None:
    """Send a record to the runner."""
    data = RECORD.pack(1 + len(content)) + kind + content
    while data:
        data = data[os.write(SAYS, data) :]


def plain_line(text: str) -> bytes:
    """The start of `text` as the content of a JSON string."""
    return "".join(
        char if " " <= char <= "~" and char not in '"\\' else f"\\u{min(ord(char), 65533):04x}"
        for char in text[:LINE]
    ).encode("ascii")


def type_name(value: object) -> str:
    """The actual name of a value's class, regardless of its metaclass."""
    return type.__dict__["__name__"].__get__(type(value))


def describe(error: BaseException) -> tuple[str, str]:
    """Class and bounded message of an exception; "" if the message raises."""
    name = "AssertionError" if isinstance(error, AssertionError) else type_name(error)
    try:
        return name[:100], str.__getitem__(str(error), slice(0, LINE))
    except BaseException:
        return name[:100], ""


def one_line(error: BaseException) -> bytes:
    """Format `Class: message` as the text of a record."""
    name, message = describe(error)
    return plain_line(f"{name}: {message}" if message else name)


def prepare(path: list[str]) -> None:
    """Reset the interpreter to its initial state."""
    # Called once, with a program's descriptors in place.
    sys.set_int_max_str_digits(0)  # judges have no limit of digits
    os.environ.clear()
    os.environ.update(ENVIRONMENT)
    sys.argv[:] = [FILE]
    sys.orig_argv[:] = ["python", FILE]
    sys.path[:] = path
    open_streams()
    threading.stack_size(THREAD_STACK)
    for name in ("exit", "quit"):  # from the site module, which is not loaded
        setattr(builtins, name, _sitebuiltins.Quitter(name, "Ctrl-D (i.e. EOF)"))
    builtins.help = _sitebuiltins._Helper()
    open_module(MAIN)  # in place of the runner's


def open_module(name: str) -> dict[str, Any]:
    """Make the module of a program; return its namespace."""
    module = sys.modules[name] = types.ModuleType(name)
    module.__dict__["__builtins__"] = builtins
    module.__dict__["__file__"] = FILE
    return module.__dict__


def open_streams() -> None:
    """Open standard input and output on the current descriptors."""
    sys.stdin = sys.__stdin__ = _text(0, "r", "<stdin>")
    sys.stdout = sys.__stdout__ = _text(1, "w", "<stdout>")
    sys.stderr = sys.__stderr__ = _text(2, "w", "<stderr>")


def register_hooks() -> None:
    """Register the fork hooks of `threading` and `random`, for a box in which programs can fork."""
    os.register_at_fork(after_in_child=threading._after_fork)  # type: ignore[attr-defined]
    os.register_at_fork(after_in_child=random.seed)


def wake_up() -> None:
    """Repair the interpreter's state after a fork."""
    _reseed(_random_source)
    _main_thread._native_id = getpid()  # type: ignore[attr-defined] - as the thread itself sets it


def _text(fd: int, mode: str, name: str) -> io.TextIOWrapper:
    # As in a fresh interpreter: line ends are not translated.
    file = io.FileIO(fd, mode, closefd=False)
    file.name = name
    buffer = io.BufferedReader(file) if mode == "r" else io.BufferedWriter(file)
    errors = "backslashreplace" if fd == 2 else "strict"
    text = io.TextIOWrapper(buffer, "utf-8", errors, newline="\n", line_buffering=fd == 2)
    text.mode = mode  # type: ignore[attr-defined] - as `open` sets it
    return text


def compile_program(source: bytes) -> types.CodeType | None:
    """Compile a program; send a record and return None on failure."""
    try:
        return compile(source, PROGRAM, "exec", dont_inherit=True)
    except BaseException as error:
        say(b"X", one_line(error))
        return None


def without_own_frame(error: BaseException) -> types.TracebackType | None:
    """The traceback from the program's first frame, also in the exception itself."""
    trace = error.__traceback__
    if trace is not None:
        trace = trace.tb_next
        BaseException.with_traceback(error, trace)
    return trace


def report(error: BaseException) -> int:
    """Handle an uncaught exception like the interpreter; return the exit code."""
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
    """End like the interpreter: threads, exit functions, buffers, objects, buffers."""
    try:
        if len(threading._active) > 1 or threading._threading_atexits:  # type: ignore[attr-defined]
            threading._shutdown()  # type: ignore[attr-defined] - what the interpreter itself calls
        atexit._run_exitfuncs()
    except BaseException as error:
        sys.__excepthook__(type(error), error, error.__traceback__)
    code = _flush(code)
    try:
        _delete_objects()
    finally:
        os._exit(_flush(code))


def _flush(code: int) -> int:
    try:
        if sys.stdout is not None and not sys.stdout.closed:
            sys.stdout.flush()
    except BaseException as error:
        sys.__excepthook__(type(error), error, error.__traceback__)
        code = 120
    with contextlib.suppress(BaseException):
        sys.stderr.flush()
    return code


def _delete_objects() -> None:
    # Only objects of the program are collected, since older ones are frozen. A file stays if an
    # older module or a thread has it.
    sys.stdin, sys.stdout, sys.stderr = sys.__stdin__, sys.__stdout__, sys.__stderr__
    if gc.isenabled():
        gc.collect(0)  # sorts objects, so a cycle with a file is flushed from outside to inside
    sys.modules.pop(MAIN, None)
    gc.collect(2 if gc.get_objects(2) else 1)  # a full collection also frees the free lists
    for item in gc.get_objects():
        if issubclass(type(item), _io._IOBase):
            with contextlib.suppress(BaseException):
                item.flush()


def print_trace(error: BaseException) -> None:
    """Write the traceback to stderr; errors are suppressed."""
    try:
        sys.__excepthook__(type(error), error, without_own_frame(error))
        sys.__stderr__.flush()  # type: ignore[union-attr]
    except BaseException:
        return
