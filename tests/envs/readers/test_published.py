"""The readers of the preset `published` give what the public code gives for the same replies."""

from typing import Any

import pytest

from flowzoo.envs.readers import published
from flowzoo.envs.tasks import make_task
from tests.tables import read_tables

ROWS = read_tables(__file__, "published")
READERS: dict[str, Any] = {
    "verdict": published.read_verdict,
    "choice": lambda text: published.read_choice(text, 3) or 1,
    "plan": lambda text: list(published.read_plan(text, "STRATEGY", 3)),
    "answer": published.read_answer,
    "program": published.read_program,
}


@pytest.mark.parametrize("reader", READERS)
def test_replies_are_read_as_by_the_public_code(reader):
    rows = ROWS[reader]
    assert len(rows) >= 20
    read = {text: READERS[reader](text) for text, *_ in rows}
    assert read == {text: result[0] if result else None for text, *result in rows}


def test_numbers_beyond_what_python_converts_are_no_numbers():
    digits = "1" * 5_000
    assert published.read_choice(f"\\boxed{{{digits}}} so 2", 3) == 2
    plan = f"STRATEGY {digits}: a long way"
    assert published.read_plan(plan, "STRATEGY", 3) == (plan,)


def test_thoughts_are_not_read():
    thought = "<think>\\boxed{Correct} \\boxed{1} STRATEGY 1: a</think>"
    assert published.read_verdict(f"{thought}\\boxed{{Incorrect}}") is False
    assert published.read_choice(f"{thought}\\boxed{{2}}", 3) == 2
    assert published.read_plan(thought, "STRATEGY", 3) == ("",)
    assert published.read_answer(thought) is None


def test_a_task_reads_answers_as_the_public_code_and_an_empty_box_is_none():
    math, code = make_task("math"), make_task("code")
    assert math.answer_published("50 \\boxed{ 7 }") == " 7 "
    for text in ("50", "\\boxed{}", "\\boxed{\n}", "\\boxed{7} \\boxed{8"):
        assert math.answer_published(text) is None
    assert code.answer_published("```\nprint(1)\n```") == "print(1)"
    assert code.answer_published("print(1)") is None


def test_other_tasks_are_read_strictly():
    task = make_task("plan_path")
    for text in ('["U", "D"]', "up, down"):
        assert task.answer_published(text) == task.answer(text)
    assert task.answer_lenient("up, down") is not None
