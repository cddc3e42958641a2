"""Settings of a run from a TOML file: one of the bundled published runs, or any by path."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from flowzoo import files
from flowzoo.baselines.settings.config import TrainConfig
from flowzoo.declared import check_value, declared_types, takes_words
from flowzoo.errors import UsageError, unknown
from flowzoo.permission import PERMISSION

FOLDER = Path(__file__).parent / "configs"
PUBLISHED = "published"
UNASKED = ("pocket", PUBLISHED)
"""Variants that a file may have without being asked for."""
BASE = "base"
"""Field of a bundled file with changes to all files of a folder, which it names. A table of such a
file has the changes of one task."""


def bundled_names(folder: Path) -> list[str]:
    """The TOML files below `folder` by the name that they are asked for with.

    Of a file with `base`: its name with that of every file of the base.
    """
    names: list[str] = []
    for path in folder.rglob("*.toml"):
        name, base = str(path.relative_to(folder).with_suffix("")), files.read_toml(path).get(BASE)
        below = (folder / base).glob("*.toml") if base else ()
        names += [f"{name}/{file.stem}" for file in below] if base else [name]
    return sorted(names)


def read_toml(kind: str, name: str, folder: Path) -> tuple[Path, dict[str, Any]]:
    """Path and table of the bundled file `name` of `folder`, or of a path that ends in `.toml`."""
    path = Path(name) if name.endswith(".toml") else folder / f"{name}.toml"
    if not path.is_file():
        if name.endswith(".toml"):
            raise UsageError(f"there is no file {name}")
        raise unknown(kind, name, bundled_names(folder))
    return path, files.read_toml(path)


def load_config(name: str, workflow: str = TrainConfig.workflow) -> TrainConfig:
    """Read the settings of a bundled file, or of a `.toml` path; either with `@VARIANT`."""
    stem, at, variant = name.partition("@")
    path, table, changes = _read_config(stem)
    if "cells" in table:
        raise UsageError(f"{path} has [[cells]] and is a matrix: run it with `flowzoo matrix`")
    variants = {key: table.pop(key) for key in list(table) if isinstance(table[key], dict)}
    if at and variant not in variants:
        raise unknown(f"variant in {path}", variant, variants)
    table = {"workflow": workflow} | table
    # The fields of a variant that was not asked for would be ignored.
    unasked = [key for key in variants if not at and key not in UNASKED]
    if unasked:
        raise UsageError(
            f"the table [{unasked[0]}] in {path} is a variant that was not asked for: write its "
            f"fields above all tables, or ask for it as {stem}@{unasked[0]}"
        )
    # Every variant, so that a mistake in one shows before it is asked for.
    configs = {
        key: from_table(_merge(table | fields, changes), f"{path}, table [{key}]")
        for key, fields in variants.items()
    }
    return configs[variant] if at else from_table(_merge(table, changes), str(path))


def _read_config(name: str) -> tuple[Path, dict[str, Any], dict[str, Any]]:
    """Path and table of a settings file, and what a file with `base` changes in it."""
    if not name.endswith(".toml") and name not in (names := bundled_names(FOLDER)):
        raise unknown("config", name, names)
    above, _, file = name.rpartition("/")
    path, changes = FOLDER / f"{above}.toml", {}
    if path.is_file():
        changes = files.read_toml(path)
        name = f"{changes.pop(BASE)}/{file}"
    return *read_toml("config", name, FOLDER), changes


def _merge(table: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """`table` with `changes`, which replace only `options` of the same names."""
    if not changes:
        return dict(table)
    whole = {key: value for key, value in changes.items() if not isinstance(value, dict)}
    of_task = changes.get(table.get("task", ""), {})
    options = [word for part in (table, whole, of_task) for word in part.get("options", ())]
    by_name = {option.partition("=")[0]: option for option in options}
    return {**table, **whole, **of_task, "options": list(by_name.values())}


def from_table(table: Mapping[str, object], where: str) -> TrainConfig:
    """`TrainConfig` of a TOML table; `where` is for messages."""
    PERMISSION.note(where, table)
    kinds = declared_types(TrainConfig)
    values: dict[str, Any] = {}
    for name, value in table.items():
        if name not in kinds:
            raise unknown(f"field in {where}", name, kinds)
        kind = kinds[name]
        if isinstance(value, list):  # of words by policy the value of the others may be a number
            value = tuple(map(str, value) if takes_words(kind) else value)
        check_value(f"`{name}` in {where}", value, kind)
        values[name] = value
    return TrainConfig(**values)


def arguments(settings: object, names: Iterable[str]) -> list[str]:
    """Command-line arguments for the settings in `names` that differ from their default."""
    flags: list[str] = []
    for name in names:
        value, flag = getattr(settings, name), name.replace("_", "-")
        if value == getattr(type(settings), name):
            continue
        if isinstance(value, bool):
            flags.append(f"--{flag}" if value else f"--no-{flag}")
        else:
            values = value if isinstance(value, tuple) else (value,)
            flags += [f"--{flag}", *map(str, values)]
    return flags
