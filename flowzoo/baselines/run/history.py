"""What a run has measured, when it goes on: what stays, what is done again, what is damaged.

Nothing that was measured is ever overwritten. Rows and transcripts after the checkpoint that a run
goes on from are moved to a folder of their own below `aside/`, and so is what is damaged.
"""

from __future__ import annotations

import json
import logging
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from flowzoo.baselines.run.aside import Aside
from flowzoo.baselines.run.ledger import Ledger
from flowzoo.baselines.run.manifest import METRICS, CheckpointInfo, read, step_folders
from flowzoo.errors import DataError
from flowzoo.files import (
    free_path,
    read_json,
    read_sealed,
    reading,
)

SUMMARY = "summary.json"
RECORD = "run.json"

_TRANSCRIPT = re.compile(r"(?:eval|train)-(\d+)\.jsonl")

logger = logging.getLogger("flowzoo")


class Earlier(NamedTuple):
    """What is known of the settings of a run that was begun."""

    settings: dict[str, Any]
    damage: str
    """What is wrong with its `run.json`; "": nothing."""


def earlier_run(root: Path) -> Earlier | None:
    """The settings of the run in `root`; None: no run was begun there.

    They are those in `run.json`, or where that is damaged those in its newest checkpoint.

    Raises:
        DataError: neither can be read.
        UsageError: a file there cannot be read now.
    """
    with reading(root):
        begun = _begun(root)
    path = root / RECORD
    try:
        record = read_sealed(path)
        if not isinstance(record.get("settings"), dict):
            raise DataError(f"{path} has no `settings`")
    except DataError as error:
        newest = _newest(root / "checkpoints")
        if newest is not None and "config" in newest.state:
            return Earlier(newest.state["config"], str(error))
        if not begun:
            return None
        raise DataError(f"{error}, and there is no complete checkpoint; {remedy(root)}") from error
    return Earlier(record["settings"], "") if begun else None


def remedy(root: Path) -> str:
    """What to do about damage that cannot be mended from a checkpoint."""
    return (
        "put it back from a copy, or repeat the command with --restart, which keeps this run as "
        f"{free_path(root)} and trains anew"
    )


def measured(root: Path) -> Iterator[str]:
    """What in `root` can only come from a run that has done more than its first evaluation."""
    metrics = root / METRICS
    if metrics.is_file():
        with reading(metrics):
            lines = metrics.read_bytes().count(b"\n")
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
    root: Path, found: CheckpointInfo | None, aside: Aside, ledger: Ledger
) -> list[dict[str, Any]]:
    """Make metrics and transcripts those of the checkpoint `found` (None: of no step yet).

    Returns the rows that stay. What comes after it goes to `aside`; metrics that are not what the
    checkpoint says were measured are mended from their copy, and the damaged file goes to `aside`
    as well.

    Raises:
        DataError: the metrics are damaged, and there is no copy of them.
        UsageError: a file cannot be read now.
        SaveError: something cannot be written.
    """
    step = -1 if found is None else found.step
    mark = None if found is None else found.marks.get(METRICS)
    rows = ledger.keep(mark, aside, remedy(root))
    for written, transcript in _transcripts(root):
        if written > step:
            aside.take(transcript)
    return [json.loads(line) for line in rows.splitlines()]


def clear_summary(root: Path, aside: Aside, step: int) -> None:
    """Move a summary aside that is damaged, or not of a run that ended at `step`."""
    path = root / SUMMARY
    if not os.path.lexists(path):
        return
    try:
        found = read_json(path)
        if isinstance(found, dict) and found.get("steps") == step:
            return
    except DataError as error:
        logger.warning("%s; it is written anew", error)
    aside.take(path)


def _begun(root: Path) -> bool:
    """Whether something was measured or learnt in `root`."""
    path = root / METRICS
    rows = os.path.lexists(path) and (not path.is_file() or path.stat().st_size > 0)
    return rows or bool(step_folders(root / "checkpoints")) or any(measured(root))


def _newest(root: Path) -> CheckpointInfo | None:
    """The newest complete checkpoint; what is wrong with others is said by who loads them."""
    for path in reversed(step_folders(root)):
        try:
            return read(path)
        except DataError:
            continue
    return None


def _transcripts(root: Path) -> list[tuple[int, Path]]:
    """The files of transcripts, with their steps."""
    folder = root / "transcripts"
    found = sorted(folder.iterdir()) if folder.is_dir() else []
    return [(int(match[1]), path) for path in found if (match := _TRANSCRIPT.fullmatch(path.name))]
