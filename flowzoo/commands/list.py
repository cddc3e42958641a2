"""`flowzoo list`: the workflows, their roles and presets, and the table of the tasks they take."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.table import Table


@dataclass(frozen=True, slots=True)
class Options:
    """List the workflows with their roles, tasks and presets."""

    json: bool = False
    """Print one JSON object per workflow instead of a table."""


def run(options: Options) -> int:
    """Print every registered workflow and the table of pairs; the exit status is 0."""
    entries = catalogue()
    if options.json:
        for entry in entries:
            print(json.dumps(entry))
        return 0
    from rich.console import Console

    console = Console()
    console.print(described(entries))
    console.print(pairs(entries))
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
        for name, words in (("roles", roles), ("presets", ", ".join(entry["presets"]))):
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
    """One dict per workflow: name, roles (role -> agents), tasks, default_task, presets, summary.

    A workflow takes a task when it understands the task's kind of answer.
    """
    from flowzoo.envs.api.registry import WORKFLOWS, workflow_class
    from flowzoo.envs.tasks import TASKS, task_class

    kinds = {name: task_class(name).kind for name in TASKS}
    entries: list[dict[str, Any]] = []
    for name in WORKFLOWS:
        found = workflow_class(name)
        summary = (found.__doc__ or "").strip().partition("\n")[0]
        tasks = [task for task, kind in kinds.items() if not found.kinds or kind in found.kinds]
        entries.append(
            {
                "name": name,
                "roles": dict(found.roles),
                "tasks": tasks,
                "default_task": found.default_task,
                "presets": list(found.presets),
                "summary": summary,
            }
        )
    return entries
