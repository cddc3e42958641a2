"""From what a box reports to verdicts: comparison of texts and values, ends, what is shown."""

import copy
import math
import time
from collections import deque
from decimal import Decimal
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowzoo.sandbox import Case, StdinTest
from flowzoo.sandbox.compare import text_matches, values_match
from flowzoo.sandbox.judge import (
    CaseOutcome,
    judge_checker,
    judge_stdin,
    last_line,
    one_line,
    read_outcome,
    settle,
    show_text,
    show_value,
)
from flowzoo.sandbox.program import EXACT, TOKENS, Compare
from flowzoo.sandbox.runner.wire import CASE, Frame, FrameError
from tests.tables import read_tables

NUMBER = Compare("number", 1e-6, 1e-6)
LISTS = Compare("exact", tuples_as_lists=True)
NAN = float("nan")
RULES = {"exact": EXACT, "tokens": TOKENS, "number": NUMBER}


def rows(name: str) -> list[tuple[Any, Any, Compare, bool]]:
    """Rows of a file of tables: what came, what was expected, by which rule, whether it matches."""
    tables = read_tables(__file__, name)
    return [(*row[:2], RULES[rule], row[2]) for rule, found in tables.items() for row in found]


@pytest.mark.parametrize(
    ("output", "expected", "rule", "same"),
    [
        *rows("texts"),
        (b"\xff", "\ufffd", TOKENS, False),
        (b"\xff", "\udcff", EXACT, False),
        ("\udcff", "\udcff", EXACT, False),
        ("\ud800", "\ud800", NUMBER, False),
        ("9" * 5000, "9" * 4999 + "8", NUMBER, False),
        ("+" + "9" * 5000, "9" * 5000, NUMBER, True),
        ("0" * 5000 + "9", "9", NUMBER, False),
    ],
)
def test_one_row(output, expected, rule, same):
    assert text_matches(output, expected, rule) is same


INTEGERS = [sign * (2**53 + step * 10**power + odd) for sign in (1, -1) for step in (0, 1, 7)
            for power in (15, 18, 25) for odd in (0, 1, 3)]  # fmt: skip
SPELLINGS = [
    str, "{}.0".format, "{:+d}".format, lambda n: repr(float(n)), lambda n: f"{float(n):.1f}",
    lambda n: f"{float(n):e}", lambda n: f"{Decimal(n):E}", lambda n: f"{n + 1}.0",
]  # fmt: skip


@pytest.mark.parametrize("spell", SPELLINGS, ids=range(len(SPELLINGS)))
def test_whole_numbers_are_exact_beyond_the_doubles(spell):
    outputs = [*map(spell, INTEGERS)]
    right = [Fraction(output) == number for output, number in zip(outputs, INTEGERS, strict=True)]
    for number, output, same in zip(INTEGERS, outputs, right, strict=True):
        assert text_matches(output, str(number), NUMBER) == same
        assert values_match(Decimal(output), number, NUMBER) == same
        rounded = float(output)
        assert values_match(rounded, number, NUMBER) == (int(rounded) == number)


def test_a_leading_zero_makes_a_word():
    words = [f"{sign}{number:0{width}d}" for sign in ("", "-") for number in (0, 7, 10, 256)
             for width in (5, 6, 9)] + ["00.5", "-007.10", "01e3", "0000"]  # fmt: skip
    numbers = [repr(float(word)) for word in words] + [str(int(float(word))) for word in words]
    for output, word in zip(numbers, words * 2, strict=True):
        assert text_matches(word, word, NUMBER)
        assert not text_matches(output, word, NUMBER)
        assert not text_matches(word, output, NUMBER)


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_a_number_is_read_as_python_reads_it(value):
    """With no tolerance at all, another spelling of the same double is equal, its neighbor not."""
    none = Compare("number", 0.0, 0.0)
    assert text_matches(f"{value:.17e}", repr(value), none)
    neighbor = repr(math.nextafter(value, math.inf))
    assert not text_matches(neighbor, repr(value), none) or abs(value) > 1.7e308


@pytest.mark.parametrize("digit", ["1x", "0.5", "0e9x"])
def test_hostile_tokens_take_no_quadratic_time(digit):
    junk = digit[0] * 500_000 + digit[1:]
    start = time.process_time()
    for _ in range(5):
        text_matches(junk, "7.25", NUMBER)
    assert time.process_time() - start < 60  # where the square takes many minutes


