"""How a loaded program is called, by a job or in a session; and how a test calls it."""

from __future__ import annotations

import builtins
import os
import resource
import types
from collections import Counter, OrderedDict, defaultdict
from collections.abc import Callable
from typing import Any

import codec
from inside import (
    HEARS,
    JOB,
    LENGTH,
    PEAK,
    compile_program,
    describe,
    one_line,
    plain_line,
    print_trace,
    say,
)

DICTS = (dict, Counter, OrderedDict, defaultdict)
"""What a program may return for a dict: the library's own, which equal one of the same items."""


def find_entry(scope: dict[str, Any], entry: str) -> Callable[..., Any]:
    """What calls call: a name, or `Class.method`, for which each call makes an instance."""
    first, _, rest = entry.partition(".")
    if first not in scope:
        raise NameError(f"name '{first}' is not defined")
    found = scope[first]
    if not rest:
        return found
    return lambda *args, **kwargs: getattr(found(), rest)(*args, **kwargs)


def load(code: types.CodeType, scope: dict[str, Any], entry: str) -> Callable[..., Any] | None:
    """Run the program and find its entry; None, and a record, where that fails."""
    try:
        exec(code, scope)
        found = find_entry(scope, entry)
    except BaseException as error:
        print_trace(error)
        say(b"M" if isinstance(error, MemoryError) else b"E", one_line(error))
        return None
    say(b"L")
    return found


def answer_calls(found: Callable[..., Any], places: list[tuple[int, int]], most: int) -> None:
    """Run the calls that lie at these places of the job, and say what each came to."""
    for start, size in places:
        args, kwargs = codec.decode(os.pread(JOB, size, start))
        kind, content = b"R", b""
        try:
            content = codec.encode(found(*args, **kwargs), most, DICTS)
        except codec.EncodingTooLargeError:
            kind = b"O"
        except codec.UnsupportedTypeError as error:
            kind, content = b"U", plain_line(str(error))
        except BaseException as error:
            print_trace(error)
            kind, content = b"M" if isinstance(error, MemoryError) else b"E", one_line(error)
        say(kind, PEAK.pack(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss) + content)


def serve(found: Callable[..., Any], most: int) -> None:
    """Answer calls as they come: see `wire` for the answers."""
    while True:
        args, kwargs = codec.decode(_hear())
        try:
            reply = codec.encode(("returned", found(*args, **kwargs)), most, DICTS)
        except codec.EncodingTooLargeError:
            say(b"O")
            continue
        except codec.UnsupportedTypeError as error:
            reply = codec.encode(("unplain", str(error)))
        except BaseException as error:
            print_trace(error)
            reply = codec.encode(("raised", *describe(error)))
        say(b"Q", reply)


def check(blobs: list[bytes], entry: str, scope: dict[str, Any]) -> None:
    """Run a test's setup, code and call, with proxies in the place of the program's entry."""
    setup, code, call = (compile_program(blob) for blob in blobs)
    if setup is None or code is None or call is None:
        return
    say(b"C")
    say(b"L")
    try:
        exec(setup, scope)
        scope["candidate"] = scope[entry.rpartition(".")[2]] = ask
        exec(code, scope)
        exec(call, scope)
    except BaseException as error:
        print_trace(error)
        say(b"M" if isinstance(error, MemoryError) else b"E", one_line(error))
    else:
        say(b"R")


def ask(*args: Any, **kwargs: Any) -> Any:
    """Call the program's entry in the other box; its builtin exceptions are raised here again.

    Raises:
        TypeError: an argument or the result is no plain data.
        RuntimeError: the program raised an exception of a class of its own.
    """
    try:
        question = codec.encode((args, kwargs))
    except codec.UnsupportedTypeError as error:
        raise TypeError(f"an argument is no plain data: {error}") from None
    say(b"Q", question)
    kind, *rest = codec.decode(_hear())
    if kind == "returned":
        return rest[0]
    if kind == "unplain":
        raise TypeError(f"the program returned {rest[0]}, which is no plain data")
    name, message = rest
    cls = getattr(builtins, name, None)
    if isinstance(cls, type) and issubclass(cls, Exception):
        try:
            error = cls(message)
        except TypeError:  # a class whose exceptions need more than a message
            error = RuntimeError(f"{name}: {message}")
        raise error
    raise RuntimeError(f"{name}: {message}")


def _hear() -> bytes:
    """The next message of the session."""
    (size,) = LENGTH.unpack(_read(LENGTH.size))
    return _read(size)


def _read(size: int) -> bytes:
    data = b""
    while len(data) < size:
        part = os.read(HEARS, min(size - len(data), 1 << 20))
        if not part:
            os._exit(0)
        data += part
    return data
