"""Pairs are true by construction, every rewrite and miss is drawn, and planted faults are named.

Mutants of references: what is changed, and what the harness says about it.
"""

import ast
import random
import re
from itertools import islice
from random import Random

import pytest

from benchmarks.grading.cases import SORTS, Case, shrunk
from benchmarks.grading.figures import INTEGER, as_quotient
from benchmarks.grading.matrix import Pairs, failing_kinds, groups, measure, table
from benchmarks.grading.mutants import (
    Judged,
    Trial,
    harness_test,
    judge_by_harness,
    summarize,
    with_whole_test,
)
from benchmarks.grading.mutations import mutants
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


SOURCE = """import math
def helper(x):
    return x + 1

def f(xs, n):
    total = 0
    for x in xs:
        if x > n and x % 2 == 0:
            total += helper(x)
    return total if xs[0] else -1
"""
RECORD = {
    "code": SOURCE, "test_imports": ["import math"],
    "test_list": ["assert f([1, 4, 6], 3) == 12", "assert f([3], 3) == 0"],
}  # fmt: skip


def test_mutants_are_programs_with_one_change_each():
    found = mutants(SOURCE, 1000, random.Random(0))
    assert len(found) == len(set(found)) > 25
    assert found[:5] == mutants(SOURCE, 5, random.Random(0))
    original = ast.unparse(ast.parse(SOURCE))
    assert original not in found
    for text in found:
        ast.parse(text)
    behind = mutants(SOURCE, 1000, random.Random(0), given=4)
    assert 0 < len(behind) < len(found)
    assert all("def helper(x):\n    return x + 1" in text for text in behind)


def test_the_harness_accepts_what_passes_in_one_process():
    test = harness_test(with_whole_test(RECORD))
    sources = [
        SOURCE,
        SOURCE.replace("+= ", "-= "),
        "while True: pass",
        "def f(",
        SOURCE + "exit()",
    ]
    trials = [Trial(0, source, test, 0.5) for source in sources]
    answers = judge_by_harness(trials)
    assert [passed for passed, _ in answers] == [True, False, False, False, False]
    assert answers[2][1] > 0.3
    assert judge_by_harness([Trial(0, f"{SOURCE}assert __name__ != '__main__'", test, 9.0)])[0][0]


def test_the_table_counts_what_differs():
    reference = Trial(0, SOURCE, "", 60.0)
    mutant = reference._replace(seconds=3.0)
    rows = [
        Judged(reference, "AC", True, 0.1), Judged(mutant, "AC", True, 0.1),
        Judged(mutant, "WA", False, 0.1), Judged(mutant, "TLE", True, 0.1),
    ]  # fmt: skip
    row = summarize("MBPP", rows)
    assert (row["references accepted"], row["references unlike"]) == (1, 0)
    assert (row["mutants"], row["mutants accepted"], row["equal"]) == (3, 1, 2)
    assert row["statuses"] == {"AC": 1, "TLE": 1, "WA": 1}
