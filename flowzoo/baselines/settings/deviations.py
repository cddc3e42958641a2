"""Bundled settings beside the configurations that were published, with the reasons of differences.

The published values are in `sources/*.toml`, as groups of facts from one file at one commit:
`configs` (patterns of bundled names), `source`, a table `fields` and a table `properties`. A field
is a setting, an option or a choice of the algorithm. Its published value alone says that ours is
equal; a table with `published`, `ours` and `why`, that it differs. A property is what no setting
says, in words, always as such a table. Facts are of all variants of a name; facts of NAME@VARIANT
replace these or add to them.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatch
from pathlib import Path
from typing import Literal, get_args

from flowzoo import files
from flowzoo.aliases import DataRecord
from flowzoo.baselines.settings.config import TrainConfig
from flowzoo.baselines.settings.file import FOLDER, bundled_names
from flowzoo.baselines.settings.layers import PLAIN
from flowzoo.baselines.settings.preflight import outline_run
from flowzoo.envs.settings import read_settings
from flowzoo.errors import unknown

SOURCES = Path(__file__).parent / "sources"

State = Literal["unstated", "differs", "property", "equal"]
STATES: tuple[State, ...] = get_args(State)


@dataclass(frozen=True, slots=True)
class PublishedField:
    """A published value beside ours."""

    field: str
    published: object
    value: object
    """Ours."""
    state: State
    """`differs`: for the stated reason. `property`: no setting says it. `unstated`: ours is neither
    the published value nor the one that the reason is given for."""
    reason: str
    source: str
    """OWNER/NAME@COMMIT:PATH of the published value."""

    @property
    def rank(self) -> int:
        """Place of the state in lists: the most urgent first."""
        return STATES.index(self.state)


def deviations(name: str, config: TrainConfig) -> list[PublishedField]:
    """Compare `config`, the bundled settings `name` with or without changes, with the published.

    Reads no model and no data.
    """
    names, stem = bundled_names(FOLDER), name.partition("@")[0]
    if stem not in names:
        raise unknown("bundled config", stem, names)
    holders = _holders(config)
    rows = _matching(stem, holders)
    replacing = {row.field: row for row in _matching(name, holders)} if name != stem else {}
    return [replacing.pop(row.field, row) for row in rows] + list(replacing.values())


def _matching(name: str, holders: Sequence[object]) -> list[PublishedField]:
    return [
        row
        for facts in published_facts()
        if any(fnmatch(name, pattern) for pattern in facts["configs"])
        for row in _rows(facts, holders)
    ]


def published_facts() -> list[DataRecord]:
    """The groups of facts of all files."""
    return [
        facts for path in sorted(SOURCES.glob("*.toml")) for facts in files.read_toml(path)["facts"]
    ]


def _rows(facts: DataRecord, holders: Sequence[object]) -> Iterator[PublishedField]:
    source = facts["source"]
    for field, entry in facts.get("fields", {}).items():
        if not isinstance(entry, dict):
            entry = {"published": entry, "ours": entry, "why": ""}
        value, reason = _value(holders, field), entry["why"]
        state: State = "differs"
        if value == entry["published"]:
            state, reason = "equal", ""
        elif value != entry["ours"]:
            state, reason = "unstated", ""
        yield PublishedField(field, entry["published"], value, state, reason, source)
    for field, entry in facts.get("properties", {}).items():
        texts = entry["published"], entry["ours"]
        yield PublishedField(field, *texts, "property", entry["why"], source)


def _holders(config: TrainConfig) -> tuple[object, ...]:
    """Holders of resolved settings by name: a run, its options, workflow, task and algorithm."""
    # Rows of data are not read, so the workflow is made without them.
    unread = tuple(word for word in config.options if not word.startswith("data="))
    outline = outline_run(replace(config, options=unread))
    assert outline.algorithm is not None
    return (
        read_settings(config.options),
        vars(outline.config),
        {**PLAIN, "old_logp": config.usual_old_logp},
        outline.workflow,
        outline.workflow.task,
        outline.algorithm,
        outline.algorithm.advantage,
    )


def _value(holders: Sequence[object], name: str) -> object:
    """The setting of that name, as TOML has it; None if there is none."""
    for holder in holders:
        value = holder.get(name) if isinstance(holder, Mapping) else getattr(holder, name, None)
        if value not in (None, ""):
            return list(value) if isinstance(value, tuple) else value
    return None
