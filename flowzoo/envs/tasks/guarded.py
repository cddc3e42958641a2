"""Questions to a task that may be somebody else's: what it raises names it."""

from __future__ import annotations

import os
import traceback

from flowzoo.envs.tasks.task import Problem, Task
from flowzoo.errors import FlowzooError, TaskError


def get_problem(task: Task, index: int, split: str = "train") -> Problem:
    """Problem `index` of `split`, certainly a `Problem`.

    Raises:
        UsageError: unknown split, or an index outside it.
        TaskError: the task raised something else, or returned something else.
    """
    try:
        found = task.problem(index, split)
    except (FlowzooError, OSError):
        raise
    except Exception as error:
        raise task_failure(task.name, f"problem({index}, {split!r})", error) from error
    if not isinstance(found, Problem):
        raise TaskError(
            f"task {task.name!r}: problem() must return a flowzoo.envs.Problem, got "
            f"{type(found).__name__}"
        )
    return found


def get_size(task: Task, split: str) -> int | None:
    """`task.size(split)`, certainly a number of at least 0, or None.

    Raises:
        UsageError: unknown split.
        TaskError: the task raised something else, or returned something else.
    """
    try:
        found = task.size(split)
    except (FlowzooError, OSError):
        raise
    except Exception as error:
        raise task_failure(task.name, f"size({split!r})", error) from error
    if found is not None and (not isinstance(found, int) or found < 0):
        raise TaskError(
            f"task {task.name!r}: size({split!r}) must return a whole number or None (endless), "
            f"got {found!r}"
        )
    return found


def task_failure(name: str, doing: str, error: Exception) -> TaskError:
    """The error to raise where a task's own code raised `error`, naming its last line."""
    frames = traceback.extract_tb(error.__traceback__)
    where = f" ({os.path.basename(frames[-1].filename)}, line {frames[-1].lineno})"
    said = " ".join(str(error).split())
    what = f"{type(error).__name__}: {said}" if said else type(error).__name__
    return TaskError(f"task {name!r}: {doing} raised {what}{where if frames else ''}")