@pytest.mark.parametrize(
    ("value", "expected", "rule", "same"),
    [
        *rows("values"),
        (complex(NAN, 1), complex(NAN, 1), EXACT, True),
        (complex(NAN, 1), complex(NAN, 2), EXACT, False),
        ((1, 2), (1, 2), EXACT, True),
        ((1, 2), [1, 2], EXACT, False),
        ([1, (2, [3])], [1, [2, [3]]], EXACT, False),
        ([1, (2, [3])], [1, [2, [3]]], LISTS, True),
        ([1, [2]], (1, (2,)), LISTS, True),
        ({1: (2,)}, {1: [2]}, LISTS, True),
        ({1, 2}, {2, 1}, EXACT, True),
        ({1}, {True}, EXACT, False),
        ({1}, {1.0}, EXACT, False),
        ({(1, True)}, {(1, 1)}, EXACT, False),
        ({NAN}, {float("nan")}, EXACT, True),
        ({1}, frozenset({1}), EXACT, False),
        (frozenset({1}), frozenset({1}), EXACT, True),
        ({1: "x"}, {True: "x"}, EXACT, False),
        ({"a": None}, {}, EXACT, False),
        (b"1", "1", EXACT, False),
        ("\udcff", "\udcff", TOKENS, True),
        (None, None, EXACT, True),
        (None, False, EXACT, False),
        (Fraction(1, 2), 0.5, NUMBER, True),
        (Fraction(1, 2), Fraction(1, 2), EXACT, True),
        (Fraction(1, 2), 0.5, EXACT, False),
        (Fraction(10**9), 10**9 + 1, NUMBER, False),
        (Decimal("0.5"), 0.5, NUMBER, True),
        (Decimal("3"), 3, NUMBER, True),
        (Decimal("3.1"), 3, NUMBER, False),
        (Decimal("0.1"), Decimal("0.10"), EXACT, True),
        (Decimal("NaN"), 1.0, NUMBER, False),
        (Decimal("1e9999"), 10**9, NUMBER, False),
        (deque([1, 2]), deque([1, 2]), EXACT, True),
        (deque([1, 2]), [1, 2], EXACT, False),
        (deque([1, 2]), deque([2, 1]), EXACT, False),
        (int, int, EXACT, True),
        (int, str, EXACT, False),
        (10**400, 1.0, NUMBER, False),
        (1 + 1e-9j, 1 + 0j, NUMBER, True),
        (1.0, 1 + 0j, NUMBER, False),
        ([(1.0, "x")], [(1.0000000001, "x")], NUMBER, True),
        ({1.0000000001, 2.0}, {2.0, 1.0}, NUMBER, True),
        ({1.1, 2.0}, {2.0, 1.0}, NUMBER, False),
        ({"a", 2.0}, {2.0, "a"}, NUMBER, True),
    ],
)
def test_one_value(value, expected, rule, same):
    assert values_match(value, expected, rule) is same


plain = st.recursive(
    st.one_of(
        st.none(), st.booleans(), st.integers(), st.floats(), st.complex_numbers(),
        st.text(max_size=3), st.binary(max_size=3),
        st.frozensets(st.one_of(st.integers(0, 2), st.booleans(), st.floats()), max_size=3),
        st.sets(st.integers(), max_size=3),
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.lists(inner, max_size=3).map(tuple),
        st.dictionaries(st.one_of(st.integers(), st.text(max_size=2)), inner, max_size=3),
    ),
    max_leaves=8,
)  # fmt: skip
rules = st.sampled_from([EXACT, TOKENS, NUMBER, LISTS])


@given(plain, rules)
def test_a_value_matches_its_copy(value, rule):
    assert values_match(copy.deepcopy(value), value, rule)


@given(plain, plain, rules)
def test_the_rules_are_symmetric_and_exact_is_the_strictest(value, other, rule):
    # Tolerances are relative to the expected value; at this size both directions agree but for
    # values at the very edge, which independent draws do not hit.
    assert values_match(value, other, rule) == values_match(other, value, rule)
    if values_match(value, other, EXACT):
        assert values_match(value, other, rule)


@given(plain)
def test_exact_agrees_with_repr_on_what_differs(value):
    """Another type somewhere inside is never equal: wrap the value and change the wrapper."""
    assert not values_match((value,), [value], EXACT)
    assert not values_match([value, 1], [value, True], EXACT)
    assert not values_match({0: value}, {0: [value]}, EXACT)


def outcome(name: Any, output: bytes = b"", stderr: bytes = b"", **more: Any) -> CaseOutcome:
    fields = {"code": 0, "signal": 0, "detail": "", "cpu_s": 0.1, "wall_s": 0.2, "memory": 2**21}
    return CaseOutcome(name=name, output=output, stderr=stderr, **{**fields, **more})


