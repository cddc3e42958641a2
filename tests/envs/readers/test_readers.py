"""Readers of replies: strict ones on labeled replies of every role and on any text, published ones.

`python -m pytest -s tests/envs/readers/test_readers.py -k clear` prints the figures.
"""

import json
import sys
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flowzoo.envs.readers import published, read_choice, read_plan, read_tests, read_verdict
from flowzoo.envs.tasks import make_task
from flowzoo.reward.code.score import bare_program, extract_code
from flowzoo.sandbox.program import CallTest, StdinTest
from tests.tables import read_tables

PIECES = (
    "Candidate ", "candidate 2 ", "1", "2 and 3", "is right", "is the correct one", "is wrong",
    "not ", "or ", ". ", "\n", "?", "maybe ", "\\boxed{", "3}", "Correct", "Incorrect. ",
    "The answer is ",
    "STRATEGY 1: ", "- ", "**", "1. ", "text", "```", "```json\n", "[", "]", "{'input': [1], ",
    "'output': 2}", "def f(x):\n", "    return x\n", "print(", ")", "the first one ", "⟦1⟧", "\x00",
    "\ud800", "<think>", "</think>", "²",
)  # fmt: skip
READERS = (
    partial(read_choice, count=3),
    read_verdict,
    partial(read_plan, word="STRATEGY", most=3),
    partial(read_plan, word="SUBTASK", most=3),
    partial(read_tests, entry="f"),
    partial(read_tests, entry=None),
    bare_program,
)
PUBLISHED = (
    published.read_verdict,
    partial(published.read_choice, count=3),
    partial(published.read_plan, word="STRATEGY", most=3),
    published.read_answer,
    published.read_program,
)
CPU_S = 5.0
"""For one reply; what is linear takes milliseconds."""


@settings(max_examples=300)
@given(st.lists(st.sampled_from(PIECES), max_size=30).map("".join))
def test_any_mixture_is_read_or_not_and_never_raises(text):
    assert read_choice(text, 3) in (None, 1, 2, 3)
    assert read_verdict(text) in (None, True, False)
    for reader in READERS[2:]:
        results = reader(text)
        assert results is None or len(results) > 0
    verdict, choice, plan, answer, program = (reader(text) for reader in PUBLISHED)
    assert verdict in (None, True, False)
    assert choice in (None, 1, 2, 3)
    assert 1 <= len(plan) <= 3
    assert {type(answer), type(program)} <= {str, type(None)}


@pytest.mark.parametrize(
    "piece", [*PIECES, "a", " ", "`", "candidate 1, ", "1. a\n", "x = 1\n", "("]
)
def test_long_replies_cost_little(piece):
    for start in ("", "Candidate 1 ", "STRATEGY 1: ", "print(1)\n", "[", "```python\n"):
        for size in (9_900, 50_000):
            text = start + piece * (size // len(piece))
            for reader in (*READERS, *PUBLISHED):
                before = time.process_time()
                reader(text)
                assert time.process_time() - before < CPU_S


@pytest.mark.parametrize("count", [1, 2, 3, 12])
def test_choices_are_within_the_number_of_candidates(count):
    for number in range(15):
        expected = number if 1 <= number <= count else None
        for form in ("{}", "Candidate {} is right.", "\\boxed{{{}}}", "The right candidate is {}."):
            assert read_choice(form.format(number), count) == expected


def test_thoughts_are_not_read():
    assert read_choice("<think>Candidate 1 is right.</think>", 3) is None
    assert read_choice("<think>Candidate 1 is right.</think>Candidate 2 is right.", 3) == 2
    assert read_verdict("<think>Correct</think>Incorrect") is False
    assert read_verdict("Let me see. <think>Correct") is None
    assert read_plan("<think>STRATEGY 1: a</think>", "STRATEGY", 3) is None
    assert bare_program("<think>def f(x):\n    return x") is None


REPLIES = Path(__file__).with_name("replies")


def plan(row: dict[str, Any]) -> list[str] | None:
    parts = read_plan(row["reply"], "STRATEGY", 3)
    return None if parts is None else list(parts)


def program(row: dict[str, Any]) -> str | None:
    code = extract_code(row["reply"])
    return None if code is None else code.strip()


def cases(row: dict[str, Any]) -> list[list[Any]] | None:
    tests = read_tests(row["reply"], row["entry"])
    return None if tests is None else [case(test) for test in tests]


def case(test: object) -> list[Any]:
    if isinstance(test, CallTest):
        return [list(test.args), test.expected]
    assert isinstance(test, StdinTest)
    return [test.stdin, test.expected]


ROLES: dict[str, Callable[[dict[str, Any]], Any]] = {
    "aggregator": lambda row: read_choice(row["reply"], 3),
    "evaluator": lambda row: read_verdict(row["reply"]),
    "orchestrator": plan,
    "tester": cases,
    "coder": program,
}
LEFT_OPEN = {"aggregator": 2, "evaluator": 6, "orchestrator": 0, "tester": 0, "coder": 0}
"""Real replies that a person would read, and the readers do not."""


@pytest.mark.parametrize("role", ROLES)
def test_clear_replies_are_read_and_no_others(role):
    lines = (REPLIES / f"{role}.jsonl").read_text(encoding="utf-8").splitlines()
    rows = [json.loads(line) for line in lines]
    counts, wrong, left = Counter[str](), [], 0
    for row in rows:
        read = ROLES[role](row)
        counts[f"{row['from']}: {'clear' if row['read'] is not None else 'unclear'}"] += 1
        if read is None and row["read"] is not None and row["from"] == "real":
            left += 1
        elif repr(read) != repr(row["read"]):
            wrong.append((row["reply"], read, row["read"]))
    sys.stdout.write(f"\n{role}: {dict(counts)}; wrong {len(wrong)}, real left open {left}\n")
    assert wrong == []
    assert left <= LEFT_OPEN[role]
    planted = [row["read"] for row in rows if row["from"] != "real"]
    assert sum(read is None for read in planted) >= 100
    assert sum(read is not None for read in planted) >= 60


ROWS = read_tables(__file__, "published")
BY_PUBLIC_CODE: dict[str, Any] = {
    "verdict": published.read_verdict,
    "choice": lambda text: published.read_choice(text, 3) or 1,
    "plan": lambda text: list(published.read_plan(text, "STRATEGY", 3)),
    "answer": published.read_answer,
    "program": published.read_program,
}


@pytest.mark.parametrize("reader", BY_PUBLIC_CODE)
def test_replies_are_read_as_by_the_public_code(reader):
    rows = ROWS[reader]
    assert len(rows) >= 20
    read = {text: BY_PUBLIC_CODE[reader](text) for text, *_ in rows}
    assert read == {text: result[0] if result else None for text, *result in rows}


def test_numbers_beyond_what_python_converts_are_no_numbers():
    digits = "1" * 5_000
    assert published.read_choice(f"\\boxed{{{digits}}} so 2", 3) == 2
    plan = f"STRATEGY {digits}: a long way"
    assert published.read_plan(plan, "STRATEGY", 3) == (plan,)


def test_thoughts_are_not_read_by_published_readers():
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
