"""Remaining time of a matrix, estimated from its runs so far."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from flowzoo.baselines.matrix.jobs import TrainingJob


def done_part(run: TrainingJob) -> float:
    """Finished fraction of a run, 0 to 1: of its steps or of its tokens, the larger one."""
    if run.state == "finished":
        return 1.0
    row, config = run.newest(), run.config
    parts = [row.get("step", 0) / config.steps]
    if config.token_budget:
        parts.append(row.get("tokens/total", 0) / config.token_budget)
    return min(1.0, max(parts))


def whole_seconds(run: TrainingJob) -> float | None:
    """Estimated seconds of a whole run; None: it has not begun to train."""
    row = run.newest()
    return row["time/total"] / done_part(run) if row.get("step", 0) > 0 else None


def remaining_seconds(runs: Sequence[TrainingJob], workers: int) -> float | None:
    """Seconds until all runs are finished, with `workers` at a time; None: unknown yet.

    A run that has not begun takes as long as others of its cell, else of its workflow and model,
    else as the mean of all. Evaluations of controls at equal inference are not included.
    """
    measured = [(run, seconds) for run in runs if (seconds := whole_seconds(run)) is not None]
    if not measured:
        return None
    left: list[float] = []
    for run in runs:
        if run.state in ("finished", "failed"):
            continue
        whole = whole_seconds(run)
        if whole is None:
            whole = _like(run, measured)
        left.append(whole * (1 - done_part(run)))
    return max(max(left), sum(left) / workers) if left else 0.0


def as_time(seconds: float) -> str:
    """A duration for people."""
    minutes = round(seconds / 60)
    if minutes < 1:
        return "less than a minute"
    return f"{minutes} min" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02d} min"


def _like(run: TrainingJob, measured: Sequence[tuple[TrainingJob, float]]) -> float:
    """Mean time of the runs most similar to `run`."""
    same = [seconds for other, seconds in measured if other.cell.name == run.cell.name]
    kind = (run.config.workflow, run.config.model)
    near = [
        seconds
        for other, seconds in measured
        if (other.config.workflow, other.config.model) == kind
    ]
    return float(np.mean(same or near or [seconds for _, seconds in measured]))
