"""Settings of where a run's work is done. Importing this needs no torch, so that help is fast."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class ScaleOptions:
    """Where the work is done."""

    shard_jobs: int | None = None
    """Episodes that are played as one batch; 0: all of a step. The log-probs of a reply depend on
    its batch in their last bits, so this is part of the run's numbers. None: 0."""
