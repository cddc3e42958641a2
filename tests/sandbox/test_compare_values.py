import copy
from collections import deque
from decimal import Decimal
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowzoo.sandbox.compare import values_match
from flowzoo.sandbox.program import EXACT, TOKENS, Compare
from tests.tables import read_tables

NUMBER = Compare("number", 1e-6, 1e-6)
LISTS = Compare("exact", tuples_as_lists=True)
NAN = float("nan")
RULES = {"exact": EXACT, "tokens": TOKENS, "number": NUMBER}
TABLES = read_tables(__file__)


@pytest.mark.parametrize(
    ("value", "expected", "rule", "same"),
    [
        *((*row[:2], RULES[rule], row[2]) for rule, rows in TABLES.items() for row in rows),
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
