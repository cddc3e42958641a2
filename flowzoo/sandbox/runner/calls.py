"""Calls of a loaded program, in a job or a session."""

import os
import resource
import types
from collections import Counter, OrderedDict, defaultdict
from collections.abc import Callable
from typing import Any

import codec
import wire
from answers import KeptResults
from changes import SharedArgument, describe_changes, join_shared
from inside import HEARS, JOB, PEAK, describe, one_line, plain_line, print_trace, say

_heard, _place = b"", 0  # buffer of the messages of the session, and the offset of the next one
_CONTENT = wire.RECORD.size + 1  # bytes of a record before its content
# Types of the standard library that may be returned as a dict, since they compare equal.
DICTS = (dict, Counter, OrderedDict, defaultdict)


def find_entry(scope: dict[str, Any], entry: str) -> Callable[..., Any]:
    """Find the entry of calls: a name, or `Class.method` with a new instance per call."""
    first, _, rest = entry.partition(".")
    if first not in scope:
        raise NameError(f"name '{first}' is not defined")
    function = scope[first]
    if not rest:
        return function
    return lambda *args, **kwargs: getattr(function(), rest)(*args, **kwargs)


def load(code: types.CodeType, scope: dict[str, Any], entry: str) -> Callable[..., Any] | None:
    """Run the program and find its entry; send a record and return None on failure."""
    try:
        exec(code, scope)
        function = find_entry(scope, entry)
    except BaseException as error:
        print_trace(error)
        say(b"M" if isinstance(error, MemoryError) else b"E", one_line(error))
        return None
    say(b"L")
    return function


def answer_calls(function: Callable[..., object], places: list[tuple[int, int]], most: int) -> None:
    """Run the calls at these offsets of the job, and send their results."""
    for start, size in places:
        args, kwargs = codec.decode(os.pread(JOB, size, start))
        kind, content = b"R", b""
        try:
            content = codec.encode(function(*args, **kwargs), most, DICTS)
        except codec.EncodingTooLargeError:
            kind = b"O"
        except codec.UnsupportedTypeError as error:
            kind, content = b"U", plain_line(str(error))
        except BaseException as error:
            print_trace(error)
            kind, content = b"M" if isinstance(error, MemoryError) else b"E", one_line(error)
        say(kind, PEAK.pack(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss) + content)


def serve(function: Callable[..., Any], scope: dict[str, Any], most: int) -> None:
    """Answer the calls of a session; see `wire` for the messages."""

    def make(name: str, args: tuple[Any, ...] | None, kwargs: dict[str, Any]) -> Any:
        if not name and args:
            return SharedArgument(args[0])
        if name not in scope:
            raise NameError(f"name '{name}' is not defined")
        return scope[name] if args is None else scope[name](*args, **kwargs)

    results = KeptResults(most, DICTS)
    while True:
        message = hear()
        call = message[1:]
        args: tuple[Any, ...] = ()
        kwargs: dict[str, Any] = {}
        try:
            given = codec.decode(call, make)
            if type(given) is dict:
                reply = wire.RETURNED + results.encode_items(given)
            else:
                args, kwargs = (given, kwargs) if type(given) is tuple else given
                args = join_shared(args)
                reply = wire.RETURNED + results.encode(function(*args, **kwargs))
        except codec.EncodingTooLargeError:
            say(b"O")
            continue
        except BaseException as error:
            print_trace(error)
            reply = wire.RAISED + codec.encode(describe(error))
        try:
            effect = message[:1] == wire.EFFECT
            changes = describe_changes(call, args, kwargs, most) if effect else b""
        except codec.EncodingTooLargeError:
            say(b"O")
            continue
        say(b"Q", changes + reply if changes else reply)


def hear() -> bytes:
    """Receive the next message of the session."""
    global _heard, _place
    while True:
        start = _place + _CONTENT
        if start <= len(_heard):
            end = start - 1 + wire.RECORD.unpack_from(_heard, _place)[0]
            if end <= len(_heard):
                _place = end
                return _heard[start:end]
        part = os.read(HEARS, 1 << 16)
        if not part:
            os._exit(0)
        _heard, _place = _heard[_place:] + part, 0