def test_invalid_bytes_never_match_by_replacement():
    case = judge_stdin(outcome("exited", b"\xff"), StdinTest("", "\ufffd"))
    assert case.status == "WA"
    assert case.stdout == "\ufffd"


@pytest.mark.parametrize(
    ("checker", "raised", "status"),
    [
        (outcome("returned"), "", "AC"),
        (outcome("exited"), "", "SE"),
        (outcome("raised", detail="AssertionError: x"), "", "WA"),
        (outcome("raised", detail="AssertionError: x"), "AssertionError", "WA"),
        (outcome("raised", detail="KeyError: x"), "KeyError", "RE"),
        (outcome("raised", detail="TypeError: None"), "", "WA"),
        (outcome("raised", detail="ModuleNotFoundError: No module named 'numpy'"), "", "SE"),
        (outcome("raised", detail="ModuleNotFoundError: x"), "ModuleNotFoundError", "RE"),
        (outcome("compile", detail="SyntaxError"), "", "SE"),
        (outcome("cpu"), "", "SE"),
        (outcome("memory"), "", "SE"),
    ],
)
def test_ends_of_a_check(checker, raised, status):
    assert judge_checker(checker, {raised}, answered=False).status == status


def test_a_limit_upon_an_answer_is_no_failure_of_the_sandbox():
    assert judge_checker(outcome("cpu"), set(), answered=True).status == "TLE"
    assert judge_checker(outcome("memory"), set(), answered=True).status == "MLE"


def test_the_first_failing_case_gives_the_status():
    cases = [Case("AC"), Case("TLE"), Case("AC"), Case("WA")]
    verdict = settle(cases, 5, "docker", stop=False, facts={})
    assert (verdict.status, verdict.passed, verdict.fraction, verdict.total) == ("TLE", 2, 0.4, 5)
    assert settle(cases, 5, "docker", stop=True, facts={}).cases == (Case("AC"), Case("TLE"))
    assert settle([*cases, Case("SE")], 5, "docker", stop=False, facts={}).status == "SE"


@pytest.mark.parametrize(
    "change",
    [
        {"outcome": "accepted"}, {"outcome": None}, {"outcome": ["exited"]}, {"code": "0"},
        {"code": True}, {"cpu_s": float("nan")}, {"wall_s": -1}, {"memory": 1.5},
    ],
)  # fmt: skip
def test_a_case_that_breaks_the_protocol(change):
    head = {"outcome": "exited", "code": 0, "signal": None, "cpu_s": 1, "wall_s": 1.0, "memory": 1}
    assert read_outcome(Frame(CASE, head, [b"", b""])).cpu_s == 1.0
    with pytest.raises(FrameError):
        read_outcome(Frame(CASE, {**head, **change}, [b"", b""]))
    with pytest.raises(FrameError):
        read_outcome(Frame(CASE, head, [b""]))


def test_what_is_shown_is_bounded_and_harmless():
    assert show_text(b"x" * 10**6)[4090:] == "xxxxxx…"
    assert "more than 4,300 digits" in show_value([10**5000])
    assert len(show_value(["x" * 10**6] * 1000)) < 5000
    nested: list[Any] = []
    for _ in range(40):
        nested = [nested]
    assert "..." in show_value(nested)
    assert one_line("a\n\x1b[31mb\x00" + "c" * 999).startswith("a ?[31mb?c")
    assert len(one_line("c" * 999)) == 300
    assert last_line(b"a\nb\n \n") == "b"
    assert last_line(b"") == ""


@pytest.mark.parametrize(
    ("what", "status", "detail"),
    [
        (outcome("exited", b"1\n"), "AC", ""),
        (outcome("exited", b"2\n"), "WA", ""),
        (outcome("exited", b"1\n", code=3), "RE", "exit code 3"),
        (
            outcome("exited", b"", b"Traceback\nKeyError: 1\n", code=1),
            "RE",
            "exit code 1: KeyError: 1",
        ),
        (outcome("signaled", b"1\n", signal=11), "RE", "signal 11"),
        (outcome("cpu", b"1\n"), "TLE", "cpu"),
        (outcome("wall", b"1\n"), "TLE", "wall"),
        (outcome("memory", b"1\n"), "MLE", "memory"),
        (outcome("output", b"1\n"), "OLE", "output"),
        (outcome("compile", detail="SyntaxError: x"), "CE", "SyntaxError: x"),
        (outcome("setup"), "SE", "the box failed before the program started"),
    ],
)
def test_stdin_outcomes(what, status, detail):
    case = judge_stdin(what, StdinTest("", "1"))
    assert (case.status, case.detail) == (status, detail)
    assert (case.cpu_s, case.wall_s, case.memory_mb) == (0.1, 0.2, 2.0)
