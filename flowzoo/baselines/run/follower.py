"""The files of a run on ranks that do not write them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from flowzoo.baselines.run.directory import failures_path
from flowzoo.baselines.run.ledger import Mark
from flowzoo.baselines.run.manifest import METRICS
from flowzoo.envs import Call, EpisodeRecord


class RunFollower:
    """Replaces `RunDirectory` and `MetricLogger` on ranks that do not write."""

    def __init__(self, root: Path) -> None:
        """Store the paths of the run in `root`."""
        self.root = root
        self.checkpoints = root / "checkpoints"
        self.metrics = root / METRICS
        self.failures = failures_path(root)

    def log(self, row: Mapping[str, Any]) -> None:
        """No-op."""

    def add(self, row: Mapping[str, Any]) -> None:
        """No-op."""

    def marks(self) -> dict[str, Mark]:
        """No-op."""
        return {}

    def save_rows(self, step: int, calls: Iterable[Call]) -> Path:
        """No-op; return the folder of the run."""
        return self.root

    def save_transcripts(self, kind: str, step: int, records: Sequence[EpisodeRecord]) -> None:
        """No-op."""

    def save_summary(self, summary: Mapping[str, Any]) -> None:
        """No-op."""

    def close(self) -> None:
        """No-op."""
