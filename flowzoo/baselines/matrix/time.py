"""How long a matrix will still take, from what its runs took so far."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from flowzoo.baselines.matrix.jobs import TrainingJob


def done_part(run: TrainingJob) -> float:
    """The part of a run that is done, 0 to 1: of its steps or of its tokens, whichever is more."""
    if run.state == "finished":
        return 1.0
    row, config = run.newest(), run.config
    parts = [row.get("step", 0) / config.steps]
    if config.token_budget:
        parts.append(row.get("tokens/total", 0) / config.token_budget)
    return min(1.0, max(parts))


def whole_seconds(run: TrainingJob) -> float | None:
    """What a run takes from beginning to end, by what it took so far; None: not begun to train."""
    row = run.newest()
    return row["time/total"] / done_part(run) if row.get("step", 0) > 0 else None


def remaining_seconds(runs: Sequence[TrainingJob], workers: int) -> float | None:
    """Seconds until all runs are finished, with `workers` at a time; None: not known yet.

    A run that has not begun is taken to be as long as others of its cell, else of its workflow and
    model, else as the mean of all. Evaluations of controls at equal inference are not in it.
    """
    known = [(run, seconds) for run in runs if (seconds := whole_seconds(run)) is not None]
    if not known:
        return None
    left: list[float] = []
    for run in runs:
        if run.state in ("finished", "failed"):
            continue
        whole = whole_seconds(run)
        if whole is None:
            whole = _like(run, known)
        left.append(whole * (1 - done_part(run)))
    return max(max(left), sum(left) / workers) if left else 0.0


def as_time(seconds: float) -> str:
    """A duration for people."""
    minutes = round(seconds / 60)
    if minutes < 1:
        return "less than a minute"
    return f"{minutes} min" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02d} min"


def _like(run: TrainingJob, known: Sequence[tuple[TrainingJob, float]]) -> float:
    """Mean time of the runs that are most like `run`."""
    same = [seconds for other, seconds in known if other.cell.name == run.cell.name]
    kind = (run.config.workflow, run.config.model)
    near = [
        seconds for other, seconds in known if (other.config.workflow, other.config.model) == kind
    ]
    return float(np.mean(same or near or [seconds for _, seconds in known]))
