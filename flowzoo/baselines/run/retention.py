"""Retention of checkpoints."""

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
    """Checkpoints to keep: the last few, the best by score, and milestones.

    Raises:
        UsageError: a number out of range.
    """

    last: int = 2
    best: bool = True
    """Keep the checkpoint of the highest score (the earliest of equals)."""
    every: int = 0
    """Keep checkpoints whose step is a multiple of this; 0: none."""

    def __post_init__(self) -> None:
        """Check both numbers."""
        if self.last < 1:
            raise UsageError(f"`last` must be at least 1, got {self.last}.")
        if self.every < 0:
            raise UsageError(f"`every` must be at least 0, got {self.every}.")


def prune(root: Path, keep: CheckpointRetention) -> None:
    """Remove the checkpoints that `keep` drops."""
    infos = checkpoints(root)
    paths = {info.path for info in infos[-keep.last :]}
    if keep.best:
        paths |= {info.path for info in by_score(infos)[:1]}
    if keep.every:
        paths |= {info.path for info in infos if info.step % keep.every == 0}
    for info in infos:
        if info.path not in paths:
            # Renamed first: a kill during the removal must not leave a torn `step-*`.
            doomed = root / f"{PARTIAL}removed-{info.path.name}"
            os.rename(info.path, doomed)
            shutil.rmtree(doomed)
