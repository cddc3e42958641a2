"""Metrics on boards: as TensorBoard event files, and on Weights & Biases or Trackio when asked."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from flowzoo.baselines.settings.config import TrainConfig
from flowzoo.errors import missing_extra
from flowzoo.files import writing

try:
    from torch.utils.tensorboard import SummaryWriter
except ImportError as error:
    raise missing_extra("tensorboard", "train", "writing TensorBoard files") from error


class MetricWriter(Protocol):
    """One board."""

    def add(self, step: int, numbers: Mapping[str, float]) -> None:
        """Show `numbers` at `step`; steps come in rising order."""
        ...

    def close(self) -> None:
        """Send what is still here."""
        ...


def scalars(row: Mapping[str, Any]) -> dict[str, float]:
    """The finite numbers of a row, without its step.

    Lists and dicts (scores of single items, Gram matrices) stay in metrics.jsonl alone.
    """
    return {
        name: value
        for name, value in row.items()
        if name != "step"
        and isinstance(value, (int, float))
        and not isinstance(value, bool)
        and math.isfinite(value)
    }


class TensorBoardWriter:
    """Event files."""

    def __init__(self, folder: Path, step: int) -> None:
        """Write to `folder`; events after `step` from an earlier, killed process are hidden."""
        with writing(folder):
            self._writer = SummaryWriter(str(folder), purge_step=step + 1)

    def add(self, step: int, numbers: Mapping[str, float]) -> None:
        """Add the numbers of one step."""
        for name, value in numbers.items():
            self._writer.add_scalar(name, value, step)

    def close(self) -> None:
        """Flush and close the files."""
        self._writer.close()


class MetricLogger:
    """All boards of a run: every finite number of a row under its metric name."""

    def __init__(
        self, root: Path, config: TrainConfig, step: int, history: Sequence[Mapping[str, Any]]
    ) -> None:
        """Open the boards of the run in `root`.

        Args:
            root: the run directory.
            config: the run's settings.
            step: the last step that is done, -1 in a new run; what a killed process wrote after it
                is done again.
            history: the rows of metrics up to it.

        Raises:
            MissingExtraError: W&B or Trackio is asked for and not installed.
            UsageError: one of them does not start, for want of a login for instance.
        """
        self._writers: list[MetricWriter] = [TensorBoardWriter(root / "tensorboard", step)]
        before = [(int(row["step"]), scalars(row)) for row in history]
        if config.wandb:
            from flowzoo.baselines.run.wandb_run import WandbRun

            self._writers.append(WandbRun(root, config, before))
        if config.trackio:
            from flowzoo.baselines.run.trackio_run import TrackioRun

            self._writers.append(TrackioRun(root, config, before))

    def add(self, row: Mapping[str, Any]) -> None:
        """Show one row of metrics."""
        numbers = scalars(row)
        for writer in self._writers:
            writer.add(int(row["step"]), numbers)

    def close(self) -> None:
        """Flush and close all of them; inside the handling of an exception the run has failed."""
        for writer in self._writers:
            writer.close()
