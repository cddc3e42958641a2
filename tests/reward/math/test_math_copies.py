"""Answers that copy a formula of their problem: refused by the task, paid by no decoration."""

import json
import re

import pytest

from flowzoo.envs.tasks import make_task
from flowzoo.envs.tasks.task import Problem
from flowzoo.errors import UsageError
from flowzoo.reward import score_batch
from flowzoo.reward.math.extract import formulas_of
from tests.reward.math.test_math_respelled import DATA

COPIED = [
    (r"Compute $\dbinom{31}{28}$.", "4495", r"\dbinom{31}{28}"),
    (r"Compute $\dbinom{31}{28}+1$.", "4495", r"\binom{31}{28}"),
    ("Compute 12+7*8.", "68", "12+7*8"),
    ("Compute 12+7*8.", "68", r"8 \times 7 + 12"),
    (r"Find $\sin 20^\circ \cos 70^\circ$.", r"\sin^2 20^\circ", r"x = \cos 70° \sin 20°"),
    (r"Simplify $\frac{6}{8}$.", r"\frac{3}{4}", r"\frac68"),
    (r"Write $\frac{3}{20}$ as a decimal.", "0.15", r"\frac{3}{20}"),
    (r"Write $0.15$ as a fraction.", r"\frac{3}{20}", "0.15"),
    (r"Simplify $\sqrt{242}$.", r"11\sqrt2", r"\sqrt{242}"),
    (r"Expand $(x+1)(x+2)$.", "x^2+3x+2", "(x+2)(x+1)"),
    (r"Factor $x^2+3x+2$.", "(x+1)(x+2)", "2+3x+x^2"),
    (r"Solve $|x-3|>2$.", r"(-\infty,1)\cup(5,\infty)", "|x-3|>2"),
    (r"What is $\sqrt{16}+2^3$, and what is $5!$?", "12, 120", r"2^3+\sqrt{16}, 5!"),
    (r"\[\left(4\dfrac{5}{8}\right)^{55} \cdot \left(\dfrac{8}{37}\right)^{55}\]", "1",
     r"\left(4\frac58\right)^{55}\left(\frac8{37}\right)^{55}"),
    (r"Convert $30^\circ$ to radians.", r"\frac{\pi}{6}", r"30^\circ"),
    ("Find the greatest common divisor of 12 and 18.", "6", r"\gcd(18, 12)"),
    ("Find the remainder of 2^10 divided by 7.", "2", r"2^{10} \bmod 7"),
    ("Compute 12+7*8.", "68", "12+7*8 = 8*7+12"),
    ("Compute 12+7*8.", "68", "12+7*8, 8*7+12"),
]  # fmt: skip
ANSWERED = [
    ("Compute 12+7*8.", "68", "68"),
    ("Compute 12+7*8.", "68", "12+7*8 = 68"),
    ("Compute 12+7*8.", "68", "x = 12+56 = 68"),
    ("Compute 12+7*8.", "68", "12+56"),
    ("Which is larger, $2^{100}$ or $3^{75}$?", "3^{75}", "3^75"),
    (r"The square has side $\sqrt{53}$. Find the side.", r"\sqrt{53}", r"x = \sqrt{53}"),
    (r"Simplify $\frac{-3+4i}{1+2i}$.", "1+2i", "2i + 1"),
    ("If $x = 6$ and $y = 7$, what is x?", "6", "6"),
    (r"A recipe takes $\frac{3}{4}$ cup. How much?", r"\frac{3}{4}", "3/4"),
    (r"Expand $(x+1)(x+2)$.", "x^2+3x+2", "3x+2+x^2"),
    (r"Which is right, (A) $2+2=4$ or (B) $2+2=5$?", "A", "(A)"),
    (r"The point $(2, 3)$ is on the line. Name it.", "(2,3)", "(2,3)"),
    (r"For $x \ne 2$, what is the domain?", r"(-\infty,2)\cup(2,\infty)", r"x \ne 2"),
    (r"How many subsets has a set of $10$?", "1024", "2^{10}"),
    ("Two dice: what share, of 36?", r"\frac{1}{2}", r"\frac{18}{36}"),
]
DECORATED = [
    "{}", "${}$", r"\left({}\right)", "{} + 0", r"({}) \cdot 1", r"1 \times ({})", "x = {}",
    "{}+5-5", r"\frac{{2({})}}{{2}}", "{0} = {0} + 0", r"\sqrt{{({})^2}}", "-(-({}))", "{}.",
    r"\boxed{{{}}}", r"\text{{Answer: }}{}",
]  # fmt: skip


@pytest.mark.parametrize(("problem", "gold", "answer"), COPIED)
def test_a_copied_formula_is_not_paid(problem: str, gold: str, answer: str) -> None:
    assert score_batch([rf"\boxed{{{answer}}}"], [gold]).statuses == ["equal"]
    statuses = score_batch([rf"\boxed{{{answer}}}"], [gold], problems=[problem])
    assert statuses == ([0.0], ["copied"])


@pytest.mark.parametrize(("problem", "gold", "answer"), ANSWERED)
def test_an_answer_is_paid_wherever_it_comes_from(problem: str, gold: str, answer: str) -> None:
    assert score_batch([rf"\boxed{{{answer}}}"], [gold], problems=[problem]).statuses == ["equal"]


@pytest.mark.parametrize("form", DECORATED)
def test_no_decoration_of_a_copy_is_paid(form: str) -> None:
    task = make_task("math", level="1-5")
    problems = [task.problem(index) for index in range(200)]
    runs = [re.fullmatch(r"Compute ([^a-z]+)\..*", problem.text, re.DOTALL) for problem in problems]
    rows = [(p, form.format(run[1])) for p, run in zip(problems, runs, strict=True) if run]
    assert len(rows) > 80
    grades = task.grade_batch([p for p, _ in rows], [answer for _, answer in rows])
    paid = [answer for (_, answer), grade in zip(rows, grades, strict=True) if grade.score]
    assert paid == []


def test_copies_can_be_paid() -> None:
    problem = Problem("math", "test", 0, 0, "Compute 12+7*8.", "68")
    for copies, status in (("refused", "copied"), ("paid", "equal")):
        task = make_task("math", copies=copies)
        assert task.grade_batch([problem], ["12+7*8"])[0].status == status


def test_problems_are_texts_of_the_rows() -> None:
    with pytest.raises(UsageError, match="problems: expected a text for each of 1 rows"):
        score_batch(["1"], ["1"], problems=["a", "b"])
    with pytest.raises(UsageError, match="problem 0: expected a string, got NoneType"):
        score_batch(["1"], ["1"], problems=[None])  # type: ignore[list-item]


@pytest.mark.full
def test_formulas_of_math_500_are_paid_where_they_are_the_gold() -> None:
    path = DATA / "math500/test.jsonl"
    if not path.exists():
        pytest.skip(f"{path} is not here")
    rows = [json.loads(line) for line in path.read_text("utf-8").splitlines()]
    pairs = [(r, f) for r in rows for f in formulas_of(r["problem"]) if len(f) > 2]
    statuses = score_batch(
        [rf"\boxed{{{formula}}}" for _, formula in pairs],
        [row["answer"] for row, _ in pairs],
        problems=[row["problem"] for row, _ in pairs],
    )
    paid = [(row["answer"], f) for (row, f), s in zip(pairs, statuses.scores, strict=True) if s]
    assert statuses.statuses.count("copied") > 35
    assert [pair for pair in paid if pair[0] != pair[1]] == []
