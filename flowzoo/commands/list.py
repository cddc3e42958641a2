"""`flowzoo list`: workflows with their roles and presets; tasks, policies, datasets, packages."""

import contextlib
import json
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from importlib import metadata
from typing import TypedDict, TypeVar, get_args, get_type_hints

from rich.console import Console
from rich.table import Table
from rich.text import Text

from flowzoo.agents.engines import ENGINES, find_engine
from flowzoo.agents.specs import policy_forms
from flowzoo.envs.api.registry import WORKFLOWS, workflow_class, workflow_names
from flowzoo.envs.settings import read_settings
from flowzoo.envs.tasks import SPLITS, TASKS, make_task, task_class, task_names
from flowzoo.errors import UsageError
from flowzoo.plugins import (
    ENGINE_GROUP,
    SANDBOX_GROUP,
    TASK_GROUP,
    WORKFLOW_GROUP,
    packages,
    plugins,
)
from flowzoo.sandbox.tier import BACKENDS, backend_spec

C = TypeVar("C")
Row = tuple[str, str, dict[str, list[str]]]
"""Name, summary, and lists of facts by label."""

DATA = {
    "(nothing)": "Generated problems without limit.",
    "FILE": "A file of problems: .jsonl, .json, .csv, .tsv or .parquet.",
    "FOLDER": "A folder in the layout of the Hugging Face Hub.",
    "ORG/NAME": "A dataset of the Hub, e.g. openai/gsm8k, ORG/NAME:CONFIG@SPLIT.",
}
"""Forms of --data; see docs/training.md."""


@dataclass(frozen=True, slots=True)
class Options:
    """Arguments of `flowzoo list`."""

    json: bool = False
    """Print one JSON object per workflow, or for the data, instead of tables."""
    data: str | None = None
    """Data file, folder or dataset id to describe: its problems and reference answers."""
    task: str = "math"
    """Task that reads the data."""
    options: tuple[str, ...] = ()
    """Settings of the task, as NAME=VALUE, e.g. layout=dapo."""


def run(options: Options) -> int:
    """Print every workflow and the table of pairs, or the data; the exit status is 0."""
    if options.data is not None:
        return print_data(options)
    entries = catalog()
    for fault in broken_plugins():
        print(f"left out: {fault}", file=sys.stderr)
    if options.json:
        for entry in entries:
            print(json.dumps(entry))
        return 0
    console = Console()
    sections: dict[str, list[Row]] = {
        "Workflows": workflow_rows(entries),
        "Tasks (--task)": task_rows(),
        "Policies (--policy)": [(*form, {}) for form in policy_forms().items()],
        "Data (--data; in training --options data=)": [(*form, {}) for form in DATA.items()],
        "Packages with workflows, tasks, engines or sandboxes": package_rows(),
    }
    for title, rows in sections.items():
        if rows:
            console.print(f"\n[bold]{title}[/bold]", highlight=False)
            console.print(describe_rows(rows))
    return 0


def print_data(options: Options) -> int:
    """Print the number of problems by split, the sorts of their answers and remarkable rows."""
    task = make_task(options.task, data=options.data, **read_settings(options.options))
    sizes = {split: task.size(split) for split in SPLITS}
    golds = task.golds()
    if options.json:
        described = None if golds is None else golds.to_json()
        print(json.dumps({"data": options.data, "problems": sizes, "golds": described}))
        return 0
    total = sizes.pop("all")
    splits = ", ".join(f"{split} {size:,}" for split, size in sizes.items())
    print(f"{options.data}: {total:,} problems of task {task.name} ({splits})")
    print(*([] if golds is None else golds.lines()), sep="\n")
    return 0


def describe_rows(rows: list[Row]) -> Table:
    """A table of names and summaries without broken words at usual terminal widths."""
    table = Table.grid(padding=(0, 2))
    table.add_column(no_wrap=True, style="bold")
    table.add_column()
    for name, summary, facts in rows:
        inner = Table.grid(padding=(0, 2))
        inner.add_column(no_wrap=True, style="dim")
        inner.add_column(style="dim")
        for label, texts in facts.items():
            if texts:
                inner.add_row(label, ", ".join(texts))
        table.add_row(name, Text(summary))
        if inner.rows:
            table.add_row("", inner)
    return table


