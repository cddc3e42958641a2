"""Words on a log of another trainer: whether its score fell, and what else moved then.

A log has means over batches: no values by problem, no roles, and nothing was run again. So there is
no error rate here, and no cause.
"""

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from flowzoo.errors import UsageError

STEPS = ("_step", "step", "global_step", "train/global_step")
SCORES = ("eval_accuracy", "eval/accuracy", "eval_reward", "eval/reward", "reward", "train/reward")
"""Names of scores in logs of TRL and W&B, held-out ones first."""
BESIDE = (
    "kl", "entropy", "grad_norm", "learning_rate", "completion_length", "completions/mean_length",
    "completions/clipped_ratio", "frac_reward_zero_std",
)  # fmt: skip
WINDOW = 5
"""Logged values whose mean is a level."""
CLEAR = 3.0
"""Standard errors, of values about their level, that a fall must have."""


def read_log(file: Path) -> list[dict[str, Any]]:
    """The rows of a file of JSON lines; a last line that is cut short is left out."""
    rows: list[dict[str, Any]] = []
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"--log {file} cannot be read: {error}") from None
    for number, line in enumerate(lines, start=1):
        try:
            row = json.loads(line) if line.strip() else {}
        except (ValueError, RecursionError):
            row = None
        if isinstance(row, dict):
            rows.append(row)
        elif number < len(lines):
            raise UsageError(
                f"--log {file}, line {number}: expected one JSON object a line, as trainers log "
                f"metrics, got {line[:60]!r}"
            )
    return rows


def log_lines(file: Path) -> list[str]:
    """Say in lines what the log in a file shows.

    Raises:
        UsageError: it is no file of JSON lines, or has no score with enough values.
    """
    rows = read_log(file)
    name = next((name for name in SCORES if len(_course(rows, name)) > 2 * WINDOW), None)
    if name is None:
        raise UsageError(
            f"--log {file} has no score with more than {2 * WINDOW} values: expected one of "
            f"{', '.join(SCORES)}"
        )
    course = _course(rows, name)
    values = np.array([value for _, value in course])
    means = np.convolve(values, np.full(WINDOW, 1 / WINDOW), "valid")
    best = int(means[:-WINDOW].argmax())
    top, end = values[best : best + WINDOW], values[-WINDOW:]
    error = math.sqrt((float(top.var(ddof=1)) + float(end.var(ddof=1))) / WINDOW)
    drop, since = float(top.mean() - end.mean()), course[best + WINDOW - 1][0]
    verdict = "it fell" if drop > 0 and drop > CLEAR * error else "no clear fall"
    lines = [
        f"{name}: {verdict}: {top.mean():.4g} up to step {since} (best mean of {WINDOW} values), "
        f"{end.mean():.4g} at the end, step {course[-1][0]}; standard error {error:.2g}"
    ]
    for other in BESIDE:
        for key in (other, f"train/{other}"):
            before = [value for step, value in _course(rows, key) if step <= since][-WINDOW:]
            after = [value for step, value in _course(rows, key) if step > since][-WINDOW:]
            if before and after:
                lines.append(f"{key}: {np.mean(before):.4g} then, {np.mean(after):.4g} at the end")
    lines.append(
        "a log alone cannot say more: not the setting that did it (nothing was run again), nor the "
        "role, nor the chance of a false call (it has means, no values by problem)"
    )
    return lines


def _course(rows: Sequence[Mapping[str, Any]], name: str) -> list[tuple[int, float]]:
    """Step and value of the rows that have a finite number under a name."""
    course: list[tuple[int, float]] = []
    for number, row in enumerate(rows):
        value = row.get(name)
        if isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value):
            step = next((row[key] for key in STEPS if isinstance(row.get(key), int)), number)
            course.append((step, float(value)))
    return course
