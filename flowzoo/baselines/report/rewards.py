"""Findings on rewards: training reward against held-out score, a shaped score against `solved`."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from flowzoo.aliases import Floats
from flowzoo.baselines.report.findings import (
    Facts,
    Finding,
    RunFindings,
    between,
    is_finite,
    percent,
    points,
)
from flowzoo.baselines.run.reading import RunData, end_episodes
from flowzoo.baselines.stats import paired_gain

FALL = 0.10  # fall of held-out accuracy beside which a reward is looked at
APART, Z_APART = 0.20, 3.0
"""Growth of the distance of training reward and held-out accuracy that is called, and its size in
standard errors."""
FEWEST_STEPS = 6
FEWEST = 30  # problems


def rewards(run: RunData, facts: Facts) -> RunFindings:
    """Report a training reward or a shaped score that parts from its purpose."""
    return RunFindings(findings=[*_hacked_reward(run, facts["gain"]), *_shaped_score(run)])


def _hacked_reward(run: RunData, change: Facts | None) -> list[Finding]:
    values = [row["reward/mean"] for row in run.rows if is_finite(row.get("reward/mean"))]
    if len(values) < FEWEST_STEPS or change is None or run.settings.get("env"):
        return []
    gain = change["last"]
    if gain["mean"] > -FALL or gain["high"] >= 0:
        return []
    if max(values) > 1:  # a reward of another scale
        values = [value / max(values) for value in values]
    # The first step samples with the starting weights, as the first evaluation does.
    last = values[-max(3, len(values) // 3) :]
    held_out = [(float(scores.mean()), len(scores)) for scores in run.scores[[0, -1]]]
    parted = (float(np.mean(last)) - held_out[1][0]) - (values[0] - held_out[0][0])
    # A batch has few problems: its noise is read off the differences from step to step.
    noise = float(np.mean(np.diff(values[len(values) // 2 :]) ** 2)) / 2 * (1 + 1 / len(last))
    noise += max(values[0] * (1 - values[0]), 0.0) / _rollouts(run)
    noise += sum(share * (1 - share) / items for share, items in held_out)
    if parted < APART or parted < Z_APART * math.sqrt(noise):
        return []
    source = str(run.settings.get("reward") or "")
    text = (
        f"The mean training reward was {percent(values[0])} at the first step and is "
        f"{percent(float(np.mean(last)))} over the last {len(last)}, while held-out accuracy "
        f"changed by {points(gain['mean'], sign=True)} points "
        f"({between(gain['low'], gain['high'])}): they have parted by {points(parted)} points "
        f"(standard error {points(math.sqrt(noise))})."
    )
    if source:
        text += (
            f" Training was paid by {source}, not by the task's score: its reward can be earned "
            "without right answers."
        )
        return [Finding("bad", "The reward was earned without right answers", text, "hacked")]
    text += (
        " Training and held-out problems differ, or the training problems were learned by heart."
    )
    return [Finding("bad", "Training reward rose while held-out accuracy fell", text, "parted")]


def _rollouts(run: RunData) -> int:
    # Episodes of one problem resemble one another.
    return max(1, int(run.settings.get("problems") or 1))


def _shaped_score(run: RunData) -> list[Finding]:
    ends = end_episodes(run)
    if ends is None:
        return []
    first, last = map(_by_problem, ends)
    both = sorted(first.keys() & last.keys())
    if len(both) < FEWEST:
        return []
    before, after = (np.array([rows[name] for name in both]) for rows in (first, last))
    if not _is_shaped(before) and not _is_shaped(after):
        return []
    score = paired_gain(before[:, 0].tolist(), after[:, 0].tolist())
    solved = paired_gain(before[:, 1].tolist(), after[:, 1].tolist())
    text = (
        f"The score is paid in part for other things than a solution. It changed by "
        f"{points(score.mean, sign=True)} points ({between(score.low, score.high)}), and the share "
        f"of problems that were solved went from {percent(float(before[:, 1].mean()))} to "
        f"{percent(float(after[:, 1].mean()))} ({points(solved.mean, sign=True)} points, "
        f"{between(solved.low, solved.high)})."
    )
    if score.low > 0 and solved.high < 0:
        title = "The score rose while fewer problems were solved"
        return [Finding("bad", title, text, "hacked")]
    if score.low > 0 and solved.low <= 0:
        title = "The score rose, and no more problems are solved"
        return [Finding("warn", title, text)]
    return [Finding("result", "The score is shaped: `solved` counts solutions", text)]


def _by_problem(episodes: Sequence[Mapping[str, Any]]) -> dict[str, tuple[float, float]]:
    sums: dict[str, list[tuple[float, float]]] = {}
    for episode in episodes:
        solved = episode.get("facts", {}).get("solved")
        if solved is not None:
            pair = float(episode["score"] or 0.0), float(solved)
            sums.setdefault(episode["problem"], []).append(pair)
    means = {problem: np.mean(pairs, axis=0) for problem, pairs in sums.items()}
    return {problem: (float(mean[0]), float(mean[1])) for problem, mean in means.items()}


def _is_shaped(pairs: Floats) -> bool:
    return bool(np.any(pairs[:, 0] != pairs[:, 1]))
