"""Grades and experts of problems in a file."""

import random

from flowzoo.envs.tasks.code.task import CodeTask


def grades(task: CodeTask, index: int, *answers: str) -> list[str]:
    """Statuses of answers to a problem."""
    problem = task.problem(index, "all")
    return [grade.status for grade in task.grade_batch([problem] * len(answers), list(answers))]


def expert(task: CodeTask, index: int, right: bool = True) -> str:
    """The answer of a right or a wrong expert."""
    reply = task.solve(task.problem(index, "all"), random.Random(0), right)
    return task.answer(reply) or ""
