"""Mutants of references: what is changed, and what the harness says about it."""

import ast
import random

from benchmarks.grading.mutants import (
    Judged,
    Trial,
    harness_test,
    judge_by_harness,
    summarize,
    with_whole_test,
)
from benchmarks.grading.mutations import mutants

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
