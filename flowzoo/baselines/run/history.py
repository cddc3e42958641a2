"""Measurements of a continued run: rows that remain, rows to repeat, and damaged ones."""

from __future__ import annotations

import json
import logging
import os
import re
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from flowzoo.agents.identity import ModelIdentity, is_speech
from flowzoo.aliases import MetricRow
from flowzoo.baselines.run.ledger import Aside, Ledger
from flowzoo.baselines.run.manifest import METRICS, CheckpointInfo, read, step_folders
from flowzoo.errors import DataError
from flowzoo.files import free_path, read_json, read_sealed, reading

SUMMARY = "summary.json"
RECORD = "run.json"

_TRANSCRIPT = re.compile(r"(?:eval|train)-(\d+)\.jsonl")

logger = logging.getLogger("flowzoo")


class Earlier(NamedTuple):
    """Settings of an earlier run in a directory, and the models of its newest checkpoint."""

    settings: dict[str, Any]
    damage: str
    """Damage of its `run.json`; empty if it is intact."""
    models: Mapping[str, ModelIdentity]
    """The models that its policies began with, where they were recorded."""
    hooks: Mapping[str, str]
    """Digests of the functions that its settings name; none of a damaged record."""


def earlier_run(root: Path) -> Earlier | None:
    """Read the settings of the run in `root`; None if there is none."""
    with reading(root):
        begun = _has_begun(root)
    # A damaged `run.json` is replaced by the settings in the newest checkpoint.
    path, newest = root / RECORD, _newest(root / "checkpoints")
    models = newest.models if newest else {}
    try:
        record = read_sealed(path)
        if not isinstance(record.get("settings"), dict):
            raise DataError(f"{path} has no `settings`")
    except DataError as error:
        if newest is not None and "config" in newest.state:
            return Earlier(newest.state["config"], str(error), models, {})
        if not begun:
            return None
        raise DataError(f"{error}, and there is no complete checkpoint; {remedy(root)}") from error
    hooks = record.get("provenance", {}).get("hooks", {})
    return Earlier(record["settings"], "", models, hooks) if begun else None


def keep_speech(root: Path, models: Mapping[str, ModelIdentity]) -> dict[str, ModelIdentity]:
    """Copy tokenizers and templates of policies with another base out of the newest checkpoint.

    Returns the models, with these folders below `speech/`.
    """
    newest, spoken = _newest(root / "checkpoints"), dict(models)
    for name, model in models.items():
        if newest is None or not model.accepted or model.speech:
            continue
        folder = (root / "speech" / name).absolute()
        folder.mkdir(parents=True, exist_ok=True)
        for path in newest.policy_path(name).iterdir():
            if is_speech(path.name):
                shutil.copyfile(path, folder / path.name)
        spoken[name] = replace(model, speech=str(folder))
    return spoken


def remedy(root: Path) -> str:
    """Remedy for damage that cannot be repaired from a checkpoint."""
    return (
        "restore it from a copy, or repeat the command with --restart, which keeps this run as "
        f"{free_path(root)} and trains anew"
    )


def find_measurements(root: Path) -> Iterator[str]:
    """Yield evidence in `root` of a run that got beyond its first evaluation."""
    metrics = root / METRICS
    if metrics.is_file():
        with reading(metrics):
            lines = metrics.read_bytes().count(b"\n")
        # The first row is of the evaluation before training, which is repeated at no loss.
        if lines > 1:
            yield f"{METRICS} has {lines} rows"
    elif os.path.lexists(metrics):
        yield f"{METRICS} is not a file"
    steps = [step for step, _ in _transcripts(root) if step > 0]
    if steps:
        yield f"transcripts/ reach step {max(steps)}"
    if os.path.lexists(root / SUMMARY):
        yield f"there is a {SUMMARY}"
    if any(root.glob("nonfinite-*")):
        yield "rows that were not finite are saved"


def rewind(
    root: Path, info: CheckpointInfo | None, aside: Aside, ledger: Ledger
) -> list[MetricRow]:
    """Rewind metrics and transcripts to a checkpoint (None: the start), and return the rows."""
    step = -1 if info is None else info.step
    mark = None if info is None else info.marks.get(METRICS)
    rows = ledger.keep(mark, aside, remedy(root))
    # Measurements are never overwritten: later ones are moved.
    for written, transcript in _transcripts(root):
        if written > step:
            aside.take(transcript)
    return [json.loads(line) for line in rows.splitlines()]


def clear_summary(root: Path, aside: Aside, step: int) -> None:
    """Move a summary aside if it is damaged or of another last step than `step`."""
    path = root / SUMMARY
    if not os.path.lexists(path):
        return
    try:
        summary = read_json(path)
        if isinstance(summary, dict) and summary.get("steps") == step:
            return
    except DataError as error:
        logger.warning("%s; it is written again", error)
    aside.take(path)


def _has_begun(root: Path) -> bool:
    path = root / METRICS
    rows = os.path.lexists(path) and (not path.is_file() or path.stat().st_size > 0)
    return rows or bool(step_folders(root / "checkpoints")) or any(find_measurements(root))


def _newest(root: Path) -> CheckpointInfo | None:
    for path in reversed(step_folders(root)):
        try:
            return read(path)
        except DataError:
            continue
    return None


def _transcripts(root: Path) -> list[tuple[int, Path]]:
    folder = root / "transcripts"
    paths = sorted(folder.iterdir()) if folder.is_dir() else []
    return [(int(match[1]), path) for path in paths if (match := _TRANSCRIPT.fullmatch(path.name))]
