"""`flowzoo list`: the workflows, their roles and presets, and the table of the tasks they take."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from flowzoo.envs.tasks import TASKS, task_class, task_names
from flowzoo.errors import UsageError
from flowzoo.plugins import TASK_GROUP, WORKFLOW_GROUP, plugins

if TYPE_CHECKING:
    from rich.table import Table


@dataclass(frozen=True, slots=True)
class Options:
    """Options of `flowzoo list`; what it does stands in `flowzoo.commands.line`."""

    json: bool = False
    """Print one JSON object per workflow instead of a table."""


def run(options: Options) -> int:
    """Print every workflow and the table of pairs; the exit status is 0."""
    entries = catalogue()
    for fault in broken_plugins():
        print(f"left out: {fault}", file=sys.stderr)
    if options.json:
        for entry in entries:
            print(json.dumps(entry))
        return 0
    from rich.console import Console

    console = Console()
    console.print(described(entries))
    console.print(pairs(entries))
    for task, package in task_names().items():
        if package:
            console.print(f"task {task}: of the package {package}", highlight=False)
    return 0


def described(entries: list[dict[str, Any]]) -> Table:
    """The workflows with what they are, their roles and their presets."""
    from rich.table import Table
    from rich.text import Text

    table = Table.grid(padding=(0, 2))
    table.add_column(no_wrap=True, style="bold")
    for entry in entries:
        roles = ", ".join(
            role if count == 1 else f"{role} ×{count}" for role, count in entry["roles"].items()
        )
        text = Text(entry["summary"])
        rows = [("roles", roles), ("presets", ", ".join(entry["presets"]))]
        if entry["package"]:
            rows.append(("package", entry["package"]))
        for name, words in rows:
            text.append(f"\n{name:9s}{words}", "dim")
        table.add_row(entry["name"], text)
    return table


def pairs(entries: list[dict[str, Any]]) -> Table:
    """Which workflow takes which task; D marks the task that it takes if none is named."""
    from rich.box import SIMPLE
    from rich.table import Table

    tasks = list(dict.fromkeys(task for entry in entries for task in entry["tasks"]))
    table = Table(box=SIMPLE, padding=0, title="Tasks (D: if none is named)", title_justify="left")
    table.add_column("", no_wrap=True, style="bold")
    for task in tasks:
        table.add_column(task, justify="center", no_wrap=True)
    for entry in entries:
        marks = dict.fromkeys(entry["tasks"], "x") | {entry["default_task"]: "D"}
        table.add_row(entry["name"], *(marks.get(task, "") for task in tasks))
    return table


def catalogue() -> list[dict[str, Any]]:
    """One dict per workflow that can be loaded: name, roles (role -> agents), tasks, default_task,
    presets, summary, and the package that brings it (None: flowzoo itself).

    A workflow takes a task when it understands the task's kind of answer.
    """
    from flowzoo.envs.api.registry import workflow_class, workflow_names

    kinds = {name: found.kind for name, found in _loaded(task_names(), task_class).items()}
    packages, entries = workflow_names(), list[dict[str, Any]]()
    for name, found in _loaded(packages, workflow_class).items():
        summary = (found.__doc__ or "").strip().partition("\n")[0]
        tasks = [task for task, kind in kinds.items() if found.takes(kind)]
        entries.append(
            {
                "name": name,
                "roles": dict(getattr(found, "roles", {})),
                "tasks": tasks,
                "default_task": found.default_task,
                "presets": list(found.presets),
                "summary": summary,
                "package": packages[name] or None,
            }
        )
    return entries


def _loaded(names: Iterable[str], load: Callable[[str], Any]) -> dict[str, Any]:
    """What can be loaded of it, by name."""
    found = {}
    for name in names:
        with contextlib.suppress(UsageError):
            found[name] = load(name)
    return found


def broken_plugins() -> list[str]:
    """What is wrong with workflows and tasks of installed packages; empty if nothing is."""
    from flowzoo.envs.api.registry import WORKFLOWS, workflow_class

    faults = []
    for group, own, load in (
        (WORKFLOW_GROUP, WORKFLOWS, workflow_class), (TASK_GROUP, TASKS, task_class)
    ):  # fmt: skip
        for plugin in plugins(group):
            if plugin.name in own:
                faults.append(
                    f"{plugin.package} offers {plugin.name!r} in {group}, which is flowzoo's own: "
                    f"name it as {plugin.target}"
                )
                continue
            try:
                load(plugin.name)
            except UsageError as error:
                faults.append(str(error))
    return list(dict.fromkeys(faults))
