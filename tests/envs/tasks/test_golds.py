"""Reference answers of data files: wrappings, placeholders, sorts, and what a model would write."""

import json
from itertools import islice

import pytest

from benchmarks.grading.matrix import boxed, groups
from flowzoo import cli
from flowzoo.envs.tasks.math import MathTask
from flowzoo.envs.testing import check_task
from flowzoo.errors import DataError
from tests.envs.playing import write_rows as write

PLACEHOLDERS = (
    float("nan"), "NaN", "None", "null", "N/A", "n/a", "#N/A", "<NA>", "nil", "?", "???", "…",
    "...", r"\ldots", "[]", "{}", "()", "-", "—", "_", r"\text{None}", "$?$", "TBD", "[null]",
)  # fmt: skip
ANSWERS = (
    "0", "x", "A", "no solution", "undefined", r"\emptyset", r"\{\}", "∅", "∞", "<", "+", "Nan 1",
    "None of these", "[0,1)", "[1, 2]", "-1",
)  # fmt: skip


def rows_of(*golds: object) -> list[dict[str, object]]:
    return [
        {"question": f"Question {number}?", "answer": gold} for number, gold in enumerate(golds)
    ]


def dapo_rows(*golds: object) -> list[dict[str, object]]:
    return [
        {"prompt": f"Question {number}?", "reward_model": {"ground_truth": gold}}
        for number, gold in enumerate(golds)
    ]


def golds_of(task: MathTask) -> list[str]:
    return [task.problem(index, "all").gold for index in range(task.size("all") or 0)]


@pytest.mark.parametrize(
    ("given", "gold"),
    [
        ('["34"]', "34"),
        ('[["34"]]', "34"),
        (["34"], "34"),
        ([34], "34"),
        (json.dumps([r"\frac{1}{2}"]), r"\frac{1}{2}"),
        ("#### 34", "34"),
        ("so 30+4\n#### 34", "34"),
        ("The answer is 34", "34"),
        ("The final answer is $34$.", "$34$"),
        ("[1, 2]", "[1, 2]"),
        ("[0,1)", "[0,1)"),
        (r"\text{The answer is } 34", r"\text{The answer is } 34"),
    ],
)
def test_an_answer_is_read_out_of_its_wrapping_and_can_be_matched(tmp_path, given, gold):
    task = MathTask(data=write(tmp_path / "d.jsonl", *dapo_rows(given)))
    assert golds_of(task) == [gold]
    problem = task.problem(0, "all")
    assert task.grade_batch([problem], [gold])[0].score == 1.0
    assert task.grade_batch([problem], [task.reference(problem)])[0].score == 1.0


def test_wrappings_are_said_when_the_file_is_loaded(tmp_path, caplog):
    path = write(
        tmp_path / "d.jsonl", *dapo_rows('["34"]', "5", "#### 6", "The answer is 7", '["8"]')
    )
    MathTask(data=path)
    (record,) = caplog.records
    said = record.getMessage()
    assert "4 of 5 answers are read out of a wrapping" in said
    assert "line 1: '34' is read from '[\"34\"]'" in said
    assert "line 4" in said
    assert "line 5" not in said


@pytest.mark.parametrize(
    "given", ['["3", "5"]', ["3", "5"], [], '{"answer": "3"}', "['3']", r'["\frac{1}{2}"]']
)
def test_an_answer_of_several_parts_or_broken_json_is_refused_by_line(tmp_path, given):
    path = write(tmp_path / "d.jsonl", *dapo_rows("1", given))
    with pytest.raises(DataError, match=r"d\.jsonl, line 2: answer .* (list|control characters)"):
        MathTask(data=path)


@pytest.mark.parametrize("gold", PLACEHOLDERS, ids=str)
def test_a_placeholder_is_refused_by_line(tmp_path, gold):
    path = write(tmp_path / "a.jsonl", *rows_of("1", gold))
    with pytest.raises(
        DataError, match=r"a\.jsonl, line 2: answer .* placeholder .*placeholders=kept"
    ):
        MathTask(data=path)
    assert len(golds_of(MathTask(data=path, placeholders="kept"))) == 2


def test_every_placeholder_is_listed(tmp_path):
    path = write(tmp_path / "a.jsonl", *rows_of("1", "?", "2", "N/A"))
    with pytest.raises(DataError, match="2 of 4 rows") as caught:
        MathTask(data=path)
    assert [f"line {line}:" in str(caught.value) for line in (1, 2, 3, 4)] == [0, 1, 0, 1]


@pytest.mark.parametrize("gold", ANSWERS)
def test_an_answer_is_no_placeholder(tmp_path, gold):
    task = MathTask(data=write(tmp_path / "a.jsonl", *rows_of(gold)))
    assert golds_of(task) == [gold]
    problem = task.problem(0, "all")
    assert task.grade_batch([problem], [task.reference(problem)])[0].score == 1.0


