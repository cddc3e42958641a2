"""Parts of the runner by themselves: values, messages, the filter of system calls, clocks."""

import errno
import itertools
import math
import os
import struct
import time
from array import array
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, date, datetime, timedelta
from datetime import time as clock
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flowzoo.sandbox.runner import seccomp
from flowzoo.sandbox.runner.codec import (
    MOST_COLLISIONS,
    EncodingTooLargeError,
    UnsupportedTypeError,
    decode,
    encode,
)
from flowzoo.sandbox.runner.delays import RunDelay
from flowzoo.sandbox.runner.seccomp import (
    AARCH64,
    ALLOWED,
    ATTRIBUTES,
    CHANGES,
    CONDITIONAL,
    MODES_AND_TIMES,
    X86_64,
)
from flowzoo.sandbox.runner.wire import MESSAGE, RECORD, find_messages, pack_messages

KEYS = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text()
    | st.binary(),
    lambda inner: st.tuples(inner, inner) | st.frozensets(inner, max_size=3),
    max_leaves=4,
)  # fmt: skip
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
    return type(value), value if isinstance(value, int) else repr(value)


@settings(max_examples=60, deadline=None)
@given(VALUES)
def test_codec_round_trip_keeps_values_and_exact_types(value):
    assert shape(decode(encode(value))) == shape(value)


@pytest.mark.parametrize(
    "value",
    [
        0, -1, 127, -128, 128, 2**63 - 1, 2**63, -(2**63), -(2**63) - 1, -(2**64), -(10**5000),
        [2**63 - 1, 2**63, True, -(2**63)], 0.0, -0.0, math.inf, -math.inf, 1e-320, [math.nan],
        complex(-0.0, 1), "", "\ud800 lone", "\0π\U0001f600", b"\0\xff", (), [[]],
        {(1, "a"): {2}, None: frozenset({b""})}, range(3), range(9, 1, -2), range(10**30),
        array("d", [0.5]), array("i"), date(2020, 2, 29), datetime(2020, 1, 2, 3, tzinfo=UTC),
        clock(1, 2, 3, 4), timedelta(-3, 5), UTC, {1: 2}.keys(), {1: [2]}.items(),
        {1: 2, 3: 4}.values(), [range(2), (array("b", [1]),)],
    ],
    ids=lambda value: type(value).__name__,
)  # fmt: skip
def test_codec_keeps_edge_values(value):
    assert shape(decode(encode(value))) == shape(value)


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
        (Liar(3), "Liar"), (Counter("a"), "Counter"), ([1, (Liar(3),)], "Liar"), (Odd(), "Odd"),
        ((i for i in ()), "generator"), (iter([1]), "list_iterator"), (memoryview(b"x"), "memory"),
        (print, "builtin_function_or_method"), (Day(2020, 1, 2), "Day"),
        (NotImplemented, "NotImplementedType"), (cycle(), "nested"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)  # fmt: skip
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


@settings(max_examples=60, deadline=None)
@given(st.lists(st.binary(max_size=9)), st.integers(0, 99))
def test_messages_are_found_where_they_were_packed(messages, cut):
    data = pack_messages(messages)
    assert [data[start:end] for start, end in find_messages(data, len(data))] == messages
    size = min(cut, len(data))
    whole = [data[start:end] for start, end in find_messages(data, size)]
    assert whole == messages[: len(whole)]
    assert len(pack_messages(whole)) <= size


@pytest.mark.parametrize("length", [0, 2**31, 2**32 - 1])
def test_messages_end_before_a_record_of_an_impossible_length(length):
    data = pack_messages([b"C1", b""]) + RECORD.pack(length) + MESSAGE + b"more"
    assert [data[start:end] for start, end in find_messages(data, len(data))] == [b"C1", b""]


def test_messages_end_before_a_record_of_another_kind():
    data = pack_messages([b"C1"]) + RECORD.pack(1) + b"L" + pack_messages([b"C2"])
    assert len(find_messages(data, len(data))) == 1


ALLOW, KILL, REFUSE = 0x7FFF0000, 0x80000000, 0x00050000
PID = 77
ARCH = {X86_64: 0xC000003E, AARCH64: 0xC00000B7}


def answer(
    steps: list[seccomp.BpfStep], arch: int, number: int, arguments: Sequence[int] = ()
) -> int:
    """Verdict of the filter on a call, by the rules of classic BPF."""
    data = struct.pack("<IIQ6Q", number, arch, 0, *arguments, *[0] * (6 - len(arguments)))
    value = index = 0
    while True:
        code, true, false, constant = steps[index]
        constant = PID if constant == seccomp.OWN_PID else constant
        index += 1
        if code == 0x20:
            (value,) = struct.unpack_from("<I", data, constant)
        elif code == 0x54:
            value &= constant
        elif code == 0x05:
            index += constant
        elif code == 0x06:
            return constant
        else:
            test = {0x15: value == constant, 0x35: value >= constant, 0x45: value & constant}[code]
            index += true if test else false


