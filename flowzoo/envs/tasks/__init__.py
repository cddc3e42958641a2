"""Tasks by name: `make_task("math", level=2)`, `make_task("my_package.sums:SumsTask")`."""

import contextlib
import dataclasses
import inspect
from collections.abc import Sequence
from importlib import import_module

from flowzoo.envs.tasks.task import SPLITS, Problem, Split, Task, call_named, split_of
from flowzoo.errors import UsageError, unknown
from flowzoo.functions import load_class
from flowzoo.plugins import TASK_GROUP, load_plugin, plugin_named, plugins, with_packages

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
    "task_names",
    "task_options",
    "tasks_of",
]

# Entry points `module:class` by task name; the class is imported when it is made.
TASKS: dict[str, str] = {
    "math": "flowzoo.envs.tasks.math:MathTask",
    "code": "flowzoo.envs.tasks.code.task:CodeTask",
    "plan_path": "flowzoo.envs.tasks.games.plan_path:PlanPathTask",
    "search": "flowzoo.envs.tasks.search:SearchTask",
    "writing": "flowzoo.envs.tasks.writing:WritingTask",
    "sokoban": "flowzoo.envs.tasks.games.sokoban:SokobanTask",
    "sudoku": "flowzoo.envs.tasks.games.sudoku:SudokuTask",
}


def register_task(name: str, entry_point: str) -> None:
    """Register `name` for `make_task`; `entry_point` is `module:class`, a dataclass of `Task`.

    Raises:
        UsageError: the name is taken by another entry point, or the entry point has no colon.
    """
    if TASKS.get(name, entry_point) != entry_point:
        raise UsageError(f"task {name!r} is registered already, as {TASKS[name]!r}.")
    if entry_point.count(":") != 1:
        raise UsageError(f"entry point {entry_point!r}: expected 'module:class'.")
    TASKS[name] = entry_point


def task_class(name: str) -> type[Task]:
    """The class of a task: one of `TASKS`, of an installed package, or `module:Class`.

    A class may also be named as `path/to/file.py:Class`; see `flowzoo.plugins` for packages.

    Raises:
        UsageError: the name is unknown (the error has close matches), or the class cannot be loaded
            or is not a complete `Task`.
    """
    if name in TASKS:
        module, _, attribute = TASKS[name].partition(":")
        return getattr(import_module(module), attribute)
    if ":" in name:
        return _complete(f"task {name}", load_class("task", name, Task))
    plugin = plugin_named(TASK_GROUP, name)
    if plugin is None:
        others = [other.name for other in plugins(TASK_GROUP)]
        hint = "name your own class as module:Class or path/to/file.py:Class"
        raise unknown("task", name, [*TASKS, *others], hint)
    return load_plugin("task", plugin, Task, _complete)


def _complete(setting: str, value: type[Task]) -> type[Task]:
    for needed in ("name", "kind"):
        word = getattr(value, needed, None)
        # A field without a default value is not an attribute of the class.
        is_field = dataclasses.is_dataclass(value) and needed in {
            field.name for field in dataclasses.fields(value)
        }
        if not (is_field or (isinstance(word, str) and word)):
            raise UsageError(f'{setting} has no `{needed}`: set {needed} = "..." in the class.')
    return value


def task_names() -> dict[str, str]:
    """Providing package by short name of every task; "" for flowzoo's own."""
    return with_packages(TASKS, TASK_GROUP)


def tasks_of(kinds: Sequence[str]) -> list[str]:
    """Names of the tasks with an answer kind in `kinds`; all tasks if it is empty.

    Tasks of packages that cannot be loaded are left out; `flowzoo doctor` lists them.
    """
    names = []
    for name in task_names():
        with contextlib.suppress(UsageError):
            if not kinds or task_class(name).kind in kinds:
                names.append(name)
    return names


def make_task(name_or_task: str | Task | type[Task], **options: object) -> Task:
    """Make a task by name or class with options; a given task is returned unchanged.

    Raises:
        UsageError: unknown name or option; options together with a Task instance; any error of the
            task itself.
    """
    if isinstance(name_or_task, Task):
        if options:
            raise UsageError(
                f"options {sorted(options)} were given with a Task instance; set them in the "
                "instance, or give the task's name instead."
            )
        return name_or_task
    if isinstance(name_or_task, str):
        cls = task_class(name_or_task)
    elif isinstance(name_or_task, type) and issubclass(name_or_task, Task):
        cls = _complete(f"task {name_or_task.__name__}", name_or_task)
    else:
        raise UsageError(
            f"task: expected a name ({', '.join(sorted(task_names()))}), a Task or its class, "
            f"got {type(name_or_task).__name__}: {name_or_task!r}."
        )
    valid = task_options(cls)
    for option in options:
        if valid is not None and option not in valid:
            raise unknown(f"option of task {cls.name!r}", option, valid)
    try:
        inspect.signature(cls).bind(**options)
    except TypeError as error:
        raise UsageError(f"task {cls.name!r} cannot be made with these options: {error}.") from None
    return call_named(f"task {cls.name!r}: making it", lambda: cls(**options))


def task_options(cls: type[Task]) -> list[str] | None:
    """Names of the options of a task's class; None if it accepts any."""
    if dataclasses.is_dataclass(cls):
        return [option.name for option in dataclasses.fields(cls) if option.init]
    parameters = inspect.signature(cls).parameters.values()
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
        return None
    return [item.name for item in parameters if item.kind is not item.VAR_POSITIONAL]
