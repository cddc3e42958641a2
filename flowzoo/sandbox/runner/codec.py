"""Encoding of plain data of exact builtin types, for arguments and results.

`decode` returns only these types, so a program cannot send an object that compares equal to
everything. It is safe on hostile bytes: their number bounds time and memory.
"""

import builtins
import importlib
import struct
import sys
from collections import Counter, deque
from collections.abc import Callable
from typing import Any

DEEPEST = 50  # deepest nesting of containers
# Most keys with the same hash: colliding ints are easy to construct and take quadratic time.
MOST_COLLISIONS = 64

# A value is a tag byte and its content: `J` an int in 8 bytes, `I` a longer one, as a length and
# its bytes, both little endian in two's complement; `D` and `C`: one and two doubles; `S`, `B` and
# `V` (bytearray): a length and bytes; `L` list, `U` tuple, `E` set, `Z` frozenset, `K` deque, `M`
# dict: a count and the members; `N`, `T`, `F`: no content; `Q` Fraction: a tuple of two ints; `X`
# Decimal and `Y` builtin type: its text; `P` a value of `_ARGUMENTS` or a view of a dict: the tuple
# (name, what makes it); `O`: an object of the other side, by name or by a call of the name: the
# tuple (name, arguments or None, keywords).
_NAME = type.__dict__["__name__"].__get__  # the original, which no metaclass can replace
_LENGTH, _INT = struct.Struct("<I"), struct.Struct("<cI")
_SHORT_INT, _J = struct.Struct("<cq"), ord("J")
_LEAST_SHORT, _MOST_SHORT = -(2**63), 2**63 - 1
_DOUBLE = struct.Struct("<d")
_COMPLEX = struct.Struct("<dd")
_MOST = 2**32 - 1
_CONSTANTS = {b"N": None, b"T": True, b"F": False}
_SEQUENCES = {list: b"L", tuple: b"U", set: b"E", frozenset: b"Z", deque: b"K"}
_MAKERS: dict[bytes, Any] = {b"L": list, b"U": tuple, b"E": set, b"Z": frozenset, b"K": deque}
# Builtin types that can be values.
TYPES = frozenset(
    (bool, bytes, complex, dict, float, frozenset, int, list, object, set, str, tuple, type(None))
)
_TYPES = {cls.__name__: cls for cls in TYPES}
# Module of each type whose values are sent as arguments that make them, and methods for views.
_ARGUMENTS = {
    "range": "builtins", "array": "array", "date": "datetime", "datetime": "datetime",
    "time": "datetime", "timedelta": "datetime", "timezone": "datetime",
}  # fmt: skip
_VIEWS: dict[type, tuple[str, Callable[[Any], dict[Any, Any]]]] = {
    type({}.keys()): ("keys", dict.fromkeys),
    type({}.values()): ("values", lambda view: dict(enumerate(view))),
    type({}.items()): ("items", dict),
}
# Most bits of a Fraction's parts and characters of a Decimal: their arithmetic is quadratic.
LONGEST_FRACTION, LONGEST_DECIMAL = 32_768, 400

# Function that returns the object of a name, or the result of calling it.
Make = Callable[[str, "tuple[Any, ...] | None", "dict[str, Any]"], Any]


class Remote:
    """Reference to an object of the other side: the value of a name, or of a call of it."""

    def __init__(
        self,
        name: str,
        args: tuple[object, ...] | None = None,
        kwargs: dict[str, Any] | None = None,
    ) -> None:
        self._flowzoo_parts = name, args, kwargs or {}

    def __call__(self, *args: object, **kwargs: object) -> "Remote":
        """Reference to the result of a call."""
        name, given, _ = self._flowzoo_parts
        if given is not None:
            raise TypeError(f"only {name} itself can be called from here, not what it made")
        return Remote(name, args, kwargs)


class UnsupportedTypeError(Exception):
    """The value is not plain data; the message is the name of the unsupported type."""


class EncodingTooLargeError(Exception):
    """The encoded value has more bytes than allowed."""


def encode(value: object, most: int = _MOST, dicts: tuple[type[dict], ...] = (dict,)) -> bytes:
    """Encode a plain value in at most `most` bytes."""
    # Subclasses, generators and cycles are rejected; a namedtuple becomes a tuple, and aliases
    # become copies.
    out = bytearray()
    _put(out, value, 0, most, dicts)
    if len(out) > most:
        raise EncodingTooLargeError
    return bytes(out)


