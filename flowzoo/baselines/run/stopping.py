"""Early stopping: no more gains, an accuracy that is reached, or a collapse.

A function of the metrics so far only, so that a resumed run ends at the same step.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from flowzoo.agents.evaluation.intervals import Z
from flowzoo.baselines.diagnostics.collapse import find_collapse
from flowzoo.baselines.settings.options import StopOn


def stop_reason(
    rows: Sequence[Mapping[str, Any]],
    patience: int,
    at: float | None,
    on: StopOn | None = None,
) -> str:
    """Reason to end a run after the last of `rows`, or empty; runs end at evaluations only.

    Args:
        rows: the metrics so far.
        patience: evaluations in a row that may pass without one that is better, beyond noise, than
            the last that was (the first evaluation, to begin with). Better is a gain, paired over
            problems, whose 95 % interval excludes 0, so that many small gains add up to one. 0: any
            number.
        at: an accuracy that is good enough; None: none is.
        on: what else ends it: `collapse`, a lasting loss that `find_collapse` sees in two
            evaluations one after the other.
    """
    if not rows or "eval/scores" not in rows[-1]:
        return ""
    accuracy = rows[-1]["eval/reward/mean"]
    if at is not None and accuracy >= at:
        return f"held-out accuracy {100 * accuracy:.1f} % reaches stop_at {at:g}"
    collapse = find_collapse(rows) if on == "collapse" else None
    if collapse is not None:
        return f"{collapse.text} (stop_on collapse)"
    if not patience:
        return ""
    best, waited = None, 0
    for row in rows:
        if "eval/scores" not in row:
            continue
        if best is None or beyond_noise(best["eval/scores"], row["eval/scores"]):
            best, waited = row, 0
        else:
            waited += 1
    if best is None or waited < patience:
        return ""
    return (
        f"none of the {waited} evaluations since step {best['step']} was better than its "
        f"{100 * best['eval/reward/mean']:.1f} % beyond noise (stop_patience {patience})"
    )


def beyond_noise(before: Sequence[float], after: Sequence[float]) -> bool:
    """True if the mean of `after - before` is above 0 by its normal 95 % interval over items."""
    gaps = np.asarray(after, np.float64) - np.asarray(before, np.float64)
    if len(gaps) < 2:
        return bool(gaps.mean() > 0)
    return bool(gaps.mean() > Z * gaps.std(ddof=1) / math.sqrt(len(gaps)))
