"""Pairs are true by construction, every rewrite and miss is drawn, and planted faults are named."""

import re
from itertools import islice
from random import Random

import pytest

from benchmarks.grading.cases import SORTS, Case, shrunk
from benchmarks.grading.figures import INTEGER, as_quotient
from benchmarks.grading.matrix import Pairs, failing_kinds, groups, measure, table
from benchmarks.grading.rewrites import REPLIES, TEXT_REWRITES, display_fractions
from benchmarks.grading.sort import Sort


@pytest.mark.parametrize("sort", SORTS, ids=lambda sort: sort.name)
def test_moves_keep_the_meaning_and_misses_change_it(sort: Sort):
    moved, missed = set(), set()
    for idx in range(150):
        rng = Random(f"{sort.name} {idx}")
        value = sort.draw(rng)
        for move in sort.moves:
            after = move(value, rng)
            if after is not None:
                moved.add(move)
                assert sort.same(value, after), (move, value, after)
        for kind, miss in sort.misses.items():
            after = miss(value, rng)
            if after is not None and not sort.same(value, after):
                missed.add(kind)
                assert not sort.same(after, value)
    assert moved == set(sort.moves)
    assert missed == set(sort.misses)


def test_there_are_enough_sorts_and_kinds_of_misses():
    assert len(SORTS) >= 20
    assert len({kind for sort in SORTS for kind in sort.misses}) >= 8
    for sort in SORTS:
        for rewrite in (*sort.moves, *sort.spellings, *TEXT_REWRITES, *REPLIES):
            assert rewrite.__doc__, rewrite


def by_letters(pairs: Pairs) -> list[bool]:
    """Verdicts of a grader that compares letters and digits in a box, in any order."""
    texts = [(re.sub(r"\\[A-Za-z]+|\W", "", text) for text in pair) for pair in pairs]
    return [sorted(pred) == sorted(gold) for pred, gold in texts]


def test_the_faults_of_a_grader_are_named_in_a_line_each():
    report = measure(list(islice(groups("planted"), 340)), by_letters)
    assert any("order of letters 0/" not in line for line in table(report) if "word" in line)
    kinds = failing_kinds(report.failures, by_letters)
    found = {(row["sort"], row["miss"], row["rewrites"]) for row in kinds}
    assert {("word", "order of letters", "as it is"), ("percentage", "", "percent word")} <= found


def test_a_respelling_shrinks_to_the_rewrites_that_fail():
    case = Case(INTEGER, "12", (as_quotient, display_fractions, REPLIES[0]))
    rewrites = shrunk(case, lambda smaller: "frac{" in (smaller.answer() or "")).rewrites
    assert rewrites == (as_quotient,)
