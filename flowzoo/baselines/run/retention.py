"""Which checkpoints a run keeps."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from pathlib import Path

from flowzoo.baselines.run.manifest import by_score, checkpoints
from flowzoo.errors import UsageError

PARTIAL = ".partial-"


@dataclass(frozen=True, slots=True)
class CheckpointRetention:
    """Which checkpoints stay: the last few, the one of the best score, and milestones.

    Raises:
        UsageError: a number out of range.
    """

    last: int = 2
    best: bool = True
    """Also the one whose score is highest (the earliest of equals)."""
    every: int = 0
    """Also those whose step is a multiple of this; 0: none for that reason."""

    def __post_init__(self) -> None:
        """Check both numbers."""
        if self.last < 1:
            raise UsageError(f"`last` must be at least 1, got {self.last}.")
        if self.every < 0:
            raise UsageError(f"`every` must be at least 0, got {self.every}.")


def prune(root: Path, keep: CheckpointRetention) -> None:
    """Remove the checkpoints that `keep` drops."""
    found = checkpoints(root)
    kept = {info.path for info in found[-keep.last :]}
    if keep.best:
        kept |= {info.path for info in by_score(found)[:1]}
    if keep.every:
        kept |= {info.path for info in found if info.step % keep.every == 0}
    for info in found:
        if info.path not in kept:
            # Renamed first: a kill in the middle must not leave a torn `step-*`.
            doomed = root / f"{PARTIAL}removed-{info.path.name}"
            os.rename(info.path, doomed)
            shutil.rmtree(doomed)
