"""Experiment matrices: many runs as the product of a few choices, described in one TOML file.

    seeds = [0, 1, 2]
    [settings]                  # fields of `TrainConfig` for all runs
    steps = 40
    [[cells]]                   # one block of the product; lists are multiplied
    workflow = ["voting", "eval_opt"]
    algorithm = ["grpo", "dr_mas"]
    sharing = ["shared", "isolated"]
    settings = { problems = 8 } # fields for this block
    [[controls]]                # single agents at the training tokens of the cells above
    task = ["math"]
    settings = { problems = 32, steps = 1000 }

A cell is one configuration; it is run once for every seed. All its settings are in its own
`cell.toml`, so that it can be repeated by hand: `flowzoo train --config DIR/cell.toml`.

A control is a cell whose token budget is set while the matrix runs: for every seed the training
tokens of the most expensive workflow of its task and model. Its `steps` are an upper limit.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

from flowzoo.agents.pocket import SCALES
from flowzoo.baselines.matrix.cell import CONTROL, Cell
from flowzoo.baselines.matrix.failures import FailureMode, read_failures
from flowzoo.baselines.matrix.parity import check_controls, check_sharing
from flowzoo.baselines.settings.config import TrainConfig
from flowzoo.baselines.settings.file import from_table, read_toml
from flowzoo.errors import UsageError, unknown

FOLDER = Path(__file__).parent / "bundled"
AXES = ("workflow", "task", "model", "sharing", "algorithm")
"""Fields of `TrainConfig` that a block of cells multiplies, in the order of names."""
_BLOCK = (*AXES, "settings", "label")
_FIELDS = ("seeds", "settings", "cells", "controls", "failures")
_PER_RUN = {"seed": "list the seeds in `seeds`", "out": "name the matrix's directory with --out"}
"""Fields of `TrainConfig` that a matrix sets for every run, and the alternative to each."""


@dataclass(frozen=True, slots=True)
class Matrix:
    """Cells times seeds."""

    name: str
    cells: tuple[Cell, ...]  # the controls come last
    seeds: tuple[int, ...]
    failures: tuple[FailureMode, ...] = ()  # failures that it is made to show


def load_matrix(name: str) -> Matrix:
    """A bundled matrix, or the file at a path that ends in `.toml`."""
    path, table = read_toml("matrix", name, FOLDER)
    return read_matrix(table, path.stem, str(path))


def read_matrix(table: Mapping[str, object], name: str, where: str) -> Matrix:
    """The matrix of a TOML table in the format of this module."""
    for key in table:
        if key not in _FIELDS:
            raise unknown(f"field in {where}", key, _FIELDS)
    seeds = _seeds(table.get("seeds", [0, 1, 2]), where)
    blocks, controls, failures = (
        _blocks(table, key, where) for key in ("cells", "controls", "failures")
    )
    if not blocks:
        raise UsageError(f"{where} has no [[cells]]")
    cells, settings = dict[str, Cell](), _settings(table, where)
    controls = [{"workflow": [CONTROL]} | block for block in controls]
    for block, control in [*product(blocks, [False]), *product(controls, [True])]:
        for cell in _block_cells(block, settings, where, control):
            if cell.name in cells:
                raise UsageError(f"{where} has the cell {cell.name} twice: give one a `label`")
            cells[cell.name] = cell
    unique = tuple(cells.values())
    check_sharing(unique, where)
    check_controls(unique, where)
    return Matrix(name, unique, seeds, tuple(read_failures(failures, unique, where)))


def _seeds(seeds: object, where: str) -> tuple[int, ...]:
    whole = isinstance(seeds, list) and all(type(seed) is int for seed in seeds)
    if not whole or not seeds or len(set(seeds)) < len(seeds):
        raise UsageError(
            f"`seeds` in {where} must be different whole numbers in a list, e.g. [0, 1, 2], got "
            f"{seeds!r}"
        )
    return tuple(seeds)


def _blocks(table: Mapping[str, object], key: str, where: str) -> list[dict[str, Any]]:
    blocks = table.get(key, [])
    if not isinstance(blocks, list) or not all(isinstance(block, dict) for block in blocks):
        raise UsageError(
            f"`{key}` in {where} must be a list of blocks, got {blocks!r}: begin every block with "
            f"[[{key}]], in double brackets"
        )
    return blocks


def _settings(table: Mapping[str, object], where: str) -> dict[str, Any]:
    settings = table.get("settings", {})
    if not isinstance(settings, dict):
        raise UsageError(
            f"`settings` in {where} must be a table, e.g. {{ steps = 40 }}, got {settings!r}"
        )
    for field, remedy in _PER_RUN.items():
        if field in settings:
            raise UsageError(
                f"`settings` in {where} must not have `{field}`, which every run of a matrix gets "
                f"for itself, got {settings[field]!r}: {remedy}"
            )
    return settings


def _label(block: Mapping[str, object], where: str) -> str:
    label = block.get("label", "")
    if not isinstance(label, str) or not re.fullmatch(r"[\w.+=-]*", label):
        raise UsageError(
            f"`label` of a cell in {where} becomes a part of a folder's name and must be text of "
            f"letters, digits and . _ + = - alone, got {label!r}"
        )
    return label


def _block_cells(
    block: Mapping[str, Any], shared: Mapping[str, Any], where: str, control: bool
) -> list[Cell]:
    for key in block:
        if key not in _BLOCK:
            raise unknown(f"field of a cell in {where}", key, _BLOCK)
    axes = {axis: block[axis] for axis in AXES if axis in block}
    for axis, values in axes.items():
        if not isinstance(values, list) or not values:
            raise UsageError(f"`{axis}` of a cell in {where} must be a list, got {values!r}")
    cells: list[Cell] = []
    label, settings = _label(block, where), {**shared, **_settings(block, where)}
    for choice in product(*axes.values()):
        fields = settings | dict(zip(axes, choice, strict=True))
        if isinstance(fields.get("sharing"), str):
            fields["sharing"] = [fields["sharing"]]
        config = from_table(fields, where)
        cells.append(Cell(_cell_name(config, label, control), config, label, control))
    return cells


def _cell_name(config: TrainConfig, label: str, control: bool) -> str:
    # workflow-task-algorithm-sharing, with the model and the label if there are such. A control has
    # one policy, and its sharing is left out.
    stem = replace(config, out="", seed=0).directory.name.removesuffix("-s0")
    # Of a pocket model it is the scale alone, which the default has not.
    if control:
        stem = stem.removesuffix("-" + "-".join(config.policy_words))
    kind, _, model = config.model.partition(":")
    if kind != "pocket" or model not in ("", *SCALES):
        model = Path(config.model).name.replace(":", "-")
    return "-".join(part for part in (stem, model, label) if part)