def decode(data: bytes | memoryview, make: Make | None = None) -> Any:
    """Decode `data`."""
    try:
        value, offset = _take(bytes(data), 0, 0, make)
    except ValueError:
        raise
    except (struct.error, IndexError, KeyError, TypeError, ArithmeticError) as error:
        raise ValueError(f"no encoded value: {type(error).__name__}") from None
    if offset != len(data):
        raise ValueError(f"{len(data) - offset} bytes after the value")
    return value


def _put(out: bytearray, value: Any, depth: int, most: int, dicts: tuple[type, ...]) -> None:
    if len(out) > most:
        raise EncodingTooLargeError
    kind = type(value)
    if kind is int and _LEAST_SHORT <= value <= _MOST_SHORT:
        out += _SHORT_INT.pack(b"J", value)
    elif kind is int:
        size = value.bit_length() // 8 + 1
        out += _INT.pack(b"I", size) + value.to_bytes(size, "little", signed=True)
    elif value is None or kind is bool:
        out += b"N" if value is None else b"T" if value else b"F"
    elif kind is str:
        _put_bytes(out, b"S", value.encode("utf-8", "surrogatepass"), most)
    elif kind is float:
        out += b"D" + _DOUBLE.pack(value)
    elif kind is bytes or kind is bytearray:
        _put_bytes(out, b"B" if kind is bytes else b"V", value, most)
    elif kind is complex:
        out += b"C" + _COMPLEX.pack(value.real, value.imag)
    elif kind is type and value in TYPES:
        _put_bytes(out, b"Y", _NAME(value).encode(), most)
    elif depth >= DEEPEST:
        raise UnsupportedTypeError(f"{kind.__name__} nested more than {DEEPEST} deep")
    elif kind in _SEQUENCES:
        out += _SEQUENCES[kind] + _LENGTH.pack(len(value))
        for member in value:
            if type(member) is int and _LEAST_SHORT <= member <= _MOST_SHORT and len(out) <= most:
                out += _SHORT_INT.pack(b"J", member)  # inlined from `_put`, in half the time
            else:
                _put(out, member, depth + 1, most, dicts)
    elif kind in dicts:
        out += b"M" + _LENGTH.pack(dict.__len__(value))
        for key, member in dict.items(value):
            _put(out, key, depth + 1, most, dicts)
            _put(out, member, depth + 1, most, dicts)
    elif kind is Remote:
        out += b"O"
        _put(out, value._flowzoo_parts, depth + 1, most, dicts)
    else:
        _put_number(out, value, depth, most, dicts)


def _put_number(out: bytearray, value: Any, depth: int, most: int, dicts: tuple[type, ...]) -> None:
    kind = type(value)
    if kind is _class("fractions", "Fraction"):
        parts = value.numerator, value.denominator
        if all(type(part) is int and part.bit_length() <= LONGEST_FRACTION for part in parts):
            out += b"Q"
            _put(out, parts, depth + 1, most, dicts)
            return
    elif kind is _class("decimal", "Decimal"):
        text = str(value).encode("utf-8", "replace")
        if len(text) <= LONGEST_DECIMAL:
            _put_bytes(out, b"X", text, most)
            return
    elif tuple in type.__dict__["__mro__"].__get__(kind) and hasattr(kind, "_fields"):
        _put(out, tuple(tuple.__iter__(value)), depth, most, dicts)
        return
    else:
        parts = _parts_of(value)
        if parts is not None:
            out += b"P"
            _put(out, parts, depth + 1, most, dicts)
            return
    raise UnsupportedTypeError(_NAME(kind))


def _parts_of(value: object) -> tuple[Any, ...] | None:
    kind = type(value)
    if kind in _VIEWS:
        name, to_dict = _VIEWS[kind]
        return name, to_dict(value)
    name = _NAME(kind)
    if name in _ARGUMENTS and kind is _class(_ARGUMENTS[name], name):
        return name, *kind.__reduce_ex__(value, 2)[1]
    return None


def _class(module: str, name: str) -> Any:
    return getattr(sys.modules.get(module), name, builtins)


