"""Workflows, tasks and sandboxes of installed packages: entry points of the groups in `GROUPS`.

    [project.entry-points."flowzoo.workflows"]
    debate_v0 = "debate_pack.workflow:Debate"
    [project.entry-points."flowzoo.tasks"]
    sums = "debate_pack.sums:SumsTask"
    [project.entry-points."flowzoo.engines"]
    echo = "debate_pack.engine:EchoEngine"

Reading entry points imports nothing of the packages. They are read for names that
are not flowzoo's own, which take precedence.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from flowzoo.errors import UsageError
from flowzoo.functions import load_class

if TYPE_CHECKING:
    from importlib import metadata

C = TypeVar("C")

WORKFLOW_GROUP = "flowzoo.workflows"
TASK_GROUP = "flowzoo.tasks"
ENGINE_GROUP = "flowzoo.engines"
SANDBOX_GROUP = "flowzoo.sandboxes"
GROUPS = {
    WORKFLOW_GROUP: "workflow",
    TASK_GROUP: "task",
    ENGINE_GROUP: "engine",
    SANDBOX_GROUP: "sandbox",
}
"""Group -> the word for a member of it."""


class Plugin(NamedTuple):
    """A workflow, task, engine or sandbox of an installed package."""

    name: str
    """Short name; the `name` of the class must be the same."""
    target: str
    """`module:Class`."""
    package: str
    """Distribution and version."""


def plugins(group: str) -> tuple[Plugin, ...]:
    """Plugins of a group, sorted by name and package."""
    return _plugins(tuple(sys.path))[group]


def packages() -> dict[str, list[str]]:
    """Offers of installed packages, e.g. `workflow debate_v0`, by distribution and version."""
    offers: dict[str, list[str]] = {}
    for group, word in GROUPS.items():
        for plugin in plugins(group):
            offers.setdefault(plugin.package, []).append(f"{word} {plugin.name}")
    return offers


@lru_cache(maxsize=8)
def _plugins(path: tuple[str, ...]) -> dict[str, tuple[Plugin, ...]]:
    # Cached by `path`, in which packages are searched.
    from importlib import metadata  # a tenth of the time that importing flowzoo would take

    points = metadata.entry_points()  # reads the files of all packages, so once for all groups
    return {group: tuple(sorted(set(map(_plugin, points.select(group=group))))) for group in GROUPS}


def _plugin(point: metadata.EntryPoint) -> Plugin:
    package = "a package" if point.dist is None else f"{point.dist.name} {point.dist.version}"
    return Plugin(point.name, point.value.partition("[")[0].strip(), package)


def with_packages(bundled: Collection[str], group: str) -> dict[str, str]:
    """Package by name, for `bundled` names (package "") and plugins."""
    others = {plugin.name: plugin.package for plugin in plugins(group)}
    return dict.fromkeys(bundled, "") | {k: v for k, v in others.items() if k not in bundled}


def load_plugin(
    word: str, plugin: Plugin, base: type[C], complete: Callable[[str, type[C]], type[C]]
) -> type[C]:
    """The class of a plugin, a subclass of `base`."""
    setting = f"{word} {plugin.name} of {plugin.package}:"
    cls = complete(setting, load_class(setting, plugin.target, base, permitted=True))
    name = getattr(cls, "name", None)
    if name != plugin.name:
        raise UsageError(
            f"{setting} its class {plugin.target} has the name {name!r}: entry point and class "
            "must have one name."
        )
    return cls


def plugin_named(group: str, name: str) -> Plugin | None:
    """The plugin of that name, or None."""
    matches = [plugin for plugin in plugins(group) if plugin.name == name]
    if len({plugin.target for plugin in matches}) > 1:
        offers = " and ".join(f"{plugin.package} ({plugin.target})" for plugin in matches)
        raise UsageError(
            f"{name!r} is offered by {offers}: name the one that is meant as module:Class."
        )
    return matches[0] if matches else None
