"""Reference answers of data files, drawn from every sort of answers of `benchmarks.grading`."""

import json
from itertools import islice

import pytest

from benchmarks.grading.matrix import Group, boxed, groups
from flowzoo.envs.tasks.math import MathTask
from tests.envs.playing import write_rows as write

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


def solutions(is_right: bool) -> list[dict[str, object]]:
    """Rows whose solution has the answer in its box, respelled or missed by a little."""

    def other(group: Group) -> str:
        return (group.right[1] if is_right else group.wrong[0]).answer() or ""

    return [
        {"problem": f"{idx}?", "answer": group.right[0].gold(), "solution": boxed(other(group))}
        for idx, group in enumerate(DRAWN)
    ]


def test_an_answer_beside_the_box_of_its_solution_is_said_where_it_differs(tmp_path, caplog):
    MathTask(data=write(tmp_path / "right.jsonl", *solutions(True)))
    assert not caplog.records
    task = MathTask(data=write(tmp_path / "wrong.jsonl", *solutions(False)))
    assert "36 of 36 solutions have another answer" in caplog.text
    survey = task.golds()
    assert survey is not None
    assert len(survey.remarkable) == 36
