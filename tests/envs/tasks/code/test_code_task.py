"""The task `code`: options, reading, grading, equivalence, pickling."""

import random
from collections.abc import Sequence

import pytest

from flowzoo.envs.script import GradeResult, Run, RunResult
from flowzoo.envs.tasks import make_task
from flowzoo.envs.tasks.code.task import CodeTask
from flowzoo.errors import UsageError

TASK = CodeTask()
PROBLEM = TASK.problem(0)


def test_prompt_shows_public_tests_only():
    first, *examples, last = TASK.prompt(PROBLEM).split("\n")
    assert first.startswith("Write f(x): take x, ")
    assert last == "Put the code in a ```python block."
    assert examples == [f"f({t.args[0]}) == {t.expected}" for t in PROBLEM.meta["public"]]
    for test in PROBLEM.meta["hidden"]:
        assert f"f({test.args[0]}) ==" not in TASK.prompt(PROBLEM)


def test_grades():
    wrong = TASK.answer(TASK.solve(PROBLEM, random.Random(0), False))
    answers = [PROBLEM.gold, wrong, None, "def f(x", "def g(x):\n    return 1", "import sys; 1/0"]
    graded = TASK.grade_batch([PROBLEM] * 6, answers)
    assert [grade.score for grade in graded] == [1.0, 0.0, 0.0, 0.0, 0.0, 0.0]
    assert [grade.status for grade in graded] == ["AC", "WA", "none", "CE", "RE", "RE"]
    assert TASK.grade_batch([], []) == []


def test_fractions():
    task = CodeTask(reward="fraction")
    first = PROBLEM.meta["hidden"][0]
    constant = f"def f(x):\n    return {first.expected}"
    same = sum(test.expected == first.expected for test in PROBLEM.meta["hidden"])
    assert task.grade_batch([PROBLEM], [constant]) == [GradeResult(same / 8, "WA")]


def test_equal_pairs_are_run_once(monkeypatch):
    from flowzoo.envs.tasks.code import task as module

    sizes: list[int] = []
    original = module.score_programs

    def counting(programs: Sequence[object], *args: object, **options: object) -> object:
        sizes.append(len(programs))
        return original(programs, *args, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(module, "score_programs", counting)
    other = TASK.problem(1)
    problems = [PROBLEM, other] * 6
    graded = TASK.grade_batch(problems, [PROBLEM.gold] * 12)
    assert sizes == [2]
    assert [grade.score for grade in graded] == [1.0, 0.0] * 6


def test_classes_go_by_what_programs_do_on_public_inputs():
    x, y = (test.args[0] for test in PROBLEM.meta["public"])
    table = {test.args[0]: test.expected for test in PROBLEM.meta["public"]}
    lookup = f"def f(x):\n    return {table}[x]"
    off = f"def f(x):\n    return {table}[x] + (x == {x})"
    fails = f"def f(x):\n    return {table}[x] if x == {x} else {y} // 0"
    answers = [PROBLEM.gold, None, lookup, off, PROBLEM.gold + "\n", fails, "def f(:", "def f(::"]
    assert TASK.classes(PROBLEM, answers) == (0, -1, 0, 1, 0, 2, 3, 3)
    other = TASK.problem(1)
    groups = [[PROBLEM.gold, other.gold], [PROBLEM.gold, other.gold, None]]
    assert TASK.classes_batch([PROBLEM, other], groups) == [(0, 1), (0, 1, -1)]


def test_a_trial_runs_the_public_tests():
    run = TASK.trial(PROBLEM, PROBLEM.gold)
    assert run.tests == PROBLEM.meta["public"]
    right, wrong, plain = TASK.run_batch(
        [run, TASK.trial(PROBLEM, "def f(x):\n    return 'no'"), Run("print(input())", stdin="a\n")]
    )
    assert (right.status, right.passed) == ("AC", 2)
    assert right.output == repr(PROBLEM.meta["public"][0].expected)
    assert (wrong.status, wrong.passed, wrong.output) == ("WA", 0, "'no'")
    assert (plain.status, plain.output) == ("AC", "a\n")
    assert plain == RunResult("AC", plain.cases)


def test_programs_in_math_episodes_run_too():
    (ran,) = make_task("math").run_batch([Run("print(6 * 7)")])
    assert ran.output == "42\n"
    with pytest.raises(UsageError, match="not programs"):
        make_task("math").trial(make_task("math").problem(0), "1")


def test_a_small_family_has_no_problem_in_some_splits():
    task = CodeTask(family="merge")
    texts = {task.problem(index, "all").text for index in range(100)}
    assert len(texts) == 15
    assert task.problem(0, "train").text in texts
    with pytest.raises(UsageError, match=r"no problem for split 'validation'.*family='merge'"):
        task.problem(0, "validation")