def _put_bytes(out: bytearray, tag: bytes, content: bytes, most: int) -> None:
    if len(content) > most:
        raise EncodingTooLargeError
    out += tag + _LENGTH.pack(len(content)) + content


def _take(data: bytes, offset: int, depth: int, make: Make | None) -> tuple[Any, int]:
    if data[offset] == _J:  # inlined below
        return _SHORT_INT.unpack_from(data, offset)[1], offset + 9
    tag = data[offset : offset + 1]
    offset += 1
    if tag in _CONSTANTS:
        return _CONSTANTS[tag], offset
    if tag == b"D":
        return _DOUBLE.unpack_from(data, offset)[0], offset + 8
    if tag == b"C":
        return complex(*_COMPLEX.unpack_from(data, offset)), offset + 16
    if tag in (b"Q", b"P", b"O"):
        if depth >= DEEPEST:
            raise ValueError(f"nested more than {DEEPEST} deep")
        parts, offset = _take(data, offset, depth + 1, make)
        if tag == b"O":
            return _remote(make, *parts), offset
        return (_fraction if tag == b"Q" else _from_parts)(*parts), offset
    (size,) = _LENGTH.unpack_from(data, offset)
    offset += 4
    if size > len(data) - offset:  # also for containers, whose members have at least one byte
        raise ValueError(f"a length of {size} with {len(data) - offset} bytes left")
    if tag in (b"S", b"B", b"I", b"V", b"X", b"Y"):
        return _scalar(tag, data[offset : offset + size]), offset + size
    if depth >= DEEPEST:
        raise ValueError(f"nested more than {DEEPEST} deep")
    if tag == b"M":
        return _take_dict(data, offset, size, depth, make)
    members = []
    for _ in range(size):
        if data[offset] == _J:
            member, offset = _SHORT_INT.unpack_from(data, offset)[1], offset + 9
        else:
            member, offset = _take(data, offset, depth + 1, make)
        members.append(member)
    if tag in (b"E", b"Z"):
        _check_keys(members)
    return _MAKERS[tag](members), offset


def _take_dict(
    data: bytes, offset: int, size: int, depth: int, make: Make | None
) -> tuple[dict, int]:
    keys, values = [], []
    for _ in range(size):
        key, offset = _take(data, offset, depth + 1, make)
        value, offset = _take(data, offset, depth + 1, make)
        keys.append(key)
        values.append(value)
    _check_keys(keys)
    return dict(zip(keys, values, strict=True)), offset


def _scalar(tag: bytes, content: bytes) -> Any:
    if tag == b"Y":
        return _TYPES[content.decode("ascii")]
    if tag == b"X":
        return _decimal(content)
    if tag == b"I":
        return int.from_bytes(content, "little", signed=True)
    if tag == b"V":
        return bytearray(content)
    return content.decode("utf-8", "surrogatepass") if tag == b"S" else content


def _fraction(numerator: Any, denominator: Any) -> Any:
    from fractions import Fraction

    parts = numerator, denominator
    if not all(type(part) is int and part.bit_length() <= LONGEST_FRACTION for part in parts):
        raise ValueError("a fraction of other things than two ints, or of long ones")
    return Fraction(numerator, denominator)


def _decimal(content: bytes) -> Any:
    from decimal import Decimal

    if len(content) > LONGEST_DECIMAL:
        raise ValueError(f"a decimal of {len(content)} characters")
    value = Decimal(content.decode("ascii"))
    if value.is_snan():
        raise ValueError("a decimal that signals at each use")
    return value


def _from_parts(name: Any, *parts: Any) -> Any:
    if name in ("keys", "values", "items"):
        return getattr(dict, name)(*parts)
    if name == "array" and type(parts[-1]) is not list:
        raise ValueError("an array of something other than a list")
    return getattr(importlib.import_module(_ARGUMENTS[name]), name)(*parts)


def _remote(make: Make | None, name: Any, args: Any, kwargs: Any) -> Any:
    if make is None or type(name) is not str or type(kwargs) is not dict:
        raise ValueError("a name of the other side, where there is none")
    return make(name, args, kwargs)


def _check_keys(keys: list) -> None:
    # Building a set or dict of such keys would take quadratic time.
    if len(keys) > MOST_COLLISIONS and max(Counter(map(hash, keys)).values()) > MOST_COLLISIONS:
        raise ValueError(f"more than {MOST_COLLISIONS} keys share one hash")
