import math
import struct
import time
from array import array
from collections import Counter
from datetime import UTC, date, datetime, timedelta
from datetime import time as clock
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flowzoo.sandbox.runner.codec import (
    MOST_COLLISIONS,
    EncodingTooLargeError,
    UnsupportedTypeError,
    decode,
    encode,
)

KEYS = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text()
    | st.binary(),
    lambda inner: st.tuples(inner, inner) | st.frozensets(inner, max_size=3),
    max_leaves=4,
)
VALUES = st.recursive(
    KEYS | st.complex_numbers(allow_nan=False),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.tuples(inner, inner)
        | st.sets(KEYS, max_size=4)
        | st.dictionaries(KEYS, inner, max_size=4)
    ),
    max_leaves=20,
)


def shape(value: Any) -> Any:
    """Value and types, so that True is not 1 and a tuple no list."""
    if isinstance(value, (list, tuple)):
        return type(value), [shape(member) for member in value]
    if isinstance(value, dict):
        return dict, [(shape(key), shape(member)) for key, member in value.items()]
    if isinstance(value, (set, frozenset)):
        return type(value), sorted(repr(shape(member)) for member in value)
    return type(value), repr(value)


@settings(max_examples=60, deadline=None)
@given(VALUES)
def test_codec_round_trip_keeps_values_and_exact_types(value):
    assert shape(decode(encode(value))) == shape(value)


@pytest.mark.parametrize(
    "value",
    [
        0, -1, 127, -128, 128, 2**63 - 1, 2**63, -(2**63), -(2**63) - 1, -(2**64),
        [2**63 - 1, 2**63, True, -(2**63)], 0.0, -0.0, math.inf, -math.inf, 1e-320,
        complex(-0.0, 1), "", "\ud800 lone", "\0π\U0001f600", b"\0\xff", (), [[]],
        {(1, "a"): {2}, None: frozenset({b""})},
    ],
)  # fmt: skip
def test_codec_keeps_edge_values(value):
    assert shape(decode(encode(value))) == shape(value)


def test_codec_keeps_nan_and_ints_with_more_digits_than_python_prints():
    assert decode(encode(-(10**5000))) == -(10**5000)
    assert math.isnan(decode(encode([math.nan]))[0])


@pytest.mark.parametrize(
    "value",
    [
        range(3), range(9, 1, -2), range(10**30), array("d", [0.5]), array("i"), date(2020, 2, 29),
        datetime(2020, 1, 2, 3, tzinfo=UTC), clock(1, 2, 3, 4), timedelta(-3, 5), UTC,
        {1: 2}.keys(), {1: [2]}.items(), [range(2), (array("b", [1]),)],
    ],
    ids=repr,
)  # fmt: skip
def test_codec_keeps_values_of_the_library(value):
    found = decode(encode(value))
    assert (type(found), found) == (type(value), value)
    assert list(decode(encode({1: 2, 3: 4}.values()))) == [2, 4]


@pytest.mark.parametrize(
    "parts",
    [
        ("array", "i", range(10**12)), ("array", "i"), ("array", "x", [1]), ("date", 2020, 13, 1),
        ("date", b"abcd"), ("keys", [1]), ("items",), ("system", "true"), (["range"], 1), (),
        ("range", "3"), ("timedelta", 10**12), ("datetime", b"0123456789", 3), 7,
    ],
    ids=repr,
)  # fmt: skip
def test_codec_makes_no_other_values_from_arguments(parts):
    with pytest.raises(ValueError, match=r"."):
        decode(b"P" + encode(parts))


class Liar(int):
    def __eq__(self, other: object) -> bool:
        return True

    __hash__ = int.__hash__


class Named(type):
    @property
    def __name__(cls):  # type: ignore[override]
        return "int"


class Odd(metaclass=Named):
    pass


class Day(date):
    pass


def cycle() -> list:
    ring: list = []
    ring.append(ring)
    return ring


@pytest.mark.parametrize(
    ("value", "name"),
    [
        (Liar(3), "Liar"),
        (Counter("a"), "Counter"),
        ([1, (Liar(3),)], "Liar"),
        (Odd(), "Odd"),
        ((i for i in ()), "generator"),
        (iter([1]), "list_iterator"),
        (print, "builtin_function_or_method"),
        (memoryview(b"x"), "memoryview"),
        (Day(2020, 1, 2), "Day"),
        (NotImplemented, "NotImplementedType"),
        (cycle(), "nested"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_codec_refuses_what_is_not_plain(value, name):
    with pytest.raises(UnsupportedTypeError, match=name):
        encode(value)


def test_codec_bounds_size_before_memory():
    doubled: list = []
    for _ in range(49):
        doubled = [doubled, doubled]
    start = time.process_time()
    with pytest.raises(EncodingTooLargeError):
        encode(doubled, 10_000)
    with pytest.raises(EncodingTooLargeError):
        encode("x" * 101, 100)
    assert time.process_time() - start < 60  # of its 2**49 lists, no machine reaches the end
    assert encode("x" * 90, 100)


@settings(max_examples=150, deadline=None)
@given(
    st.binary(max_size=60)
    | st.builds(
        lambda size, rest: encode([1, "a", {2: b"x"}])[:size] + rest,
        st.integers(0, 30),
        st.binary(max_size=8),
    )
)
def test_codec_decode_of_anything_gives_a_value_or_value_error(data):
    try:
        value = decode(data)
    except ValueError:
        return
    assert shape(decode(encode(value))) == shape(value)


@pytest.mark.parametrize(
    "data",
    [
        b"", b"?", b"NN", b"L" + struct.pack("<I", 2**32 - 1), b"S" + struct.pack("<I", 9) + b"x",
        b"L\x01\0\0\0" * 60 + b"N", b"E\x01\0\0\0L\0\0\0\0", b"M\x01\0\0\0L\0\0\0\0N",
        b"S\x01\0\0\0\xff", b"D123",
    ],
)  # fmt: skip
def test_codec_refuses_broken_bytes(data):
    with pytest.raises(ValueError, match=r".+"):
        decode(data)


def test_codec_refuses_keys_made_to_collide_quickly():
    prime = 2**61 - 1
    clashing = set()  # built by tuple keys of equal hash would take the square of their number
    count = 100_000  # for each of the three below, the square takes more than a minute
    members = b"".join(encode(k * prime) for k in range(count))
    start = time.process_time()
    for tag in (b"E", b"Z"):
        with pytest.raises(ValueError, match="share one hash"):
            decode(tag + struct.pack("<I", count) + members)
    pairs = b"".join(encode(k * prime) + b"N" for k in range(count))
    with pytest.raises(ValueError, match="share one hash"):
        decode(b"M" + struct.pack("<I", count) + pairs)
    assert time.process_time() - start < 60
    clashing.update(k * prime for k in range(MOST_COLLISIONS))
    assert decode(encode(clashing)) == clashing