@pytest.mark.parametrize("keeps_files", [True, False])
@pytest.mark.parametrize("machine", [X86_64, AARCH64])
def test_the_filter_says_what_the_tables_say(machine, keeps_files):
    steps = seccomp.filter_steps(machine, keeps_files)
    assert len(steps) < 4096
    allowed = ALLOWED | CHANGES | MODES_AND_TIMES if keeps_files else ALLOWED
    expected = {numbers[machine]: ALLOW for numbers in allowed.values()}
    expected |= {numbers[machine]: REFUSE | errno.ENOTSUP for numbers in ATTRIBUTES.values()}
    conditional = {numbers[machine] for numbers in CONDITIONAL.values()}
    for number in set(range(1000)) - conditional:
        unlisted = REFUSE | (errno.ENOSYS if number >= 424 else errno.EPERM)
        assert answer(steps, ARCH[machine], number) == expected.get(number, unlisted), number
    assert answer(steps, ARCH[1 - machine], 0) == KILL
    if machine == X86_64:
        assert answer(steps, ARCH[machine], 0x40000000) == KILL


@pytest.mark.parametrize("machine", [X86_64, AARCH64])
@pytest.mark.parametrize(
    ("name", "allowed", "denied"),
    [
        ("kill", [(PID, 9)], [(1, 9)]),
        ("tgkill", [(PID, PID, 9)], [(PID + 1, PID, 9)]),
        ("prlimit64", [(0,), (PID,)], [(1,)]),
        ("clone", [(0x3D0F00,)], [(17,), (0x3D0F00 | 0x10000000,)]),
        ("fcntl", [(0, 4)], [(0, 1031)]),
        ("ioctl", [(0, 0x5401)], [(0, 0x5412)]),
        ("socketpair", [(1, 1)], [(2, 1), (1, 2)]),
        ("openat", [(0, 0, 0), (0, 0, 0o1002)], [(0, 0, 0o1000)]),
    ],
)
def test_calls_that_depend_on_their_arguments(machine, name, allowed, denied):
    steps = seccomp.filter_steps(machine, keeps_files=True)
    number = CONDITIONAL[name][machine]
    assert {answer(steps, ARCH[machine], number, row) for row in allowed} == {ALLOW}
    refusals = {answer(steps, ARCH[machine], number, row) for row in denied}
    assert refusals == {REFUSE | errno.EPERM}


def test_no_path_through_the_filter_is_long():
    """The kernel walks it for every number when it is installed: each program pays for that."""
    for machine, keeps_files in itertools.product((X86_64, AARCH64), (True, False)):
        runs = seccomp.syscall_runs(seccomp.syscall_answers(machine, keeps_files))
        assert len(seccomp.search_steps(runs)) < 320
        assert len(runs).bit_length() <= 8


Wait = Callable[[str, float], None]


@pytest.fixture
def proc(tmp_path: Path) -> Iterator[int]:
    descriptor = os.open(tmp_path, os.O_RDONLY | os.O_DIRECTORY)
    yield descriptor
    os.close(descriptor)


@pytest.fixture
def wait(tmp_path: Path) -> Wait:
    """`wait(thread, seconds)`: a thread has waited so long since its start."""

    def write(thread: str, seconds: float) -> None:
        folder = tmp_path / thread
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "schedstat").write_text(f"7 {round(seconds * 1e9)} 3\n")

    return write


def test_what_the_monitor_waited_before_a_program_does_not_count(proc, wait):
    wait("self", 100.0)
    wait("5/task/5", 0.0)
    delay = RunDelay(proc)
    delay.follow(5)
    assert delay.seconds() == 0.0
    wait("self", 100.25)
    wait("5/task/5", 2.0)
    assert delay.seconds() == pytest.approx(2.25)


def test_it_is_counted_anew_after_a_reset(proc, wait):
    wait("self", 1.0)
    delay = RunDelay(proc)
    delay.follow(5)
    wait("self", 3.0)
    wait("5/task/5", 4.0)
    delay.reset()
    assert delay.seconds() == 0.0
    wait("self", 3.5)
    wait("5/task/5", 5.0)
    assert delay.seconds() == pytest.approx(1.5)


def test_of_many_threads_the_one_that_waited_longest_counts(proc, wait):
    wait("self", 0.0)
    delay = RunDelay(proc)
    delay.follow(5)
    for thread in range(8):
        wait(f"5/task/{thread}", thread / 4)
    assert delay.seconds() == pytest.approx(1.75)


def test_it_is_none_without_statistics(proc, wait):
    nothing = RunDelay(None)
    nothing.follow(5)
    nothing.reset()
    unknown = RunDelay(proc)
    wait("self", 1.0)
    unknown.follow(0)
    ended = RunDelay(proc)
    ended.follow(5)
    assert [delay.seconds() for delay in (nothing, unknown, ended)] == [0.0, 0.0, 0.0]


def test_what_the_machine_kills_for_want_of_memory_is_told_from_other_ends(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(Path(seccomp.__file__).parent))
    from workspace import OomKills  # pyright: ignore[reportMissingImports]

    counter = tmp_path / "vmstat"
    counter.write_text("nr_free_pages 5\noom_kill 3\n")
    folder = os.open(tmp_path, os.O_RDONLY)
    kills = OomKills(("absent", "vmstat"), folder)
    os.close(folder)
    assert not kills.more()
    counter.write_text("nr_free_pages 5\noom_kill 4\n")
    assert kills.more()
    assert not kills.more()
    assert not OomKills(("absent",)).more()
