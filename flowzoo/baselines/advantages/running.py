"""A baseline that remembers: the mean target of each group over earlier batches."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import numpy as np

from flowzoo.baselines.advantages.segments import Floats
from flowzoo.errors import UsageError


class RunningMean:
    """Exponential mean per group, after the role-conditioned baseline of SPIRAL (arXiv 2506.24119).

    A batch is judged by the means from before it, and then moves them:
    mean = decay * mean + (1 - decay) * mean of the batch. A group that is met for the first time
    has the baseline that its batch names, 0 unless it says otherwise, and its first batch sets its
    mean. Every batch moves the means, so compute each once. The trainer keeps one of these with its
    checkpoints.
    """

    def __init__(self) -> None:
        """Start without groups."""
        self.columns: tuple[str, ...] = ()
        """Columns that define the groups; set by the first batch."""
        self.means: dict[tuple[Hashable, ...], float] = {}

    def copy(self) -> RunningMean:
        """Another one with the same means, which a batch moves without moving these."""
        other = RunningMean()
        other.columns, other.means = self.columns, dict(self.means)
        return other

    def before(
        self, columns: Sequence[str], keys: Sequence[tuple[Hashable, ...]], start: float = 0.0
    ) -> Floats:
        """The baselines of groups `keys` from earlier batches, (groups,); `start` without any.

        Raises:
            UsageError: earlier batches had other columns.
        """
        if self.means and self.columns != tuple(columns):
            raise UsageError(
                f"this running mean is one over {', '.join(self.columns)} and cannot be the "
                f"baseline over {', '.join(columns)}: start a new RunningMean."
            )
        return np.array([self.means.get(key, start) for key in keys], np.float64)

    def update(
        self,
        columns: Sequence[str],
        keys: Sequence[tuple[Hashable, ...]],
        means: Floats,
        decay: float,
    ) -> None:
        """Move the means of groups `keys` towards a batch's means, (groups,)."""
        self.columns = tuple(columns)
        for key, mean in zip(keys, means.tolist(), strict=True):
            old = self.means.setdefault(key, mean)
            self.means[key] = decay * old + (1.0 - decay) * mean

    def state_dict(self) -> dict[str, Any]:
        """The means as plain values that JSON and torch can keep."""
        return {
            "columns": list(self.columns),
            "means": [[list(key), mean] for key, mean in self.means.items()],
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the means from `state_dict`."""
        self.columns = tuple(state["columns"])
        self.means = {tuple(key): float(mean) for key, mean in state["means"]}
