r"""# Coder and tester

A coder writes a program, a tester writes test cases; the tests are run on the program, and both see
the mismatches, until the program passes. Source: AT-GRPO (programming workflow).

| | |
|---|---|
| Creation | `coder_tester_v0.env(task="code")` |
| Agents | `coder_0`, `tester_0` |
| Observation | `{"messages": [...]}`: the problem; from the second turn also the program, tests and mismatches of the previous turn |
| Action | coder: a program in a `python` block; tester: a JSON list of test cases |
| Reward | fraction of hidden tests that the last program passes, and per call 0.2 form + 0.8 own job (`credit="mix"`) |
| End | when the program passes all of the tester's tests, or after `max_turns` turns |

A test case is `{"input": [arguments], "output": value}` for a function and `{"input": text,
"output": text}` for a program that reads stdin; at most 8 of them, in JSON or as Python's literals.

## Arguments
| name | default | meaning |
|---|---|---|
| `max_turns` | 4 | turns, of two calls each |
| `credit` | `"mix"` | alpha * team + local, as published |
| `preset` | `"strict"` | `"paper"` also reads programs without a closed block |

The agents stop when program and tests agree; the hidden tests are also run, but no prompt depends
on their results. Role scores: coder, the fraction of hidden tests passed, with form 1/2 for a
program that compiles and 1/2 for one that ends without an error on all of them; tester, the
fraction of its tests that the reference solution reproduces. A problem without a reference has no
role score for the tester; local credit then raises an error and does not use 0.

Facts in `info` at the end: `turns`, `agreed`, `solved` (all hidden tests pass), `tests` (cases that
could be read), `valid_tests` (fraction that the reference reproduces, if there is one), `fooled`
(agreed, but not solved).

## Version history
* v0: first version.
"""  # noqa: E501 - rows of tables

import json
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, NamedTuple

from flowzoo.envs.readers.cases import MOST_CASES, read_tests
from flowzoo.envs.script import (
    Ask,
    InterimScore,
    Message,
    Outcome,
    Reply,
    RoleScore,
    Run,
    RunResult,
    Script,
    ScriptPart,
)
from flowzoo.envs.settings import check_whole
from flowzoo.envs.tasks.code.task import CodeTask, fence, grading_tests
from flowzoo.envs.tasks.task import Problem, Task
from flowzoo.envs.workflow import Credit, CreditRule, Workflow
from flowzoo.reward.code.score import extract_code
from flowzoo.sandbox.program import CallTest, StdinTest, Test

SHOWN = 200  # characters of a value that a mismatch shows


def show_case(test: Test) -> str:
    """A test case in one line, as JSON."""
    if isinstance(test, StdinTest):
        return json.dumps({"input": test.stdin, "output": test.expected})
    assert isinstance(test, CallTest)
    return json.dumps({"input": list(test.args), "output": test.expected})


def mismatches(tests: Sequence[Test], ran: RunResult) -> list[str]:
    """A line per failed test: the case and the output."""
    lines = []
    for test, case in zip(tests, ran.cases, strict=False):
        if case.status != "AC":
            came = case.output if case.status == "WA" else f"{case.status} {case.detail}".strip()
            lines.append(f"{show_case(test)[:SHOWN]}: got {' '.join(came.split())[:SHOWN]}")
    return lines


class Round(NamedTuple):
    """One turn: program, tests and results (None: nothing could be run)."""

    program: str | None
    tests: tuple[Test, ...] | None
    ran: RunResult | None
    passed: float  # fraction of hidden tests that the program passes
    reproduced: int  # number of tests that the reference reproduces

    @property
    def agreed(self) -> bool:
        return self.ran is not None and self.ran.status == "AC"


