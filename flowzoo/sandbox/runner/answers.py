"""Answers to the calls of a test: made in the program's box, read in the test's."""

import builtins
import os
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

import codec
import wire
from changes import OpaqueResult, repeat_changes
from inside import describe, print_trace, say

# Exceptions that silently end a loop around the call (`map`, `zip`), and so a test.
CONTROL_FLOW = (StopIteration, StopAsyncIteration)

# A result that is no plain data stays with the program; it is sent as `codec.Remote("", (type's
# name, truth, number, is an iterator))`. The message of a call whose content is the dict `{number:
# serial}` asks for the next items of the iteration `serial` over that result; the answer is a list
# of encoded items and the end: None if more may follow, True, or class and message of an exception.
# The first answer has one item and later ones as many as were sent, so few are computed that the
# test does not use.
_MOST_ITEMS, _MOST_BYTES = 1024, 1 << 20  # in one answer
End = bool | tuple[str, str] | None


class KeptResults:
    """The program's side: its results that are no plain data."""

    def __init__(self, most: int, dicts: tuple[type[dict], ...]) -> None:
        self._most, self._dicts = most, dicts
        self._results: list[Any] = []
        # By number and serial: the iterator, and the number of items sent.
        self._iterations: dict[tuple[int, int], tuple[Iterator[Any], int]] = {}

    def encode(self, value: object) -> bytes:
        """Encode a result, or keep it and encode a reference to it."""
        try:
            return codec.encode(value, self._most, self._dicts)
        except codec.UnsupportedTypeError as error:
            parts = str(error), bool(value), len(self._results), hasattr(type(value), "__next__")
            self._results.append(value)
            return codec.encode(codec.Remote("", parts), self._most)

    def encode_items(self, request: dict[int, int]) -> bytes:
        """Encode the answer to a request for items."""
        [key] = request.items()
        if key not in self._iterations:
            self._iterations[key] = iter(self._results[key[0]]), 0
        iterator, sent = self._iterations[key]
        items: list[bytes] = []
        end: End = None
        while end is None and len(items) < min(max(1, sent), _MOST_ITEMS):
            try:
                items.append(self.encode(next(iterator)))
            except StopIteration:
                end = True
            except codec.EncodingTooLargeError:
                raise
            except BaseException as error:
                print_trace(error)
                end = describe(error)
            if sum(map(len, items)) > _MOST_BYTES:
                break
        self._iterations[key] = iterator, sent + len(items)
        return codec.encode((items, end))


Ask = Callable[[bytes], bytes]  # sends a message to the program and returns the answer


def read_answer(
    answer: bytes, call: bytes, args: tuple[Any, ...], kwargs: dict[str, Any], ask: Ask
) -> Any:
    """Read the result of a call with these arguments; a call for its effect changes them."""
    changes, answer = wire.split_changes(answer)
    if changes:
        try:
            if call[:1] != wire.EFFECT:
                raise ValueError("changes that were not requested")
            repeat_changes(changes, args, kwargs)
        except ValueError:
            give_up(wire.UNREADABLE)
    kind, content = answer[:1], answer[1:]

    def refer(name: str, parts: tuple[Any, ...] | None, kwargs: dict[str, Any]) -> Any:
        if name or kwargs or [*map(type, parts or ())] != [str, bool, int, bool]:
            raise ValueError("no reference to a result")
        result, truth, number, is_iterator = parts or ()
        if is_iterator:
            return read_items(number, 0, ask)
        return OpaqueResult(result, truth, lambda serial: read_items(number, serial, ask))

    try:
        value = codec.decode(content, refer)
    except ValueError:
        give_up(wire.UNREADABLE)
    if kind == wire.RETURNED:
        return value
    if kind != wire.RAISED or not is_raised(value):
        give_up(wire.UNREADABLE)
    raise error_of(*value)


def read_items(number: int, serial: int, ask: Ask) -> Iterator[Any]:
    """Yield the items of a result that the program keeps."""
    call, end = wire.CALL + codec.encode({number: serial}), None
    while end is None:
        value = read_answer(ask(call), call, (), {}, ask)
        if type(value) is not tuple or len(value) != 2 or type(value[0]) is not list:
            give_up(wire.UNREADABLE)
        items, end = value
        for item in items:
            if type(item) is not bytes:
                give_up(wire.UNREADABLE)
            yield read_answer(wire.RETURNED + item, call, (), {}, ask)
    if is_raised(end):
        raise error_of(*end)


def error_of(name: str, message: str) -> Exception:
    """The exception of the program as the test gets it."""
    cls = getattr(builtins, name, None)
    if isinstance(cls, type) and issubclass(cls, Exception) and cls not in CONTROL_FLOW:
        try:
            return cls(message)
        except TypeError:  # a class whose exceptions need more arguments than a message
            pass
    return RuntimeError(f"{name}: {message}")


def is_raised(value: object) -> bool:
    """True if a decoded value is a class name and a message."""
    return type(value) is tuple and len(value) == 2 and all(type(part) is str for part in value)


def give_up(why: bytes) -> NoReturn:
    """Report to the host why the test cannot continue, and end."""
    say(b"Q", why)
    os._exit(0)
