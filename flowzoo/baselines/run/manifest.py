"""What a checkpoint says about itself, and whether it is still what was written. Needs no torch.

A folder called `step-*` is *complete* if its manifest is whole and every file has its size (a look
at the folder), and *intact* if every file has its SHA-256 too (which reads all of it). A damaged
checkpoint is never deleted: it is renamed to `torn-step-*`, which is not searched for checkpoints.
"""

from __future__ import annotations

import json
import logging
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, cast

from flowzoo.agents.written import MANIFEST
from flowzoo.baselines.run.ledger import Mark
from flowzoo.errors import DataError, UsageError, unknown
from flowzoo.files import (
    check_digests,
    file_digest,
    free_path,
    read_sealed,
    reading,
    sealed,
    write_synced,
)

METRICS = "metrics.jsonl"
"""One row a step."""

_FORMAT = 3
_STEP = re.compile(r"step-(\d{8,})")
_TORN = "torn-"

logger = logging.getLogger("flowzoo")


class FileRecord(NamedTuple):
    """What a manifest knows of one file."""

    size: int
    sha256: str


@dataclass(frozen=True, slots=True)
class CheckpointInfo:
    """What a checkpoint says about itself."""

    path: Path
    step: int
    score: float | None
    """The validation score it was saved with, if any."""
    state: dict[str, Any]
    """What the trainer passed to `save`: configuration, data cursor, counters."""
    policies: tuple[str, ...]
    """Those that were trained."""
    frozen: Mapping[str, str] = field(default_factory=dict)
    """The others, and the model each plays with: a folder or an id of the hub."""
    files: Mapping[str, FileRecord] = field(default_factory=dict)
    """Every file but the manifest, by its path in the folder."""
    marks: Mapping[str, Mark] = field(default_factory=dict)
    """Files of the run that grow, by their names, as they were when it was written."""

    def policy_path(self, name: str) -> Path:
        """Folder with the weights and tokenizer of a trained policy."""
        if name in self.frozen:
            raise UsageError(
                f"policy {name!r} is frozen: its weights are those of {self.frozen[name]!r}, and "
                "checkpoints hold none of them."
            )
        if name not in self.policies:
            raise unknown("policy", name, self.policies)
        return self.path / "policies" / name

    def check(self) -> None:
        """Read every file and compare its digest with the manifest's.

        Raises:
            DataError: a file is not what was written.
            UsageError: a file may not be read.
        """
        check_digests(self.path, {name: file.sha256 for name, file in self.files.items()})


def seal(folder: Path, manifest: Mapping[str, Any]) -> None:
    """Write the manifest of everything that is in `folder`."""
    files = {
        str(path.relative_to(folder)): _record(path)._asdict()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }
    record = sealed({"format": _FORMAT, **manifest, "files": files})
    text = json.dumps(record, indent=1)
    write_synced(folder / MANIFEST, text.encode("ascii"))


def read(path: Path | str) -> CheckpointInfo:
    """What the checkpoint at `path` says about itself.

    Raises:
        DataError: it is not a complete checkpoint; the message says what is wrong.
        UsageError: it may not be read, or is of a format that this version does not know.
    """
    path = Path(path)
    manifest = read_sealed(path / MANIFEST)
    if manifest.get("format") != _FORMAT:
        raise UsageError(
            f"{path} must have checkpoint format {_FORMAT}, got {manifest.get('format')!r}: use "
            "the version of flowzoo that wrote it"
        )
    try:
        files = cast("dict[str, Any]", manifest["files"])
        info = CheckpointInfo(
            path, manifest["step"], manifest["score"], manifest["state"],
            tuple(manifest["policies"]), manifest["frozen"],
            {name: FileRecord(**file) for name, file in files.items()},
            {name: Mark(**mark) for name, mark in manifest["marks"].items()},
        )  # fmt: skip
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise DataError(f"{path} is not a complete checkpoint: {error!r}.") from error
    for name, known in info.files.items():
        with reading(path / name):
            size = (path / name).stat().st_size
        if size != known.size:
            raise DataError(f"{path} is torn: {name} has {size} bytes instead of {known.size}")
    return info


def step_folders(root: Path | str) -> list[Path]:
    """The folders below `root` that should be checkpoints, by step."""
    root = Path(root)
    found = root.iterdir() if root.is_dir() else ()
    steps = [(int(match[1]), path) for path in found if (match := _STEP.fullmatch(path.name))]
    return [path for _, path in sorted(steps)]


def checkpoints(root: Path | str) -> list[CheckpointInfo]:
    """The complete checkpoints below `root`, by step; a torn one is passed over with a warning."""
    found: list[CheckpointInfo] = []
    for path in step_folders(root):
        try:
            found.append(read(path))
        except DataError as error:
            logger.warning("ignored: %s", error)
    return found


def latest(root: Path | str) -> CheckpointInfo | None:
    """The complete checkpoint of the highest step, or None."""
    found = checkpoints(root)
    return found[-1] if found else None


def best(root: Path | str) -> CheckpointInfo | None:
    """The complete checkpoint of the highest score (the earliest of equals), or None."""
    return next(iter(by_score(checkpoints(root))), None)


def by_score(found: Iterable[CheckpointInfo]) -> list[CheckpointInfo]:
    """Those that have a score, the highest first, and the earliest of equals."""
    scored = [info for info in found if info.score is not None]
    return sorted(scored, key=lambda info: (-cast("float", info.score), info.step))


def first_intact(found: Iterable[CheckpointInfo]) -> CheckpointInfo | None:
    """The first that is intact; one that is not is passed over with a warning."""
    for info in found:
        try:
            info.check()
        except DataError as error:
            logger.warning("ignored: %s", error)
        else:
            return info
    return None


def set_aside(folder: Path) -> Path:
    """Rename a checkpoint that is not intact, so that its step can be saved again."""
    target = free_path(folder.with_name(f"{_TORN}{folder.name}"))
    os.rename(folder, target)
    return target


def _record(path: Path) -> FileRecord:
    with reading(path):
        return FileRecord(path.stat().st_size, file_digest(path))