def workflow_rows(entries: "Sequence[CatalogEntry]") -> list[Row]:
    """Table of the workflows; the first task of each is the default."""
    rows: list[Row] = []
    for entry in entries:
        counts, first, package = entry["roles"].items(), entry["default_task"], entry["package"]
        facts = {
            "roles": [role if count == 1 else f"{role} ×{count}" for role, count in counts],
            "tasks": [f"{first} (default)", *(name for name in entry["tasks"] if name != first)],
            "presets": entry["presets"],
            "package": [package] if package else [],
        }
        rows.append((entry["name"], entry["summary"], facts))
    return rows


def task_rows() -> list[Row]:
    """Table of the loadable tasks, with their named layouts of data files."""
    rows, packages = list[Row](), task_names()
    for name, task in _load(packages, task_class).items():
        layouts = get_args(get_type_hints(task).get("layout"))
        facts = {
            "layouts": [str(layout) for layout in layouts if layout != "auto"],
            "package": [packages[name]] if packages[name] else [],
        }
        rows.append((name, first_line(task), facts))
    return rows


def package_rows() -> list[Row]:
    """Table of installed packages that extend flowzoo: versions, summaries, entry points."""
    rows: list[Row] = []
    for package, offers in packages().items():
        try:
            summary = metadata.metadata(package.partition(" ")[0])["Summary"] or ""
        except metadata.PackageNotFoundError:  # an entry point without a distribution
            summary = ""
        rows.append((package, summary, {"offers": offers}))
    return rows


class CatalogEntry(TypedDict):
    """Facts of a workflow; `package` provides it (None: flowzoo itself)."""

    name: str
    roles: dict[str, int]
    tasks: list[str]
    default_task: str
    presets: list[str]
    summary: str
    package: str | None


def catalog() -> list[CatalogEntry]:
    """Facts of each loadable workflow."""
    # A workflow supports a task if it supports the task's kind of answer.
    kinds = {name: task.kind for name, task in _load(task_names(), task_class).items()}
    packages, entries = workflow_names(), list[CatalogEntry]()
    for name, workflow in _load(packages, workflow_class).items():
        entry: CatalogEntry = {
            "name": name,
            "roles": dict(getattr(workflow, "roles", {})),
            "tasks": [task for task, kind in kinds.items() if workflow.takes(kind)],
            "default_task": workflow.default_task,
            "presets": list(workflow.presets),
            "summary": first_line(workflow),
            "package": packages[name] or None,
        }
        entries.append(entry)
    return entries


def first_line(cls: type) -> str:
    """The first line of a docstring."""
    return (cls.__doc__ or "").strip().partition("\n")[0]


def _load(names: Iterable[str], load: Callable[[str], type[C]]) -> dict[str, type[C]]:
    loaded: dict[str, type[C]] = {}
    for name in names:
        with contextlib.suppress(UsageError):
            loaded[name] = load(name)
    return loaded


def broken_plugins() -> list[str]:
    """Faults of workflows, tasks, engines and sandboxes of installed packages."""
    faults: dict[str, None] = {}
    for group, bundled, load in (
        (WORKFLOW_GROUP, WORKFLOWS, workflow_class), (TASK_GROUP, TASKS, task_class),
        (ENGINE_GROUP, ENGINES, find_engine), (SANDBOX_GROUP, BACKENDS, backend_spec),
    ):  # fmt: skip
        for plugin in plugins(group):
            try:
                if plugin.name in bundled:
                    raise UsageError(
                        f"{plugin.package} registers {plugin.name!r} in {group}, a name of "
                        f"flowzoo: use {plugin.target}"
                    )
                load(plugin.name)
            except UsageError as error:
                faults[str(error)] = None
    return list(faults)
