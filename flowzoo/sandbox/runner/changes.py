"""Changes of arguments in place: detected in the program's box, repeated in the test's."""

import types
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from opcode import opmap
from typing import Any

import codec
from wire import CHANGED, LENGTH

# The program gets copies, so a test would never see `a.sort()`. If a test makes a call only for its
# effect, as a statement or as `f(a) is None`, the arguments are encoded again after the call.
# Changes precede the answer: a list of (position or keyword, is plain data, value or name of the
# type). The test's side replaces the whole content of the test's object. One object as several
# arguments is also one object in the program. An argument with objects of the program's classes, of
# which the test only has the names, is unchanged. A test that uses the result sees unchanged
# arguments: otherwise a program could change the operand of a comparison (`assert f(row) ==
# sorted(row)`).
CHANGEABLE = frozenset((list, dict, set, bytearray, deque))
_MAY_HOLD = CHANGEABLE | {tuple}
# Instructions that only compare a call's result with None.
_USELESS = frozenset(
    number
    for name, number in opmap.items()
    if name == "POP_TOP" or (name.startswith("POP_JUMP") and name.endswith("_NONE"))
)
_CACHE = 0  # occurs between an instruction and the next one
# By the code's id and the offset of the call; the code is kept, so its id is not reused.
_known: dict[tuple[int, int], tuple[types.CodeType, bool]] = {}
Change = tuple[int | str, bool, Any]


def is_for_effect(args: tuple[object, ...], kwargs: dict[str, Any], frame: types.FrameType) -> bool:
    """True if a call in `frame` can change arguments and its result is not used."""
    if _MAY_HOLD.isdisjoint(map(type, args)) and _MAY_HOLD.isdisjoint(map(type, kwargs.values())):
        return False
    key = id(frame.f_code), frame.f_lasti
    if key not in _known:
        steps, index = frame.f_code.co_code, frame.f_lasti + 2
        while index < len(steps) and steps[index] == _CACHE:
            index += 2
        _known[key] = frame.f_code, index < len(steps) and steps[index] in _USELESS
    return _known[key][1]


class SharedArgument:
    """Placeholder for an argument that is the same object as an earlier one."""

    def __init__(self, index: int) -> None:
        self.place = index


def mark_shared(args: tuple[object, ...]) -> tuple[Any, ...]:
    """Replace repeated arguments by their earlier position, for sending."""
    ids = [id(arg) for arg in args if type(arg) in CHANGEABLE]
    if len(ids) == len(set(ids)):
        return args
    first: dict[int, int] = {}
    return tuple(
        codec.Remote("", (first[id(arg)],))
        if type(arg) in CHANGEABLE and first.setdefault(id(arg), index) != index
        else arg
        for index, arg in enumerate(args)
    )


def join_shared(args: tuple[object, ...]) -> tuple[Any, ...]:
    """Restore repeated arguments for the program."""
    if not any(type(arg) is SharedArgument for arg in args):
        return args
    return tuple(args[arg.place] if type(arg) is SharedArgument else arg for arg in args)


def describe_changes(
    call: bytes, args: tuple[object, ...], kwargs: dict[str, Any], most: int
) -> bytes:
    """Prefix of the answer to a call; empty if no argument was changed."""
    try:
        if codec.encode([args, kwargs] if kwargs else args, max(most, len(call))) == call:
            return b""
    except codec.UnsupportedTypeError:  # an argument is or contains an object of the program
        pass
    sent = codec.decode(call, codec.Remote)
    old_args, old_kwargs = (sent, {}) if type(sent) is tuple else sent
    changes: list[Change] = []
    pairs = [*enumerate(zip(old_args, args, strict=True))]
    for index, (old, new) in [*pairs, *((key, (old_kwargs[key], kwargs[key])) for key in kwargs)]:
        if type(new) not in _MAY_HOLD or _holds_names(old):
            continue
        try:
            content = codec.encode(new, most)
        except codec.UnsupportedTypeError as error:
            changes.append((index, False, str(error)))
        else:
            if content != codec.encode(old):
                changes.append((index, True, codec.decode(content)))
    if not changes:
        return b""
    content = codec.encode(changes, most)
    return CHANGED + LENGTH.pack(len(content)) + content


def _holds_names(value: Any) -> bool:
    if type(value) is dict:
        return any(map(_holds_names, value)) or any(map(_holds_names, value.values()))
    if type(value) in _MAY_HOLD or type(value) is frozenset:
        return type(value) is not bytearray and any(map(_holds_names, value))
    return type(value) is codec.Remote


def repeat_changes(content: bytes, args: Sequence[object], kwargs: Mapping[str, object]) -> None:
    """Repeat the program's changes on the test's objects."""
    changes = codec.decode(content)
    if type(changes) is not list:
        raise ValueError("no list of changes")
    for change in changes:
        if type(change) is not tuple or len(change) != 3:
            raise ValueError("no change")
        index, plain, value = change
        if type(index) is int and 0 <= index < len(args):
            old = args[index]
        elif type(index) is str and index in kwargs:
            old = kwargs[index]
        else:
            raise ValueError("a change of no argument")
        _replace(old, value) if plain is True else _spoil(old, str(value)[:100])


def _replace(old: Any, new: Any) -> None:
    kind = tuple if isinstance(old, tuple) else type(old)
    if kind is not type(new) or kind not in _MAY_HOLD:
        raise ValueError("an argument has become one of another type")
    if kind is tuple:
        if len(old) != len(new):
            raise ValueError("a tuple of another length")
        for item, other in zip(old, new, strict=True):
            if type(item) in _MAY_HOLD:
                _replace(item, other)
    elif kind is list or kind is bytearray:
        old[:] = new
    else:
        old.clear()
        old.extend(new) if kind is deque else old.update(new)


def _spoil(old: Any, name: str) -> None:
    # Values other than plain data equal no expected value.
    if isinstance(old, tuple):
        for item in old:
            _spoil(item, name)
    elif type(old) is dict:
        old.clear()
        old[OpaqueResult(name, True)] = None
    elif type(old) in CHANGEABLE:
        old.clear()
        if type(old) is set:
            old.add(OpaqueResult(name, True))
        elif type(old) is not bytearray:
            old.append(OpaqueResult(name, True))


class OpaqueResult:
    """A result that is not plain data: it has a truth value and items, and equals nothing."""

    def __init__(
        self, name: str, truth: bool, iterate: Callable[[int], Iterator[object]] | None = None
    ) -> None:
        self._name, self._truth = name, truth
        self._iterate, self._serial = iterate, 0  # the number of iterations so far

    def __bool__(self) -> bool:
        return self._truth

    def __iter__(self) -> Iterator[Any]:
        if self._iterate is None:
            raise TypeError(f"{self._name} is no plain data")
        self._serial += 1
        return self._iterate(self._serial)

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"the program returned {self._name}, which is no plain data")
