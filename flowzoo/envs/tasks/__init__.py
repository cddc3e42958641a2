"""Tasks by name: `make_task("math", level=2)`."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from importlib import import_module
from typing import Any

from flowzoo.envs.tasks.task import SPLITS, Problem, Split, Task, split_of
from flowzoo.errors import UsageError, unknown

__all__ = [
    "SPLITS",
    "TASKS",
    "Problem",
    "Split",
    "Task",
    "make_task",
    "register_task",
    "split_of",
    "task_class",
    "tasks_of",
]

TASKS: dict[str, str] = {
    "math": "flowzoo.envs.tasks.math.task:MathTask",
    "code": "flowzoo.envs.tasks.code.task:CodeTask",
    "plan_path": "flowzoo.envs.tasks.games.plan_path:PlanPathTask",
    "search": "flowzoo.envs.tasks.search.task:SearchTask",
    "writing": "flowzoo.envs.tasks.writing.task:WritingTask",
    "sokoban": "flowzoo.envs.tasks.games.sokoban:SokobanTask",
    "sudoku": "flowzoo.envs.tasks.games.sudoku:SudokuTask",
}
"""Entry points `module:class` by task name; the class is imported when it is made."""


def register_task(name: str, entry_point: str) -> None:
    """Make `name` known to `make_task`; `entry_point` is `module:class`, a dataclass of `Task`.

    Raises:
        UsageError: the name is taken by another entry point, or the entry point has no colon.
    """
    if TASKS.get(name, entry_point) != entry_point:
        raise UsageError(f"task {name!r} is registered already, as {TASKS[name]!r}.")
    if entry_point.count(":") != 1:
        raise UsageError(f"entry point {entry_point!r}: expected 'module:class'.")
    TASKS[name] = entry_point


def task_class(name: str) -> type[Task]:
    """The class registered as `name`.

    Raises:
        UsageError: unknown name, with the near matches.
    """
    if name not in TASKS:
        raise unknown("task", name, TASKS)
    module, _, attribute = TASKS[name].partition(":")
    return getattr(import_module(module), attribute)


def tasks_of(kinds: Sequence[str]) -> list[str]:
    """Names of the tasks whose answers are of one of `kinds`; of any kind if it is empty."""
    return [name for name in TASKS if not kinds or task_class(name).kind in kinds]


def make_task(name_or_task: str | Task, **options: Any) -> Task:
    """A task by name with its options, or the given task as it is.

    Raises:
        UsageError: unknown name or option; options together with a task that is made already;
            whatever the task itself finds wrong.
    """
    if isinstance(name_or_task, Task):
        if options:
            raise UsageError(
                f"options {sorted(options)} were given with a task that is made already; "
                "give them when making it, or give its name instead."
            )
        return name_or_task
    if not isinstance(name_or_task, str):
        raise UsageError(
            f"task: expected a name ({', '.join(sorted(TASKS))}) or a Task, "
            f"got {type(name_or_task).__name__}: {name_or_task!r}."
        )
    made = task_class(name_or_task)
    if dataclasses.is_dataclass(made):
        valid = [option.name for option in dataclasses.fields(made) if option.init]
        for option in options:
            if option not in valid:
                raise unknown(f"option of task {name_or_task!r}", option, valid)
    return made(**options)
