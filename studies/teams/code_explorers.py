"""Coders who write at the same time; the public tests choose."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from flowzoo.envs.script import Ask, Grade, Outcome, Script
from flowzoo.envs.settings import check_whole
from flowzoo.envs.tasks.task import Problem
from flowzoo.envs.workflow import Workflow


@dataclass(frozen=True)
class CodeExplorers(Workflow):
    """Several programs; the first that passes all public tests is the answer."""

    name: ClassVar[str] = "code_explorers_v0"
    roles: ClassVar[Mapping[str, int]] = {"coder": 3}
    kinds: ClassVar[tuple[str, ...]] = ("code",)
    default_task: ClassVar[str] = "code"
    runs_programs: ClassVar[bool] = True
    simultaneous: ClassVar[bool] = True

    explorers: int = 3

    def __post_init__(self) -> None:
        super().__post_init__()
        check_whole("explorers", self.explorers, 1, 16)

    def role_counts(self) -> Mapping[str, int]:
        """As many coders as there are programs."""
        return {"coder": self.explorers}

    def play(self, problem: Problem) -> Script:
        """One phase of programs, their tests, and the choice among them."""
        task = self.task
        programs = yield [
            Ask(f"coder_{i}", task.prompt(problem), task.answer, task.answer_lenient)
            for i in range(self.explorers)
        ]
        grades = yield [Grade(self.read(program), of=program) for program in programs]
        passed: list[bool] = []
        for program in programs:
            answer = self.read(program)
            ran = None if answer is None else (yield task.trial(problem, answer))
            passed.append(ran is not None and ran.passed == len(ran.cases))
        index = passed.index(True) if any(passed) else 0
        needed = index + 1 if any(passed) else len(programs)
        return Outcome(self.read(programs[index]), grades[index].score, {"needed": needed})