@dataclass(frozen=True)
class CoderTester(Workflow):
    """A program and its tests, until they match."""

    name: ClassVar[str] = "coder_tester_v0"
    roles: ClassVar[Mapping[str, int]] = {"coder": 1, "tester": 1}
    presets: ClassVar[tuple[str, ...]] = ("strict", "paper")
    kinds: ClassVar[tuple[str, ...]] = ("code",)
    runs_programs: ClassVar[bool] = True
    default_task: ClassVar[str] = "code"
    task_class: ClassVar[type[Task]] = CodeTask
    prompts: ClassVar[Mapping[str, str]] = {
        "tester": "{problem}\n\nDo not solve this: write up to 8 test cases for it as a JSON list, "
        "each {form}.",
        "call": '{"input": [arguments], "output": value}',
        "stdin": '{"input": "text", "output": "text"}',
        "board": "{prompt}\n\nThe program so far:\n{program}\n\nThe tests so far:\n{tests}\n\n"
        "{report}\nProgram or tests may be wrong.",
        "unread": "(could not be read)",
    }

    credit: Credit | CreditRule = "mix"
    max_turns: int = 4

    def __post_init__(self) -> None:
        super().__post_init__()
        check_whole("max_turns", self.max_turns, 1)

    def play(self, problem: Problem) -> Script:
        task, entry = self.task, problem.meta["entry"]
        rounds: list[Round] = []
        form = self.prompts["stdin" if entry is None else "call"]
        request = self.prompts["tester"].format(problem=problem.text, form=form)
        read_lenient: Callable[[str], object] = partial(extract_code, reading="lenient")
        while len(rounds) < self.max_turns and not (rounds and rounds[-1].agreed):
            code, test = yield [
                Ask("coder_0", self.shown(task.prompt(problem), rounds), task.answer, read_lenient),
                Ask("tester_0", self.shown(request, rounds), partial(read_tests, entry=entry)),
            ]
            rounds.append((yield from self.judged(problem, code, test)))
        last = rounds[-1]
        written = sum(len(done.tests or ()) for done in rounds)
        facts: dict[str, object] = {
            "turns": len(rounds),
            "agreed": last.agreed,
            "solved": last.passed == 1.0,
            "fooled": last.agreed and last.passed < 1.0,
            "tests": written,
        }
        if problem.meta.get("solution"):
            reproduced = sum(done.reproduced for done in rounds)
            facts["valid_tests"] = reproduced / written if written else 0.0
        return Outcome(last.program, last.passed, facts)

    def run_of(self, problem: Problem, program: str, tests: tuple[Test, ...]) -> Run:
        return self.task.trial(problem, program)._replace(tests=tests)

    def judged(self, problem: Problem, code: Reply, test: Reply) -> ScriptPart[Round]:
        """Run a turn's program on its tests.

        For scores only, run it on the hidden tests and the reference on the turn's tests.
        """
        program, tests = self.read(code), test.strict
        reference = problem.meta.get("solution")
        jobs: dict[str, Run] = {}
        if program is not None:
            jobs["hidden"] = self.run_of(problem, program, grading_tests(problem))
            if tests is not None:
                jobs["tests"] = self.run_of(problem, program, tests)
        if reference and tests is not None:
            jobs["reference"] = self.run_of(problem, reference, tests)
        results = (yield list(jobs.values())) if jobs else ()
        ran: dict[str, RunResult] = dict(zip(jobs, results, strict=True))
        hidden, checked = ran.get("hidden"), ran.get("reference")
        passed = share(hidden)
        yield RoleScore(code, passed, form=code_form(hidden))
        if reference:
            yield RoleScore(test, share(checked))
        yield InterimScore(passed)
        return Round(program, tests, ran.get("tests"), passed, checked.passed if checked else 0)

    def shown(self, prompt: str, rounds: Sequence[Round]) -> str:
        """A prompt with the results of the previous turn."""
        if not rounds:
            return prompt
        last, unread = rounds[-1], self.prompts["unread"]
        lines = mismatches(last.tests, last.ran) if last.tests and last.ran else []
        report = "Mismatches:\n" + "\n".join(lines) if lines else "Nothing could be run."
        return self.prompts["board"].format(
            prompt=prompt,
            program=unread if last.program is None else fence(last.program),
            tests="\n".join(map(show_case, last.tests)) if last.tests else unread,
            report=report,
        )

    def expert(
        self, role: str, messages: list[Message], problem: Problem, rng: random.Random, right: bool
    ) -> str:
        """The coder solves; the tester copies the public tests, with other outputs if wrong."""
        if role == "coder":
            return self.task.solve(problem, rng, right)
        tests = [t for t in problem.meta["public"] if isinstance(t, StdinTest | CallTest)]
        cases = [json.loads(show_case(test)) for test in tests[:MOST_CASES]]
        if not right:
            cases = [{**case, "output": _spoil(case["output"])} for case in cases]
        return f"```json\n{json.dumps(cases)}\n```"

    def samples(self) -> tuple[str, ...]:
        return (
            *self.task.samples(),
            '[{"input": [5], "output": 32}]',
            '```json\n[{"input": [2], "output": 20}, {"input": [0], "output": 1}]\n```',
            '[{"input": "1 2", "output": "3"}]',
        )


def share(ran: RunResult | None) -> float:
    return ran.passed / len(ran.cases) if ran is not None and ran.cases else 0.0


def code_form(ran: RunResult | None) -> float:
    """Half for a program that compiles, half for one that ends without an error on every test."""
    if ran is None or ran.status == "CE":
        return 0.0
    return 1.0 if all(case.status in ("AC", "WA") for case in ran.cases) else 0.5


def _spoil(value: object) -> Any:
    if isinstance(value, bool) or value is None:
        return not value
    if isinstance(value, int | float):
        return value + 1
    return [*value, 0] if isinstance(value, list) else f"{value}x" if isinstance(value, str) else 0
