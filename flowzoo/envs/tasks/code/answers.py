"""Programs as answers: how a reply gives one, what grades it, and what it was seen to do."""

from __future__ import annotations

from flowzoo.envs.script import Ran
from flowzoo.envs.tasks.task import Problem
from flowzoo.sandbox.program import Test


def fenced(source: str) -> str:
    """A program as a reply gives it."""
    return f"```python\n{source}\n```"


def grading_tests(problem: Problem) -> tuple[Test, ...]:
    """The hidden tests; before them the public ones, where the file's layout says they count."""
    shown = problem.meta["public"] if problem.meta.get("public_grade") else ()
    return (*shown, *problem.meta["hidden"])


def observed_outputs(ran: Ran, entry: str | None) -> tuple[str, ...]:
    """What a program did on each input: its output, or else the status.

    Tests that are code give no output: of those only the status is known.
    """
    found = []
    for case in ran.cases:
        is_output = case.status in ("AC", "WA") and case.output
        output = " ".join(case.output.split()) if entry is None else case.output
        found.append(f"output {output}" if is_output else case.status)
    return tuple(found)


def lines_of(answer: str) -> tuple[str, ...]:
    """The lines of a program, without blank ones and white space at their ends."""
    return tuple(line.rstrip() for line in answer.splitlines() if line.strip())
