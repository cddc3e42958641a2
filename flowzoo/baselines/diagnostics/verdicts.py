"""Verdicts on programs in a replay: each is judged once, or was judged by the run itself."""

import copy
from collections.abc import Callable, Hashable, Sequence
from typing import Any

from flowzoo.envs.script import GradeResult, Run, RunResult
from flowzoo.envs.tasks.task import Problem
from flowzoo.envs.workflow import Workflow
from flowzoo.errors import UsageError

MOST_PROGRAMS = 5_000  # runs of programs in one replay: 10 s of a sandbox of 500 a second
Answer = str | None


class Verdicts:
    """Results of programs; `workflow` is the given one with a task that asks for them here.

    Scripted experts grade candidates, too, so the task answers and not the replay.
    """

    def __init__(self, workflow: Workflow, most: int = MOST_PROGRAMS) -> None:
        self.workflow = workflow
        self.most = most
        self.graded = 0
        """Number of programs that were run for the replay."""
        self.reused = 0
        """Number of grades that were taken from saved episodes."""
        self._task = workflow.task
        self._results: dict[Hashable, Any] = {}
        answers = {"grade_batch": self._grade, "classes_batch": self._classify}
        methods = answers if workflow.task.runs_programs else {}
        if methods or workflow.runs_programs:
            task = copy.copy(workflow.task)
            for name, method in {**methods, "run_batch": self._run}.items():
                object.__setattr__(task, name, method)
            self.workflow = copy.copy(workflow)
            object.__setattr__(self.workflow, "task", task)

    def take(self, problem: Problem, program: Answer, score: float | None) -> None:
        """Record the score that a saved episode has for a graded program."""
        key = ("grade", problem.id, program)
        if None not in (program, score) and key not in self._results:
            assert score is not None
            self.reused += self._task.runs_programs
            self._results[key] = GradeResult(score, "AC" if score >= 1 else "WA")

    def _grade(self, problems: Sequence[Problem], answers: Sequence[Answer]) -> list[GradeResult]:
        keys = [("grade", problem.id, answer)
                for problem, answer in zip(problems, answers, strict=True)]  # fmt: skip
        counts = [int(answer is not None) for answer in answers]
        return self._judge(keys, counts, lambda rows: self._task.grade_batch(
            [problems[row] for row in rows], [answers[row] for row in rows]
        ))  # fmt: skip

    def _classify(
        self, problems: Sequence[Problem], groups: Sequence[Sequence[Answer]]
    ) -> list[tuple[int, ...]]:
        keys = [("classes", problem.id, tuple(group))
                for problem, group in zip(problems, groups, strict=True)]  # fmt: skip
        counts = [sum(answer is not None for answer in group) for group in groups]
        return self._judge(keys, counts, lambda rows: self._task.classes_batch(
            [problems[row] for row in rows], [groups[row] for row in rows]
        ))  # fmt: skip

    def _run(self, runs: Sequence[Run]) -> list[RunResult]:
        keys = [("run", repr(run)) for run in runs]  # tests hold lists, which cannot be hashed
        return self._judge(
            keys, [1] * len(runs), lambda rows: self._task.run_batch([runs[row] for row in rows])
        )

    def _judge(
        self,
        keys: Sequence[Hashable],
        counts: Sequence[int],
        judge: Callable[[Sequence[int]], Sequence[Any]],
    ) -> list[Any]:
        # `judge` takes the places of what is judged for the first time.
        missing = {key: row for row, key in enumerate(keys) if key not in self._results}
        self.graded += sum(counts[row] for row in missing.values())
        if self.graded > self.most:
            raise UsageError(f"a replay runs at most {self.most:,} programs, and this one more")
        if missing:
            self._results |= zip(missing, judge(list(missing.values())), strict=True)
        return [self._results[key] for key in keys]
