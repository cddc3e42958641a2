"""What a run's own numbers warn of: crashes, spikes, groups without signal, truncation."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from flowzoo.baselines.diagnostics.silence import silence_record
from flowzoo.baselines.report.course_findings import distance_moved, missed_peak
from flowzoo.baselines.report.findings import Finding, listed, percent
from flowzoo.baselines.run.reading import RunData
from flowzoo.baselines.settings.config import TrainConfig
from flowzoo.baselines.training.metrics import spike

NORM = "learn/grad_norm/"
"""Before a policy's name: the norm of its gradient."""
LOST = 0.2
"""Fall of the mean training score after which groups without signal are no matter of problems."""
MANY = 0.5
"""Share of groups without variance that is worth a word."""
LONG = 0.1
"""Share of truncated replies that is worth a word."""
SILENCE_TITLES = {
    "nothing": "A step trained nothing",
    "truncation": "Replies were cut off while training",
    "reward": "Rewards did not differ",
    "role": "A role learnt nothing",
    "unread": "Replies could not be read",
}
"""By the kind of the cause, see `flowzoo.baselines.diagnostics.silence`."""
USUAL = asdict(TrainConfig())
"""Settings that the record of a run leaves out."""
RECENT = 12
"""Steps over which groups are looked at."""


def health_findings(run: RunData) -> list[Finding]:
    """What the learner's own numbers warn of."""
    found: list[Finding] = []
    bad_rows = sorted(run.folder.glob("nonfinite-*.jsonl"))
    if bad_rows:
        text = f"The loss was not finite; the rows are in {listed([one.name for one in bad_rows])}."
        found.append(Finding("bad", "The run stopped on a loss that was not finite", text))
    if run.summary is None:
        reached = run.rows[-1]["step"] if run.rows else 0
        text = f"It has reached step {reached} of {run.settings.get('steps', '?')}."
        found.append(Finding("warn", "The run is not finished", text))
    found += [*missed_peak(run), *distance_moved(run), *_spikes(run), *_groups(run)]
    found += [*_truncation(run), *_silences(run)]
    return found


def _silences(run: RunData) -> list[Finding]:
    """What the run itself warned of while it trained."""
    steps = run.rows[-1]["step"] if run.rows else 0
    return [
        Finding(
            "warn",
            SILENCE_TITLES[one["cause"].partition("/")[0]],
            f"{one['text'][0].upper()}{one['text'][1:]}. So at {one['steps']} of {steps} steps.",
        )
        for one in silence_record(run.rows, USUAL | dict(run.settings))
    ]


def _spikes(run: RunData) -> list[Finding]:
    """Found anew from the norms, so that runs of earlier versions are judged by this one's rule."""
    said: list[str] = []
    for name in sorted({name for row in run.rows for name in row if name.startswith(NORM)}):
        norms = [(row["step"], row[name]) for row in run.rows if _number(row.get(name))]
        values = [norm for _, norm in norms]
        steps = [step for n, (step, norm) in enumerate(norms) if spike(norm, values[:n])]
        if steps:
            said.append(
                f"of policy {name.removeprefix(NORM)} at {len(steps)} of {len(norms)} steps, first "
                f"at step {steps[0]}"
            )
    if not said:
        return []
    text = (
        "The gradient norm rose above 5 times its running median, and more than its usual spread "
        f"explains: {'; '.join(said)}."
    )
    return [Finding("warn", "Gradient spikes", text)]


def _groups(run: RunData) -> list[Finding]:
    rows = [row for row in run.rows if row.get("group/count")][-RECENT:]
    if not rows:
        return []
    flat = sum(row["group/zero_variance"] for row in rows) / sum(row["group/count"] for row in rows)
    if flat <= MANY:
        return []
    scores = [row["reward/mean"] for row in rows if _number(row.get("reward/mean"))]
    said = f"Over the last {len(rows)} measured steps {percent(flat)} of the groups had rewards "
    said += "without variance and taught nothing: "
    lost = _lost(run, scores)
    if lost:
        return [Finding("warn", "Most groups carry no signal", f"{said}{lost}")]
    text = (
        f"{said}by now the problems are {_difficulty(scores, flat)}. --refill replaces such "
        "problems by others during training."
    )
    return [Finding("warn", "Most groups carry no signal", text)]


def _lost(run: RunData, scores: Sequence[float]) -> str:
    """That the problems became too hard for what is left of the policy, if they did."""
    earlier = [row["reward/mean"] for row in run.rows if _number(row.get("reward/mean"))]
    windows = [sum(earlier[end - 3 : end]) / 3 for end in range(3, len(earlier) + 1)]
    now = sum(scores[-3:]) / len(scores[-3:]) if scores else math.nan
    if not windows or not now < max(windows) / 2 or max(windows) - now < LOST:
        return ""
    return (
        f"the policy no longer solves what it solved. Its mean score was {percent(max(windows))} "
        f"over three steps and is {percent(now)} by now; other problems would not mend that, an "
        "earlier checkpoint with smaller steps (--lr) may."
    )


def _difficulty(scores: Sequence[float], flat: float) -> str:
    """What most of the groups without variance found the problems, as far as mean scores say."""
    mean = sum(scores) / len(scores) if scores else math.nan
    if 1 - mean < flat / 2:  # no more of them can have been wrong throughout
        return f"too easy (mean score {percent(mean)})"
    if mean < flat / 2:
        return f"too hard (mean score {percent(mean)})"
    return "too easy or too hard"


def _truncation(run: RunData) -> list[Finding]:
    if not run.evaluations:
        return []
    last = run.evaluations[-1]
    parts = [
        f"{percent(last[f'eval/truncated/{role}'])} of {role}"
        for role in run.roles
        if _number(last.get(f"eval/truncated/{role}")) and last[f"eval/truncated/{role}"] > LONG
    ]
    if not parts:
        return []
    text = f"At the last evaluation the length limit cut off the replies of: {listed(parts)}."
    return [Finding("warn", "Replies run into the length limit", text)]


def _number(value: Any) -> bool:
    return isinstance(value, (int, float)) and math.isfinite(value)
