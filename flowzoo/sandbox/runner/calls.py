"""How a loaded program is called, by a job or in a session."""

from __future__ import annotations

import os
import resource
import types
from collections import Counter, OrderedDict, defaultdict
from collections.abc import Callable
from typing import Any

import codec
from changes import SharedArgument, describe_changes, join_shared
from inside import (
    HEARS,
    JOB,
    PEAK,
    describe,
    one_line,
    plain_line,
    print_trace,
    say,
)
from wire import EFFECT, RAISED, RECORD, RETURNED, UNPLAIN

_heard, _place = b"", 0
"""What has been read of the session's messages, and where the next one begins."""
_CONTENT = RECORD.size + 1
"""Bytes of a record before its content."""
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


def serve(found: Callable[..., Any], scope: dict[str, Any], most: int) -> None:
    """Answer calls as they come: see `wire` for the messages."""

    def make(name: str, args: tuple[Any, ...] | None, kwargs: dict[str, Any]) -> Any:
        if not name and args:
            return SharedArgument(args[0])
        if name not in scope:
            raise NameError(f"name '{name}' is not defined")
        return scope[name] if args is None else scope[name](*args, **kwargs)

    while True:
        message = hear()
        call = message[1:]
        args: tuple[Any, ...] = ()
        kwargs: dict[str, Any] = {}
        try:
            given = codec.decode(call, make)
            args, kwargs = (given, kwargs) if type(given) is tuple else given
            args = join_shared(args)
            result = found(*args, **kwargs)
            try:
                reply = RETURNED + codec.encode(result, most, DICTS)
            except codec.UnsupportedTypeError as error:
                truth = b"T" if result else b"F"
                reply = UNPLAIN + truth + str(error).encode("utf-8", "surrogatepass")
        except codec.EncodingTooLargeError:
            say(b"O")
            continue
        except BaseException as error:
            print_trace(error)
            reply = RAISED + codec.encode(describe(error))
        try:
            effect = message[:1] == EFFECT
            changes = describe_changes(call, args, kwargs, most) if effect else b""
        except codec.EncodingTooLargeError:
            say(b"O")
            continue
        say(b"Q", changes + reply if changes else reply)


def hear() -> bytes:
    """The next message of the session."""
    global _heard, _place
    while True:
        start = _place + _CONTENT
        if start <= len(_heard):
            end = start - 1 + RECORD.unpack_from(_heard, _place)[0]
            if end <= len(_heard):
                _place = end
                return _heard[start:end]
        part = os.read(HEARS, 1 << 16)
        if not part:
            os._exit(0)
        _heard, _place = _heard[_place:] + part, 0
