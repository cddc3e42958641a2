"""Answers that copy a formula of their problem: refused by the task, paid by no decoration."""

import re

import pytest

from flowzoo.envs.tasks import make_task
from flowzoo.envs.tasks.task import Problem
from flowzoo.errors import UsageError
from flowzoo.reward import score_batch
from flowzoo.reward.math.extract import formulas_of
from tests.tables import read_tables, shared_rows

TABLES = read_tables(__file__)


@pytest.mark.parametrize(("problem", "gold", "answer"), TABLES["copied"])
def test_a_copied_formula_is_not_paid(problem, gold, answer):
    assert score_batch([rf"\boxed{{{answer}}}"], [gold]).statuses == ["equal"]
    statuses = score_batch([rf"\boxed{{{answer}}}"], [gold], problems=[problem])
    assert statuses == ([0.0], ["copied"])


@pytest.mark.parametrize(("problem", "gold", "answer"), TABLES["answered"])
def test_an_answer_is_paid_wherever_it_comes_from(problem, gold, answer):
    assert score_batch([rf"\boxed{{{answer}}}"], [gold], problems=[problem]).statuses == ["equal"]


@pytest.mark.parametrize("form", TABLES["decorated"])
def test_no_decoration_of_a_copy_is_paid(form):
    task = make_task("math", level="1-5")
    problems = [task.problem(index) for index in range(200)]
    runs = [re.fullmatch(r"Compute ([^a-z]+)\..*", problem.text, re.DOTALL) for problem in problems]
    rows = [(p, form.format(run[1])) for p, run in zip(problems, runs, strict=True) if run]
    assert len(rows) > 80
    grades = task.grade_batch([p for p, _ in rows], [answer for _, answer in rows])
    paid = [answer for (_, answer), grade in zip(rows, grades, strict=True) if grade.score]
    assert paid == []


def test_copies_can_be_paid():
    problem = Problem("math", "test", 0, 0, "Compute 12+7*8.", "68")
    for copies, status in (("refused", "copied"), ("paid", "equal")):
        task = make_task("math", copies=copies)
        assert task.grade_batch([problem], ["12+7*8"])[0].status == status


def test_problems_are_texts_of_the_rows():
    with pytest.raises(UsageError, match="problems: expected a text for each of 1 rows"):
        score_batch(["1"], ["1"], problems=["a", "b"])
    with pytest.raises(UsageError, match="problem 0: expected a string, got NoneType"):
        score_batch(["1"], ["1"], problems=[None])  # type: ignore[list-item]


@pytest.mark.full
def test_formulas_of_math_500_are_paid_where_they_are_the_gold():
    rows = shared_rows("math500/test.jsonl")
    pairs = [(r, f) for r in rows for f in formulas_of(r["problem"]) if len(f) > 2]
    statuses = score_batch(
        [rf"\boxed{{{formula}}}" for _, formula in pairs],
        [row["answer"] for row, _ in pairs],
        problems=[row["problem"] for row, _ in pairs],
    )
    paid = [(row["answer"], f) for (row, f), s in zip(pairs, statuses.scores, strict=True) if s]
    assert statuses.statuses.count("copied") > 35
    assert [pair for pair in paid if pair[0] != pair[1]] == []
