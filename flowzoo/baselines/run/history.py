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

from flowzoo.baselines.run.manifest import METRICS, CheckpointInfo, read, step_folders
from flowzoo.errors import DataError
from flowzoo.files import (
    free_path,
    read_json,
    read_sealed,
    reading,
    replace_text,
    write_synced,
    writing,
)

ASIDE = "aside"
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


class Aside:
    """A new folder below `aside/` of a run, made when the first thing comes into it."""

    def __init__(self, root: Path) -> None:
        """Of the run in `root`."""
        self._root = root
        self.folder: Path | None = None

    def take(self, path: Path) -> None:
        """Move a file or folder of the run there, under the same name."""
        target = self._place() / path.relative_to(self._root)
        with writing(target):
            target.parent.mkdir(exist_ok=True)
            os.rename(path, target)

    def keep(self, name: str, data: bytes) -> None:
        """Write a copy there."""
        target = self._place() / name
        with writing(target):
            write_synced(target, data)

    def _place(self) -> Path:
        if self.folder is None:
            with writing(self._root / ASIDE):
                (self._root / ASIDE).mkdir(exist_ok=True)
                taken = [int(p.name) for p in (self._root / ASIDE).iterdir() if p.name.isdecimal()]
                folder = self._root / ASIDE / str(max(taken, default=0) + 1)
                folder.mkdir()
            self.folder = folder
        return self.folder


def rewind(root: Path, found: CheckpointInfo | None, aside: Aside) -> list[dict[str, Any]]:
    """Make metrics and transcripts those of the checkpoint `found` (None: of no step yet).

    Returns the rows that stay. What comes after it goes to `aside`; metrics that are not what the
    checkpoint says were measured are mended from it, and the damaged file goes to `aside` as well.

    Raises:
        DataError: the metrics are damaged, and the checkpoint has no copy of them.
        UsageError: a file cannot be read now.
        SaveError: something cannot be written.
    """
    step = -1 if found is None else found.step
    path = root / METRICS
    data, damage = _bytes(path)
    kept = b"" if found is None else found.metrics()
    if kept is None:  # an older version's checkpoint
        kept, wrong = _first_rows(data, step + 1)
        if damage or wrong:
            raise DataError(f"{path} is damaged ({damage or wrong}): {remedy(root)}")
    elif not damage and not data.startswith(kept):
        damage = _difference(data, kept)
    if damage:
        if os.path.lexists(path):
            aside.take(path)
        logger.warning("%s is damaged (%s) and mended from the checkpoint", path, damage)
    elif data[len(kept) :]:
        aside.keep(METRICS, data[len(kept) :])
    for written, transcript in _transcripts(root):
        if written > step:
            aside.take(transcript)
    if damage or data != kept:
        with writing(path):
            replace_text(path, kept.decode("utf-8"))
    return [json.loads(line) for line in kept.splitlines()]


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


def _bytes(path: Path) -> tuple[bytes, str]:
    """What is in the file (nothing, where there is none), and why it cannot be read."""
    try:
        with reading(path):
            return path.read_bytes() if os.path.lexists(path) else b"", ""
    except DataError as error:
        return b"", str(error)


def _first_rows(data: bytes, count: int) -> tuple[bytes, str]:
    """The lines of the first `count` steps, and what is wrong with them."""
    lines = data.splitlines()[:count]
    for step, line in enumerate(lines):
        try:
            found = json.loads(line)["step"]
        except (ValueError, TypeError, KeyError):
            return b"", f"line {step + 1} is not a row of metrics"
        if found != step:
            return b"", f"line {step + 1} is of step {found} and not of step {step}"
    if len(lines) < count:
        return b"", f"the rows of steps {len(lines)} to {count - 1} are missing"
    return b"".join(line + b"\n" for line in lines), ""


def _difference(data: bytes, kept: bytes) -> str:
    """How the file differs from the rows that were measured."""
    lines, rows = data.splitlines(keepends=True), kept.splitlines(keepends=True)
    for number, row in enumerate(rows):
        if number == len(lines):
            return f"the rows of steps {number} to {len(rows) - 1} are missing"
        if lines[number] != row:
            return f"line {number + 1} is not what was measured"
    return "it has other line ends"


def _transcripts(root: Path) -> list[tuple[int, Path]]:
    """The files of transcripts, with their steps."""
    folder = root / "transcripts"
    found = sorted(folder.iterdir()) if folder.is_dir() else []
    return [(int(match[1]), path) for path in found if (match := _TRANSCRIPT.fullmatch(path.name))]
