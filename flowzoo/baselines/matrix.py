"""Experiment matrices: many runs as the product of a few choices, described in one TOML file.

    seeds = [0, 1, 2]
    [settings]                  # fields of `TrainConfig` for all runs
    steps = 40
    [[cells]]                   # one block of the product; lists are multiplied
    workflow = ["voting", "eval_opt"]
    algorithm = ["grpo", "dr_mas"]
    sharing = ["shared", "isolated"]
    settings = { problems = 8 } # fields for this block

A cell is one configuration; it is run once for every seed. Everything a run needs is in its own
`cell.toml`, so that it can be repeated by hand: `flowzoo train --config DIR/cell.toml`.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

from flowzoo.baselines.config import TrainConfig
from flowzoo.baselines.config_file import from_table
from flowzoo.errors import DataError, UsageError, unknown

FOLDER = Path(__file__).parent / "matrices"
AXES = ("workflow", "task", "model", "sharing", "algorithm")
"""Fields of `TrainConfig` that a block of cells multiplies, in the order of names."""
_BLOCK = (*AXES, "settings", "label")


@dataclass(frozen=True, slots=True)
class Cell:
    """One configuration; `config` is that of the first seed, without a run directory."""

    name: str
    """Unique within the matrix, fit for a folder."""
    config: TrainConfig

    def run(self, seed: int, out: Path) -> TrainConfig:
        """The settings of its run under `seed`, in a folder below `out`."""
        return replace(self.config, seed=seed, out=str(out / self.name / f"seed-{seed}"))


@dataclass(frozen=True, slots=True)
class Matrix:
    """Cells times seeds."""

    name: str
    cells: tuple[Cell, ...]
    seeds: tuple[int, ...]


def matrix_names() -> list[str]:
    """The bundled matrices."""
    return sorted(path.stem for path in FOLDER.glob("*.toml"))


def load_matrix(name: str) -> Matrix:
    """A bundled matrix, or the file at a path that ends in `.toml`.

    Raises:
        UsageError: no such file, an unknown field, a value of another kind, or two equal cells.
        DataError: the file is not TOML.
    """
    path = Path(name) if name.endswith(".toml") else FOLDER / f"{name}.toml"
    if not path.is_file():
        if name.endswith(".toml"):
            raise UsageError(f"there is no file {name}")
        raise unknown("matrix", name, matrix_names())
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise DataError(f"{path} is not TOML: {error}") from error
    return read_matrix(table, path.stem, str(path))


def read_matrix(table: Mapping[str, Any], name: str, where: str) -> Matrix:
    """The matrix of a TOML table; see the module docstring.

    Raises:
        UsageError: see `load_matrix`.
    """
    for key in table:
        if key not in ("seeds", "settings", "cells"):
            raise unknown(f"field in {where}", key, ("seeds", "settings", "cells"))
    seeds, blocks = table.get("seeds", [0, 1, 2]), table.get("cells", [])
    if not seeds or not all(type(seed) is int for seed in seeds) or len(set(seeds)) < len(seeds):
        raise UsageError(f"`seeds` in {where} must be different whole numbers, got {seeds!r}")
    if not blocks:
        raise UsageError(f"{where} has no [[cells]]")
    cells: dict[str, Cell] = {}
    for block in blocks:
        for cell in _block_cells(block, table.get("settings", {}), where):
            if cell.name in cells:
                raise UsageError(f"{where} has the cell {cell.name} twice: give one a `label`")
            cells[cell.name] = cell
    return Matrix(name, tuple(cells.values()), tuple(seeds))


def cell_text(config: TrainConfig) -> str:
    """`config` as a TOML file that `flowzoo train --config` reads: what differs from defaults."""
    base = TrainConfig()
    lines: list[str] = []
    for name in sorted(TrainConfig.__dataclass_fields__):
        value = getattr(config, name)
        if value != getattr(base, name):
            # JSON's texts, numbers, booleans and lists are TOML's.
            plain = list(value) if isinstance(value, tuple) else value
            written = json.dumps(plain, ensure_ascii=False)
            lines.append(f"{name} = {written}")
    return "\n".join(lines) + "\n"


def _block_cells(block: Mapping[str, Any], shared: Mapping[str, Any], where: str) -> list[Cell]:
    """The cells of one block."""
    for key in block:
        if key not in _BLOCK:
            raise unknown(f"field of a cell in {where}", key, _BLOCK)
    values: list[list[Any]] = []
    axes = [axis for axis in AXES if axis in block]
    for axis in axes:
        if not isinstance(block[axis], list) or not block[axis]:
            raise UsageError(f"`{axis}` of a cell in {where} must be a list, got {block[axis]!r}")
        values.append(block[axis])
    cells: list[Cell] = []
    for choice in product(*values):
        fields = dict(shared) | block.get("settings", {}) | dict(zip(axes, choice, strict=True))
        if isinstance(fields.get("sharing"), str):
            fields["sharing"] = [fields["sharing"]]
        config = from_table(fields, where)
        cells.append(Cell(_cell_name(config, block.get("label", "")), config))
    return cells


def _cell_name(config: TrainConfig, label: str) -> str:
    """workflow-task-algorithm-sharing, with the model and the label where there are such."""
    stem = replace(config, out="", seed=0).directory.name.removesuffix("-s0")
    model = "" if config.model == "pocket" else "-" + Path(config.model).name.replace(":", "-")
    return stem + model + (f"-{label}" if label else "")
