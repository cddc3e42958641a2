"""The files of a run as ranks see them that write none of it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from flowzoo.baselines.run.directory import failures_path
from flowzoo.baselines.run.ledger import Mark
from flowzoo.baselines.run.manifest import METRICS
from flowzoo.envs import Call, EpisodeRecord


class RunFollower:
    """In place of a `RunDirectory` and a `MetricLogger`: another rank writes them."""

    def __init__(self, root: Path) -> None:
        """Of the run in `root`."""
        self.root = root
        self.checkpoints = root / "checkpoints"
        self.metrics = root / METRICS
        self.failures = failures_path(root)

    def log(self, row: Mapping[str, Any]) -> None:
        """Nothing."""

    def add(self, row: Mapping[str, Any]) -> None:
        """Nothing."""

    def marks(self) -> dict[str, Mark]:
        """Nothing."""
        return {}

    def save_rows(self, step: int, calls: Iterable[Call]) -> Path:
        """Nothing; where they are."""
        return self.root

    def save_transcripts(self, kind: str, step: int, records: Sequence[EpisodeRecord]) -> None:
        """Nothing."""

    def save_summary(self, summary: Mapping[str, Any]) -> None:
        """Nothing."""

    def close(self) -> None:
        """Nothing was opened."""
