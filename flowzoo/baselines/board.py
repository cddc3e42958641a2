"""Metrics as TensorBoard event files."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from flowzoo.errors import missing_extra

try:
    from torch.utils.tensorboard import SummaryWriter
except ImportError as error:
    raise missing_extra("tensorboard", "train", "writing TensorBoard files") from error


class Board:
    """Writes every finite number of a row under its metric name."""

    def __init__(self, folder: Path, step: int) -> None:
        """Write to `folder`; events after `step` from an earlier, killed process are hidden."""
        self._writer = SummaryWriter(str(folder), purge_step=step + 1)

    def add(self, row: Mapping[str, Any]) -> None:
        """Add one row of metrics; lists (per-item scores) are left out."""
        step = int(row["step"])
        for name, value in row.items():
            number = isinstance(value, (int, float)) and not isinstance(value, bool)
            if name != "step" and number and math.isfinite(value):
                self._writer.add_scalar(name, value, step)

    def close(self) -> None:
        """Flush and close the files."""
        self._writer.close()
