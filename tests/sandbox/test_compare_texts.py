import math
import time
from decimal import Decimal
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowzoo.errors import UsageError
from flowzoo.sandbox.compare import texts_match, values_match
from flowzoo.sandbox.program import EXACT, TOKENS, Compare
from tests.tables import read_tables

NUMBER = Compare("number", 1e-6, 1e-6)


RULES = {"exact": EXACT, "tokens": TOKENS, "number": NUMBER}
TABLES = read_tables(__file__)


@pytest.mark.parametrize(
    ("output", "expected", "rule", "same"),
    [
        *((*row[:2], rule, row[2]) for name, rule in RULES.items() for row in TABLES[name]),
        (b"\xff", "\ufffd", TOKENS, False),
        (b"\xff", "\udcff", EXACT, False),
        ("\udcff", "\udcff", EXACT, False),
        ("\ud800", "\ud800", NUMBER, False),
        ("9" * 5000, "9" * 4999 + "8", NUMBER, False),
        ("0" * 5000 + "9", "9", NUMBER, False),
    ],
)
def test_one_row(output, expected, rule, same):
    assert texts_match([output], [expected], [rule]) == [same]


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
    assert texts_match(outputs, [*map(str, INTEGERS)], [NUMBER] * len(INTEGERS)) == right
    values = [(Decimal(output), float(output)) for output in outputs]
    for number, same, (decimal, rounded) in zip(INTEGERS, right, values, strict=True):
        assert values_match(decimal, number, NUMBER) == same
        assert values_match(rounded, number, NUMBER) == (int(rounded) == number)


def test_a_leading_zero_makes_a_word():
    words = [f"{sign}{number:0{width}d}" for sign in ("", "-") for number in (0, 7, 10, 256)
             for width in (5, 6, 9)] + ["00.5", "-007.10", "01e3", "0000"]  # fmt: skip
    numbers = [repr(float(word)) for word in words] + [str(int(float(word))) for word in words]
    rules = [NUMBER] * len(words)
    assert texts_match(words, words, rules) == [True] * len(words)
    for output, word in zip(numbers, words * 2, strict=True):
        assert texts_match([output, word], [word, output], [NUMBER] * 2) == [False, False]


def test_rows_do_not_leak_into_each_other():
    outputs = ["1", "", "2 3", "4.0", "x"]
    expected = ["1", "1", "2", "4", "x"]
    rules = [TOKENS, TOKENS, TOKENS, NUMBER, EXACT]
    assert texts_match(outputs, expected, rules) == [True, False, False, True, True]
    assert texts_match([], [], []) == []


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_a_number_is_read_as_python_reads_it(value):
    """With no tolerance at all, another spelling of the same double is equal, its neighbor not."""
    none = Compare("number", 0.0, 0.0)
    outputs = [f"{value:.17e}", repr(math.nextafter(value, math.inf))]
    same, other = texts_match(outputs, [repr(value)] * 2, [none] * 2)
    assert same
    assert not other or abs(value) > 1.7e308


@pytest.mark.parametrize("digit", ["1x", "0.5", "0e9x"])
def test_hostile_tokens_take_no_quadratic_time(digit):
    junk = digit[0] * 500_000 + digit[1:]
    start = time.process_time()
    texts_match([junk] * 5, ["7.25"] * 5, [NUMBER] * 5)
    assert time.process_time() - start < 60  # where the square takes many minutes


def test_lengths_must_agree():
    with pytest.raises(UsageError, match="got 1, 2 and 1"):
        texts_match(["1"], ["1", "2"], [TOKENS])
