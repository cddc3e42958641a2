"""A lone coder who sees the results of the public tests and writes again."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from flowzoo.envs.script import Ask, Grade, InterimScore, Outcome, Script
from flowzoo.envs.settings import check_whole
from flowzoo.envs.tasks.task import Problem
from flowzoo.envs.workflow import Workflow
from flowzoo.envs.workflows.eval_opt import EvalOpt, assistant, report, user


@dataclass(frozen=True)
class CoderAlone(Workflow):
    """Write, run the public tests, and write again; the chat is that of `eval_opt`."""

    name: ClassVar[str] = "coder_alone_v0"
    roles: ClassVar[Mapping[str, int]] = {"coder": 1}
    kinds: ClassVar[tuple[str, ...]] = ("code",)
    default_task: ClassVar[str] = "code"
    runs_programs: ClassVar[bool] = True

    max_turns: int = 3

    def __post_init__(self) -> None:
        super().__post_init__()
        check_whole("max_turns", self.max_turns, 1)

    def play(self, problem: Problem) -> Script:
        """Ask until a program passes or the turns are spent."""
        task, question = self.task, user(self.task.prompt(problem))
        messages = [question]
        turns = 0
        while True:
            turns += 1
            program = yield Ask("coder_0", messages, task.answer, task.answer_lenient)
            answer = self.read(program)
            grade = yield Grade(answer, of=program)
            yield InterimScore(grade.score)
            ran = None if answer is None else (yield task.trial(problem, answer))
            passed = ran is not None and ran.passed == len(ran.cases)
            if passed or turns == self.max_turns:
                break
            again = EvalOpt.prompts["improve/code"].format(critique=report(ran))
            messages = [question, assistant(program.text.strip()), user(again)]
        return Outcome(answer, grade.score, {"turns": turns, "passed": passed})
