"""What held-out scores say: accuracies with intervals, gain, and the cliff verdict."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from flowzoo.agents.evaluation.intervals import Z, interval
from flowzoo.baselines.diagnostics.cliff import EARLIEST, LAST, TOO_COARSE, Cliff, find_cliff
from flowzoo.baselines.run.reading import Floats, RunData
from flowzoo.baselines.stats import MeanUncertainty, paired_gain

FEWEST_ITEMS = 30
"""Items below which a bootstrap over them says little."""
ENOUGH = LAST + 2
"""Evaluations from which on a run has a terminal accuracy and can have a cliff."""
GOOD_COVERAGE = 10
"""Evaluations after step 0 that a remedy asks for: a peak is then missed by a tenth of the run."""


def cliff_of(runs: Sequence[RunData]) -> tuple[Cliff | None, str]:
    """The verdict on one cell, and why there is none otherwise."""
    steps = runs[0].steps
    shapes = {(run.scores.shape, tuple(run.steps)) for run in runs}
    if len(shapes) > 1:
        return None, "the seeds were evaluated at different steps or on different numbers of items"
    scores = [run.scores for run in runs]
    if len(steps) < EARLIEST:
        why = f"a fall takes {EARLIEST} evaluations (before, a peak, after) and there are"
        return None, f"{why} {len(steps)}; {more_evaluations(runs[0])}"
    if scores[0].shape[1] < FEWEST_ITEMS:
        items = scores[0].shape[1]
        return None, f"a verdict needs {FEWEST_ITEMS} items or more and there are {items}"
    if not all(np.isfinite(one).all() for one in scores):
        return None, "some held-out scores are not finite"
    return find_cliff(scores, steps), ""


def cliff_facts(cliff: Cliff | None, why: str, remedy: str = "") -> dict[str, Any]:
    """The verdict as plain values; `why` says why there is none, `remedy` what would give one."""
    if cliff is None:
        return {"verdict": None, "why": why}
    return asdict(cliff) | {"why": "", "items_needed": items_needed(cliff), "remedy": remedy}


def more_evaluations(run: RunData) -> str:
    """What would let a fall be seen, in words."""
    every = max(1, run.rows[-1]["step"] // GOOD_COVERAGE)
    return f"repeat the run with --eval-every {every}, which gives {GOOD_COVERAGE} or more"


def items_needed(cliff: Cliff) -> int | None:
    """Items for which a verdict could be given, at this spread; None where there are enough."""
    if cliff.verdict != "not enough items":
        return None
    coarse = MeanUncertainty(cliff.se_items**2, 0.0, cliff.seeds).detectable
    return math.ceil(cliff.items * (coarse / TOO_COARSE) ** 2)


def accuracy_table(run: RunData, cliff: Cliff | None) -> list[dict[str, Any]]:
    """First, best and last held-out accuracy, each with its interval and what it had cost."""
    evaluations = run.evaluations
    if not evaluations:
        return []
    scores = run.scores
    best = int(scores.mean(axis=1).argmax())
    last = len(scores) - 1
    rows = [
        _at(run, 0, "before training", ""),
        _at(run, best, "best evaluation", "chosen for being best, so biased upwards"),
        _at(run, last, "last evaluation", ""),
    ]
    if cliff is not None:
        rows.insert(2, _plain("peak, cross-fitted", cliff.peak, "without that bias"))
    if len(scores) >= ENOUGH:
        end = scores[-LAST:].mean(axis=0)
        low, high = _normal(end)
        note = f"mean of the last {LAST} evaluations"
        rows.append(_plain("terminal", float(end.mean()), note) | {"low": low, "high": high})
    return rows


def gain_facts(run: RunData) -> dict[str, Any] | None:
    """Paired gain of the last evaluation, and of the terminal accuracy, over step 0."""
    scores = run.scores
    if len(scores) < 2:
        return None
    gain = paired_gain(scores[0].tolist(), scores[-1].tolist())
    levels = {"before": float(scores[0].mean()), "after": float(scores[-1].mean())}
    facts: dict[str, Any] = {"last": gain._asdict(), "step": run.steps[-1], **levels}
    if len(scores) >= ENOUGH:
        end = scores[-LAST:].mean(axis=0)
        facts["terminal"] = paired_gain(scores[0].tolist(), end.tolist())._asdict()
    return facts


def _at(run: RunData, place: int, name: str, note: str) -> dict[str, Any]:
    row, scores = run.evaluations[place], run.scores[place]
    low, high = interval(scores)
    return {
        "name": name,
        "note": note,
        "step": row["step"],
        "accuracy": float(scores.mean()),
        "low": low,
        "high": high,
        "n": len(scores),
        "tokens": row.get("tokens/total"),
        "seconds": row.get("time/total"),
    }


def _plain(name: str, accuracy: float, note: str) -> dict[str, Any]:
    return {
        "name": name, "note": note, "step": None, "accuracy": accuracy, "low": None, "high": None,
        "n": None, "tokens": None, "seconds": None,
    }  # fmt: skip


def _normal(values: Floats) -> tuple[float, float]:
    half = Z * float(values.std(ddof=1)) / math.sqrt(len(values)) if len(values) > 1 else math.inf
    return float(values.mean()) - half, float(values.mean()) + half
