"""The grader `published` of the task `math`."""

import pytest

from flowzoo.envs.tasks import make_task
from flowzoo.errors import UsageError
from flowzoo.reward.math.plain_text import plain_text
from flowzoo.reward.math.published.statuses import published_statuses
from tests.tables import read_tables

TABLES = read_tables(__file__, "published")


def test_answers_are_paid_as_by_the_public_code():
    answers = [row[0] for row in TABLES["pairs"]]
    golds = [row[1] for row in TABLES["pairs"]]
    statuses = published_statuses(answers, golds)
    judged = [status == "equal" for status in statuses]
    rows = zip(TABLES["pairs"], judged, strict=True)
    assert [row for row, is_paid in rows if is_paid != row[2]] == []
    assert published_statuses(answers[::-1], golds[::-1]) == statuses[::-1]


def test_no_text_is_run():
    hostile = TABLES["hostile"]
    statuses = published_statuses(hostile, ["1.5"] * len(hostile))
    assert dict(zip(hostile, statuses, strict=True)) == dict.fromkeys(hostile, "different")


def test_a_difference_that_takes_too_long_is_not_paid_and_ends():
    towers = ["9**9**9**9", "((9**9)**9)**9**9"]
    statuses = published_statuses([*towers, "x+1"], ["2.5", "2.5", "1+x"], 0.5)
    assert set(statuses[:2]) <= {"timeout", "crashed", "different"}
    assert statuses[2] == "equal"
    assert published_statuses(["7" * 2_001], ["7"]) == ["too_big"]


def test_latex_becomes_text():
    # As latex2text of pylatexenc 2.10 has it.
    for latex, text in {
        "\\frac{\\sqrt3}{2}": "√(3)/2",
        "\\sqrt[3]{2}\\pi x": "√(2)πx",
        "\\begin{pmatrix} 1 & 2 \\\\ 3 & 4 \\end{pmatrix}": "[ 1 2; 3 4 ]",
        "\\overline{AB}\\in\\mathbb{R}": "AB∈ℝ",
        "\\operatorname{lcm}\\binom{5}{2}\\mbox{cm}": "lcm52",
        "\\vec{v} \\leq \\mathbf{x}": "v\u20d7≤\U0001d431",
        "\\frac\\pi2": "π/2",
        "1}\\alpha": "1α",
    }.items():
        assert plain_text(latex).replace(" ", "") == text.replace(" ", "")


def test_the_grader_is_an_option_of_the_task():
    own, published = make_task("math"), make_task("math", grader="published")
    problem = own.problem(0, "train")
    answers = [problem.gold, f"{problem.gold}.00", "x", None]
    scores = [result.score for result in published.grade_batch([problem] * 4, answers)]
    assert scores == [1.0, 1.0, 0.0, 0.0]
    formula = problem.text.removeprefix("Compute ").removesuffix(".").replace("*", "\\cdot ")
    assert own.grade_batch([problem], [formula])[0].status == "copied"
    assert published.grade_batch([problem], [formula])[0].status == "different"  # no integer
    with pytest.raises(UsageError, match="grader"):
        make_task("math", grader="sympy")
