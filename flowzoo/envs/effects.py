"""Doing the work that scripts ask for, batched over any number of episodes."""

from __future__ import annotations

from collections.abc import Sequence

from flowzoo.envs.script import Classes, Effect, EffectResult, Grade
from flowzoo.envs.tasks.task import Problem, Task


def resolve(task: Task, jobs: Sequence[tuple[Problem, Effect]]) -> list[EffectResult]:
    """Results of `jobs` in their order; all answers are graded in one batch of the task."""
    grades = [
        (place, problem, effect.answer)
        for place, (problem, effect) in enumerate(jobs)
        if isinstance(effect, Grade)
    ]
    results: dict[int, EffectResult] = {}
    if grades:
        graded = task.grade_batch([job[1] for job in grades], [job[2] for job in grades])
        results = {place: grade for (place, _, _), grade in zip(grades, graded, strict=True)}
    for place, (_, effect) in enumerate(jobs):
        if isinstance(effect, Classes):
            results[place] = task.classes(effect.answers)
    return [results[place] for place in range(len(jobs))]
