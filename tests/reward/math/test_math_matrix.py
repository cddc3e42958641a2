"""Generated answers of every sort: respellings are paid, near misses are not, both ways.

`python -m benchmarks.grading.matrix` draws as many as one likes.
"""

from functools import cache
from itertools import islice

import pytest

from benchmarks.grading.cases import SORTS, Case
from benchmarks.grading.matrix import Report, flowzoo, groups, measure

GROUPS = 8
"""Values of a sort, each with two respellings and two near misses."""
REFUSED = frozenset(
    {
        "decimal",
        "percentage",
        "literal of a base",
        "numeral with its base",
        "Roman numeral",
        "ratio",
        "function",
        "set",
        "vector",
        "named parts",
        "quantity with unit",
        "quotient of units",
        "angle",
        "date",
        "time of day",
        "proposition",
        "algebra of sets",
        "quantified statement",
        "congruence",
        "permutation",
        "several choices",
        "product of vectors or matrices",
    }
)
"""Sorts of which some respellings are refused."""
PAID = frozenset(
    {
        "literal of a base",
        "quantity with unit",
        "proposition",
        "several choices",
        "word",
        "genotype",
        "product of vectors or matrices",
    }
)
"""Sorts of which some near misses are paid."""
BROKEN = frozenset({"decimal", "literal of a base", "several choices", "genotype"})
"""Sorts whose verdicts are not symmetric or not transitive."""


@cache
def report(sort: str) -> Report:
    drawn = groups("matrix", [member for member in SORTS if member.name == sort])
    return measure(list(islice(drawn, GROUPS)), flowzoo)


def each_sort(failing: frozenset[str]) -> list[object]:
    """Sorts as parameters; a sort that fails today has to be unmarked once it does not."""
    names = [sort.name for sort in SORTS]
    assert failing <= set(names)
    return [
        pytest.param(name, marks=pytest.mark.xfail(strict=True) if name in failing else ())
        for name in names
    ]


def lines(cases: list[Case]) -> list[str]:
    return [f"{case.gold()}   |   {case.reply()}" for case in cases]


@pytest.mark.parametrize("sort", each_sort(REFUSED))
def test_respellings_are_paid(sort: str):
    assert lines([case for case in report(sort).failures if not case.miss]) == []


@pytest.mark.parametrize("sort", each_sort(PAID))
def test_near_misses_are_not(sort: str):
    assert lines([case for case in report(sort).failures if case.miss]) == []


@pytest.mark.parametrize("sort", each_sort(BROKEN))
def test_verdicts_are_symmetric_and_transitive(sort: str):
    assert report(sort).broken == {}
