"""Doing the work that scripts ask for, batched over any number of episodes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from flowzoo.envs.script import Effect, EffectResult, EquivalenceClasses, Grade, Run, Search
from flowzoo.envs.tasks.task import Problem, Task, task_failure
from flowzoo.errors import FlowzooError, UsageError

PendingEffect = tuple[Problem, Effect]  # an effect and the problem it belongs to


def resolve(task: Task, jobs: Sequence[PendingEffect]) -> list[EffectResult]:
    """Results of `jobs` in their order; effects of one kind are done in one batch of the task."""
    if {type(effect) for _, effect in jobs} == {Grade}:  # the most common batch
        return _done(task, Grade, jobs, 0)
    results: list[Any] = [None] * len(jobs)
    kinds: dict[tuple[type, int], list[int]] = {}
    for position, (_, effect) in enumerate(jobs):
        width = effect.k if isinstance(effect, Search) else 0
        kinds.setdefault((type(effect), width), []).append(position)
    for (kind, width), places in kinds.items():
        batch = [jobs[position] for position in places]
        batch_results = _done(task, kind, batch, width)
        for position, result in zip(places, batch_results, strict=True):
            results[position] = result
    return results


def _done(task: Task, kind: type, jobs: Sequence[PendingEffect], width: int) -> list[Any]:
    try:
        results = list(_BATCHES[kind](task, jobs, width))
    except (FlowzooError, OSError):  # an OSError is the system's
        raise
    except Exception as error:
        raise task_failure(task.name, _NAMES[kind], error) from error
    if len(results) != len(jobs):
        raise UsageError(
            f"{_NAMES[kind]} of task {task.name!r} must return one result per {kind.__name__}: "
            f"got {len(results)} for {len(jobs)}"
        )
    return results


def _grade(task: Task, jobs: Sequence[PendingEffect], width: int) -> Sequence[EffectResult]:
    answers = [effect.answer for _, effect in jobs]  # type: ignore[union-attr]
    return task.grade_batch([problem for problem, _ in jobs], answers)


def _classes(task: Task, jobs: Sequence[PendingEffect], width: int) -> Sequence[EffectResult]:
    groups = [effect.answers for _, effect in jobs if isinstance(effect, EquivalenceClasses)]
    return task.classes_batch([problem for problem, _ in jobs], groups)


def _run(task: Task, jobs: Sequence[PendingEffect], width: int) -> Sequence[EffectResult]:
    return task.run_batch([effect for _, effect in jobs if isinstance(effect, Run)])


def _search(task: Task, jobs: Sequence[PendingEffect], width: int) -> Sequence[EffectResult]:
    queries = [effect.query for _, effect in jobs if isinstance(effect, Search)]
    return task.search_batch([problem for problem, _ in jobs], queries, width)


_BATCHES = {Grade: _grade, EquivalenceClasses: _classes, Run: _run, Search: _search}
_NAMES = {
    Grade: "grade_batch",
    EquivalenceClasses: "classes_batch",
    Run: "run_batch",
    Search: "search_batch",
}
