"""Manifest of a checkpoint: complete if its files have their sizes, intact if their SHA-256.

Needs no torch.
"""

import json
import logging
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from flowzoo.agents.identity import ModelIdentity
from flowzoo.agents.model_files import MANIFEST
from flowzoo.aliases import StateDict
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


@dataclass(frozen=True, slots=True)
class CheckpointInfo:
    """Contents of a checkpoint's manifest."""

    path: Path
    step: int
    score: float | None
    """Held-out score of the step, if it was evaluated."""
    state: StateDict
    """State of the trainer: configuration, data cursor, counters."""
    policies: tuple[str, ...]
    """Policies that were trained."""
    frozen: Mapping[str, str] = field(default_factory=dict)
    """Location of each frozen policy's model."""
    models: Mapping[str, ModelIdentity] = field(default_factory=dict)
    """The model that each policy began with, where it was recorded."""
    files: Mapping[str, Mark] = field(default_factory=dict)
    """Size and digest of every file but the manifest, by its path in the folder."""
    marks: Mapping[str, Mark] = field(default_factory=dict)
    """Marks of the run's growing files, by name."""

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

    def player_path(self, name: str) -> str:
        """Model of a policy that plays, with its trained weights or the frozen ones, unchanged."""
        if name not in self.frozen:
            return str(self.policy_path(name))
        recorded = self.models.get(name, ModelIdentity(self.frozen[name]))
        return recorded.check(f"policy {name!r} of {self.path.parents[1]}")

    def check(self) -> None:
        """Read every file and compare its digest with the manifest's."""
        check_digests(self.path, {name: file.sha256 for name, file in self.files.items()})


def seal(folder: Path, manifest: Mapping[str, object]) -> None:
    """Write the manifest of the files in `folder`."""
    files = {
        str(path.relative_to(folder)): _mark_of(path)._asdict()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }
    record = sealed({"format": _FORMAT, **manifest, "files": files})
    text = json.dumps(record, indent=1)
    write_synced(folder / MANIFEST, text.encode("ascii"))


def read(path: Path | str) -> CheckpointInfo:
    """Read the manifest of the checkpoint at `path`."""
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
            {name: ModelIdentity.read(row) for name, row in manifest.get("models", {}).items()},
            {name: Mark(**file) for name, file in files.items()},
            {name: Mark(**mark) for name, mark in manifest["marks"].items()},
        )  # fmt: skip
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise DataError(f"{path} is not a complete checkpoint: {error!r}.") from error
    # Sizes only, which is a look at the folder; digests need all of it to be read.
    for name, file in info.files.items():
        with reading(path / name):
            size = (path / name).stat().st_size
        if size != file.size:
            raise DataError(f"{path} is torn: {name} has {size} bytes instead of {file.size}")
    return info


def step_folders(root: Path | str) -> list[Path]:
    """Folders of checkpoints below `root`, by step."""
    root = Path(root)
    folders = root.iterdir() if root.is_dir() else ()
    steps = [(int(match[1]), path) for path in folders if (match := _STEP.fullmatch(path.name))]
    return [path for _, path in sorted(steps)]


def checkpoints(root: Path | str) -> list[CheckpointInfo]:
    """The complete checkpoints below `root`, by step; a torn one is left out with a warning."""
    infos: list[CheckpointInfo] = []
    for path in step_folders(root):
        try:
            infos.append(read(path))
        except DataError as error:
            logger.warning("ignored: %s", error)
    return infos


def by_score(infos: Iterable[CheckpointInfo]) -> list[CheckpointInfo]:
    """Sort the checkpoints with a score, the highest first, the earliest of equals."""
    scored = [info for info in infos if info.score is not None]
    return sorted(scored, key=lambda info: (-cast("float", info.score), info.step))


def first_intact(infos: Iterable[CheckpointInfo]) -> CheckpointInfo | None:
    """Return the first intact checkpoint; damaged ones are left out with a warning."""
    for info in infos:
        try:
            info.check()
        except DataError as error:
            logger.warning("ignored: %s", error)
        else:
            return info
    return None


def set_aside(folder: Path) -> Path:
    """Rename a damaged checkpoint, so that its step can be saved again."""
    # Never deleted; this name is not searched for checkpoints.
    target = free_path(folder.with_name(f"{_TORN}{folder.name}"))
    os.rename(folder, target)
    return target


def _mark_of(path: Path) -> Mark:
    with reading(path):
        return Mark(path.stat().st_size, file_digest(path))


def find_checkpoint(run: Path, step: str) -> CheckpointInfo:
    """Find an intact checkpoint: `best` (by validation score), `last`, or the number of a step."""
    infos = checkpoints(run / "checkpoints")
    steps = {str(info.step): info for info in infos}
    if step in steps:
        steps[step].check()
        return steps[step]
    if infos and step == "best" and not by_score(infos):
        raise UsageError(f"no checkpoint of {run} was evaluated: choose --step last.")
    if infos and step not in ("last", "best"):
        raise unknown("step", step, ["best", "last", *steps])
    # A damaged `last` or `best` is passed over with a warning.
    intact = first_intact(by_score(infos) if step == "best" else reversed(infos))
    if intact is None:
        raise UsageError(f"{run} has no complete checkpoint: name the directory of a training run.")
    return intact
