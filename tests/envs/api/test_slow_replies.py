"""Parsers with regular expressions that take exponential time are found, and named."""

import re
import signal
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import pytest

from flowzoo.envs import Ask, Outcome, Workflow
from flowzoo.envs.api.registry import make_workflow
from flowzoo.envs.tasks.math import MathTask
from flowzoo.envs.testing import check_task, check_workflow, slow_replies
from flowzoo.envs.testing.slow_replies import time_limit

PATTERNS = (
    r"(a+)+$",
    r"(\w+\s?)*$",
    r"\\boxed\{((?:[^{}]+|\{[^{}]*\})*)\}$",
    r"<answer>(\s*.*\s*)*</answer>",
    r"(\[(\s*\d+,?)+\]?)+$",
    r"Answer: ((\d+)+,?)+$",
    r"```python\n((.*\n)*)*```",
    r"So it is ([a-z]+)*\.",
    r"(#+)+$",
    r"([A-Z]+)+$",
    r"(So|S+o+)+$",
)


@dataclass(frozen=True)
class SlowTask(MathTask):
    """Reads answers with a pattern."""

    pattern: str = ""

    def answer(self, text: str) -> str | None:
        read = super().answer(text)
        return read if re.search(self.pattern, text) is None or read else None

    def solve(self, problem: Any, rng: Any, right: bool) -> str:
        return f"So it is x. {super().solve(problem, rng, right)}"


@dataclass(frozen=True)
class SlowWorkflow(Workflow):
    """Another parser in a later ask."""

    name: ClassVar[str] = "slow_v0"
    roles: ClassVar[Mapping[str, int]] = {"writer": 1, "judge": 1}
    asks: tuple[str, ...] = ("writer_0", "judge_0")

    def play(self, problem: Any) -> Any:
        yield Ask(self.asks[0], problem.text, self.task.answer)
        final = yield Ask(self.asks[1], problem.text, read_letters)
        return Outcome(final.strict)


def read_letters(text: str) -> str | None:
    """The letters of a reply."""
    match = re.match(r"(a+)+$", text)
    return match[0] if match else None


@pytest.fixture(autouse=True)
def _short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slow_replies, "LIMIT_S", 0.3)


@pytest.mark.parametrize("pattern", PATTERNS)
def test_a_task_whose_parser_never_ends_is_caught(pattern):
    with pytest.raises(AssertionError, match=r"check_readers: answer\(\), given .* of CPU time"):
        check_task(SlowTask(pattern=pattern))
    assert signal.getitimer(signal.ITIMER_VIRTUAL) == (0.0, 0.0)


@pytest.mark.parametrize("asks", [("writer_0", "judge_0"), ("writer_0", "writer_0")])
def test_a_workflow_whose_parser_never_ends_is_caught(asks):
    message = f"slow_v0, check_parsers: the parser read_letters of {asks[1]}, given .* of CPU time"
    with pytest.raises(AssertionError, match=message):
        check_workflow(make_workflow(SlowWorkflow, asks=asks))


def test_a_parser_that_swallows_everything_is_caught():
    def stubborn() -> None:
        try:
            re.match(r"(a+)+$", "a" * 60 + "!")
        except BaseException:
            return

    message = r"^stubborn takes more than 0\.2 s of CPU time"
    with pytest.raises(AssertionError, match=message), time_limit("stubborn", 0.2):
        stubborn()


def test_time_that_others_take_does_not_count():
    with time_limit("sleeping", 0.2):
        time.sleep(0.5)
