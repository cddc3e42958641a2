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


@cache
def report(sort: str) -> Report:
    drawn = groups("matrix", [member for member in SORTS if member.name == sort])
    return measure(list(islice(drawn, GROUPS)), flowzoo)


NAMES = [sort.name for sort in SORTS]


def lines(cases: list[Case]) -> list[str]:
    return [f"{case.gold()}   |   {case.reply()}" for case in cases]


@pytest.mark.parametrize("sort", NAMES)
def test_respellings_are_paid(sort: str):
    assert lines([case for case in report(sort).failures if not case.miss]) == []


@pytest.mark.parametrize("sort", NAMES)
def test_near_misses_are_not(sort: str):
    assert lines([case for case in report(sort).failures if case.miss]) == []


@pytest.mark.parametrize("sort", NAMES)
def test_verdicts_are_symmetric_and_transitive(sort: str):
    assert report(sort).broken == {}