def test_an_answer_beside_another_box_of_its_solution_is_said(tmp_path, caplog):
    rows = [
        {"problem": "1+1?", "answer": "2", "solution": r"It is \boxed{3}."},
        {"problem": "1+2?", "answer": "0.5", "solution": r"It is \boxed{\frac12}."},
        {"problem": "1+3?", "answer": "4", "solution": "It is four."},
    ]
    task = MathTask(data=write(tmp_path / "m.jsonl", *rows))
    (record,) = caplog.records
    assert "1 of 3 solutions have another answer" in record.getMessage()
    assert "line 1: '2' is not in its solution's box, which has '3'" in record.getMessage()
    survey = task.golds()
    assert survey is not None
    assert [row.line for row in survey.remarkable] == [1]


def test_a_scripted_expert_answers_as_a_model_does(tmp_path):
    path = write(
        tmp_path / "a.jsonl", *rows_of("7", r"\frac{1}{2}", "see, e.g., [the book]; p. 3?")
    )
    task = MathTask(data=path)
    problems = [task.problem(index, "all") for index in range(3)]
    answers = [task.reference(problem) for problem in problems]
    assert answers[1] == r"\dfrac{1}{2}"
    assert [grade.score for grade in task.grade_batch(problems, answers)] == [1.0, 1.0, 0.0]
    survey = task.golds()
    assert survey is not None
    assert [(row.line, "a model would write" in row.remark) for row in survey.remarkable] == [
        (3, True)
    ]


def test_a_list_of_a_data_file_counts_sorts_and_shows_remarkable_answers(tmp_path, capsys):
    path = write(tmp_path / "d.jsonl", *dapo_rows('["34"]', "5", r"\frac{1}{2}"))
    assert cli.main(["list", "--data", str(path)]) == 0
    shown = capsys.readouterr().out
    assert "3 problems of task math" in shown
    assert "3 reference answers by sort" in shown
    assert "line 1: '34' is read from" in shown
    assert " of them to look at:" in shown
    assert cli.main(["list", "--data", str(path), "--json"]) == 0
    described = json.loads(capsys.readouterr().out)
    assert described["problems"]["all"] == sum(described["golds"]["sorts"].values()) == 3
    assert [row["line"] for row in described["golds"]["remarkable"]] == [1]


@pytest.mark.parametrize(
    ("gold", "sort"),
    [
        ("34", "number"),
        (r"\frac{1}{2}", "number"),
        (r"2\sqrt{3}", "expression"),
        ("5 cm", "quantity"),
        ("(C)", "choice"),
        ("Friday", "words"),
        ("[0,1)", "interval or tuple"),
        ("3, 5", "list"),
        ("x^2+y^2=1", "relation"),
        ("2024-01-03", "date"),
        ("see, e.g., [the book]; p. 3?", "text"),
    ],
)
def test_sorts_of_answers(tmp_path, gold, sort):
    survey = MathTask(data=write(tmp_path / "a.jsonl", *rows_of(gold))).golds()
    assert survey is not None
    assert survey.sorts == {sort: 1}


def test_check_task_returns_the_survey(tmp_path):
    path = write(tmp_path / "d.jsonl", *dapo_rows('["34"]', *range(40)))
    survey = check_task(MathTask(data=path))
    assert survey is not None
    assert sum(survey.sorts.values()) == 41
    assert [row.line for row in survey.remarkable] == [1]


DRAWN = list(islice(groups("golds of files"), 36))
"""A group of every sort."""
WRAPPINGS = (
    lambda gold: json.dumps([gold]),
    lambda gold: [gold],
    lambda gold: f"so it is.\n#### {gold}",
    lambda gold: f"The answer is ${gold}$.",
)


def graded(task: MathTask, replies: list[str]) -> list[float]:
    problems = [task.problem(index, "all") for index in range(len(replies))]
    return [result.score for result in task.grade_batch(problems, replies)]


@pytest.mark.parametrize("number", range(len(WRAPPINGS)))
def test_a_wrapped_answer_is_matched_by_its_respelling_alone(tmp_path, number):
    golds = [group.right[0].gold() for group in DRAWN]
    assert len(golds) >= 30
    rows = [
        {"prompt": f"{idx}?", "reward_model": {"ground_truth": WRAPPINGS[number](gold)}}
        for idx, gold in enumerate(golds)
    ]
    task = MathTask(data=write(tmp_path / "d.jsonl", *rows))
    assert graded(task, [boxed(group.right[0].answer() or "") for group in DRAWN]) == [1.0] * 36
    assert graded(task, [boxed(group.wrong[0].answer() or "") for group in DRAWN]) == [0.0] * 36
