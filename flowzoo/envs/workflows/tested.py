"""Workflows that start again when their program fails public tests."""

from dataclasses import dataclass, field

from flowzoo.envs.script import Outcome, RunResult, Script
from flowzoo.envs.settings import check_whole
from flowzoo.envs.tasks.task import Problem
from flowzoo.envs.workflow import LATER, Workflow
from flowzoo.errors import UsageError
from flowzoo.sandbox.program import CheckTest, StdinTest, Test

SHOWN_TESTS = 3
"""Failing tests that a report shows."""
SHOWN = 300  # characters of a test, and of its output, that a report shows


def failure_report(tests: tuple[Test, ...], result: RunResult | None, entry: str | None) -> str:
    """The first failing tests with the outputs; None: there was no program to run."""
    if result is None:
        return "The last reply had no program to run."
    lines = [f"The last program passes {result.passed} of {len(result.cases)} public tests."]
    for number, (test, case) in enumerate(zip(tests, result.cases, strict=False), start=1):
        if case.status != "AC" and len(lines) <= SHOWN_TESTS:
            failure = f"{case.status} {case.detail}".strip()
            got = case.output if case.status == "WA" else failure
            lines.append(f"Test {number}: {show_test(test, entry):.{SHOWN}}: got {got:.{SHOWN}}")
    return "\n".join(lines)


def show_test(test: Test, entry: str | None) -> str:
    """A test and its expected result."""
    if isinstance(test, CheckTest):
        return test.code
    if isinstance(test, StdinTest):
        return f"input {test.stdin!r}, expected {test.expected!r}"
    named = (f"{name}={value!r}" for name, value in test.kwargs.items())
    return f"{entry}({', '.join([*map(repr, test.args), *named])}), expected {test.expected!r}"


@dataclass(frozen=True)
class TestedWorkflow(Workflow):
    """A workflow whose solvers get a prompt, with the failures of the round before if any."""

    test_rounds: int | None = field(default=None, kw_only=True, metadata=LATER)
    """Most rounds (code): a program that fails public tests starts the workflow again, with the
    first three failures before the solvers' prompt. None: one round, and no test is run."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.test_rounds is None:
            return
        check_whole("test_rounds", self.test_rounds, 1)
        if self.task.kind != "code":
            raise UsageError(
                f"test_rounds={self.test_rounds} runs programs, but the answers of task "
                f"{self.task.name!r} are not programs. Use task='code', or leave it out."
            )

    def play(self, problem: Problem) -> Script:
        prompt = self.task.prompt(problem)
        outcome: Outcome = yield from self.attempt(problem, prompt)
        if self.test_rounds is None:
            return outcome
        rounds = 1
        while rounds < self.test_rounds:
            run = self.task.trial(problem, outcome.answer or "")
            result = (yield run) if outcome.answer is not None and run.tests else None
            if not run.tests or (result is not None and result.status == "AC"):
                break
            rounds += 1
            report = failure_report(run.tests, result, run.entry)
            outcome = yield from self.attempt(problem, f"{report}\n\n{prompt}")
        return outcome._replace(facts={**outcome.facts, "test_rounds": rounds})

    def attempt(self, problem: Problem, prompt: str) -> Script:
        """The script of one round, whose solvers get `prompt`."""
        raise NotImplementedError(f"{type(self).__name__} must define attempt()")
