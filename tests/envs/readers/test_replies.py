"""Labeled replies of every role: those that are clear are read rightly, no other is read.

`python -m pytest -s tests/envs/readers/test_replies.py` prints the figures.
"""

import json
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from flowzoo.envs.readers import read_choice, read_plan, read_tests, read_verdict
from flowzoo.reward.code.score import extract_code
from flowzoo.sandbox.program import CallTest, StdinTest

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


READERS: dict[str, Callable[[dict[str, Any]], Any]] = {
    "aggregator": lambda row: read_choice(row["reply"], 3),
    "evaluator": lambda row: read_verdict(row["reply"]),
    "orchestrator": plan,
    "tester": cases,
    "coder": program,
}
LEFT_OPEN = {"aggregator": 2, "evaluator": 6, "orchestrator": 0, "tester": 0, "coder": 0}
"""Real replies that a person would read, and the readers do not."""


@pytest.mark.parametrize("role", READERS)
def test_clear_replies_are_read_and_no_others(role):
    lines = (REPLIES / f"{role}.jsonl").read_text(encoding="utf-8").splitlines()
    rows = [json.loads(line) for line in lines]
    counts, wrong, left = Counter[str](), [], 0
    for row in rows:
        read = READERS[role](row)
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
