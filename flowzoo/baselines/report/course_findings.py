"""What the course of the training metrics adds: peaks between evaluations, and how far it moved."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import numpy as np

from flowzoo.baselines.report.accuracy import more_evaluations
from flowzoo.baselines.report.findings import Finding, percent, points
from flowzoo.baselines.run.reading import RunData

WINDOW = 3
"""Steps whose mean training reward is held against the evaluations around them."""
MISSED = 0.15
Z_WINDOWS = 3.5
"""Standard errors above the evaluations that a missed peak has; a run has hundreds of windows."""
_OTHER_PROBLEMS = ("difficulty", "curriculum", "refill", "reward")
"""Settings under which training problems or rewards are not those of evaluations."""
KL, RATIO = "learn/update_kl/", "learn/update_ratio_max/"
FAR = 0.1
"""Divergence of one iteration, in nats per token, that is worth a word. PPO implementations stop an
iteration at 0.01 to 0.05 (arXiv 1707.06347 aims at 0.003 to 0.03)."""


def missed_peak(run: RunData) -> list[Finding]:
    """Whether the training reward was well above both evaluations around it.

    The usual distance of training from held-out accuracy, which the evaluations' own steps show,
    is taken off. The standard error is from how much rewards jump from step to step.
    """
    if any(run.settings.get(name) for name in _OTHER_PROBLEMS) or len(run.evaluations) < 2:
        return []
    steps, rewards = reward_course(run)
    if len(steps) < 2 * WINDOW:
        return []
    accuracy = {row["step"]: float(np.mean(row["eval/scores"])) for row in run.evaluations}
    offset = max(0.0, _offset(steps, rewards, accuracy))
    jumps = np.diff(rewards)
    evaluated = accuracy.values()
    items = len(run.evaluations[0]["eval/scores"])
    noise = float(np.mean(jumps**2)) / 2 / WINDOW + max(p * (1 - p) for p in evaluated) / items
    best: tuple[float, int, float, tuple[int, int]] | None = None
    known = sorted(accuracy)
    for first, last in pairwise(known):
        inside = np.flatnonzero((steps > first) & (steps <= last))
        for place in inside[: len(inside) - WINDOW + 1]:
            level = float(rewards[place : place + WINDOW].mean())
            excess = level - offset - max(accuracy[first], accuracy[last])
            if best is None or excess > best[0]:
                best = excess, int(steps[place]), level, (first, last)
    if best is None or best[0] < MISSED or best[0] < Z_WINDOWS * math.sqrt(noise):
        return []
    excess, step, level, (first, last) = best
    text = (
        f"Over the {WINDOW} steps from {step} on the mean training reward was {percent(level)}, "
        f"while the evaluations around it, at steps {first} and {last}, say "
        f"{percent(accuracy[first])} and {percent(accuracy[last])}: {points(excess)} points above "
        f"both (standard error {points(math.sqrt(noise))}). The best held-out accuracy and "
        f"the fall after it were probably larger than what was evaluated; {more_evaluations(run)}."
    )
    return [Finding("warn", "A peak between two evaluations was missed", text)]


def reward_course(run: RunData) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Steps of training and their mean rewards."""
    rows = [row for row in run.rows if isinstance(row.get("reward/mean"), (int, float))]
    return (
        np.array([row["step"] for row in rows]),
        np.array([row["reward/mean"] for row in rows], np.float64),
    )


def _offset(steps: Any, rewards: Any, accuracy: dict[int, float]) -> float:
    """Median distance of the training reward of the steps next to an evaluation from it."""
    gaps = [
        float(rewards[near].mean()) - level
        for step, level in accuracy.items()
        if (near := np.abs(steps - step) <= 1).any()
    ]
    return float(np.median(gaps)) if gaps else 0.0


def distance_moved(run: RunData) -> list[Finding]:
    """How far every policy moved in one iteration, where that was measured."""
    far = [row for row in distances(run) if row["largest"] >= FAR]
    if not far:
        return []
    said = "; ".join(
        f"{row['policy']} by {row['largest']:.2g} nats a token at step {row['step']} (median "
        f"{row['median']:.2g} over {row['updates']} measured iterations)" for row in far
    )  # fmt: skip
    text = (
        f"One iteration moved {said}. Trust regions in use stop at 0.01 to 0.05 nats. A smaller "
        "--lr, or fewer --updates where an iteration takes several optimiser steps, moves it less."
    )
    return [Finding("warn", "Large updates", text)]


def distances(run: RunData) -> list[dict[str, Any]]:
    """Per policy: how far its iterations moved it, on samples of its rows; nats per token.

    `median`, `largest` (at `step`) and `total` of the measured iterations' KL; `ratio`, the largest
    factor by which a sampled token's probability changed. The sum of divergences is no distance
    between the ends: steps that cancel add up as well.
    """
    found: list[dict[str, Any]] = []
    names = sorted({name for row in run.rows for name in row if name.startswith(KL)})
    for name in names:
        policy = name.removeprefix(KL)
        moved = [
            (float(row[name]), row["step"])
            for row in run.rows
            if isinstance(row.get(name), (int, float)) and math.isfinite(row[name])
        ]
        if not moved:
            continue
        largest, step = max(moved)
        values = [value for value, _ in moved]
        ratios = [row[RATIO + policy] for row in run.rows if RATIO + policy in row]
        found.append(
            {
                "policy": policy,
                "updates": len(values),
                "median": float(np.median(values)),
                "largest": largest,
                "step": step,
                "total": float(np.sum(values)),
                "ratio": max(ratios, default=math.nan),
            }
        )
    return found
