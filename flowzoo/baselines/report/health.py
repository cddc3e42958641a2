"""Findings on the health of a run: crashes, spikes, missed peaks, groups, truncation."""

import math
from collections.abc import Sequence
from dataclasses import asdict
from itertools import pairwise

import numpy as np

from flowzoo.baselines.diagnostics.silence import silence_record
from flowzoo.baselines.learner.schedule import odd_rates
from flowzoo.baselines.report.accuracy import is_gain, more_evaluations
from flowzoo.baselines.report.findings import (
    Facts,
    Finding,
    FindingLevel,
    RunFindings,
    metric_series,
)
from flowzoo.baselines.report.words import is_finite, join_words, percent, points
from flowzoo.baselines.run.reading import RunData
from flowzoo.baselines.settings.config import TrainConfig
from flowzoo.baselines.training.metrics import spike

NORM = "learn/grad_norm/"  # prefix of the metric of a policy's gradient norm
RATE = "learn/lr/"
LOST = 0.2  # fall of the mean training score that explains groups without variance by itself
MANY = 0.5  # share of groups without variance that is reported
LONG = 0.1  # share of truncated replies that is reported
SILENCE_TITLES = {
    "nothing": "A step changed no weight",
    "truncation": "Replies were cut off while training",
    "reward": "Rewards did not differ",
    "role": "A role learned nothing",
    "unread": "Replies were unreadable",
    "endless": "No episode came to its end",
}
"""Title by kind of cause, see `flowzoo.baselines.diagnostics.silence`."""
USUAL = asdict(TrainConfig())  # default settings
RECENT = 12  # last steps over which groups are counted
WINDOW = 3  # steps whose mean training reward is compared with the evaluations around them
MISSED = 0.15
Z_WINDOWS = 3.5
"""Standard errors by which a missed peak exceeds the evaluations; a run has hundreds of windows."""
_OTHER_PROBLEMS = ("difficulty", "curriculum", "refill", "reward")
"""Settings under which training problems or rewards differ from evaluations."""
KL, RATIO = "learn/update_kl/", "learn/update_ratio_max/"
FAR = 0.1
"""Divergence of one iteration, in nats per token, that is reported. PPO implementations stop an
iteration at 0.01 to 0.05 (arXiv:1707.06347 aims at 0.003 to 0.03)."""


def health(run: RunData, facts: Facts) -> RunFindings:
    """Report what the metrics of the learner warn of."""
    findings = health_findings(run, learned=is_gain(facts["gain"]))
    return RunFindings({"distances": distances(run)}, findings)


def health_findings(run: RunData, *, learned: bool = False) -> list[Finding]:
    """Findings on crashes, spikes, missed peaks, groups, truncation and causes of no learning.

    `learned`: held-out accuracy rose, so that steps and groups without a signal did no harm.
    """
    findings: list[Finding] = []
    bad_rows = sorted(run.folder.glob("nonfinite-*.jsonl"))
    if bad_rows:
        names = join_words([path.name for path in bad_rows])
        text = f"The loss was not finite; the rows are in {names}."
        findings.append(Finding("bad", "The run stopped on a loss that was not finite", text))
    if run.summary is None:
        reached = run.rows[-1]["step"] if run.rows else 0
        text = f"It has reached step {reached} of {run.settings.get('steps', '?')}."
        findings.append(Finding("warn", "The run is not finished", text))
    trained, held_out = (
        sum(row.get(f"{prefix}reward/unknown", 0) for row in run.rows) for prefix in ("", "eval/")
    )
    if trained or held_out:
        text = (
            f"The reference answer or the sandbox is at fault, not a reply: {trained:,} training "
            f"episodes were not trained on, {held_out:,} held-out problems were left out of an "
            "evaluation. failures.jsonl has the reasons."
        )
        findings.append(Finding("warn", "Some verdicts are unknown", text))
    level: FindingLevel = "result" if learned else "warn"
    silences, groups = _silences(run, level), _groups(run, level)
    if any(finding.title == SILENCE_TITLES["reward"] for finding in silences):
        # Two other words for the same steps.
        silences = [finding for finding in silences if finding.title != SILENCE_TITLES["nothing"]]
        groups = []
    findings += [*missed_peak(run), *distance_moved(run), *_rates(run), *_spikes(run), *groups]
    return [*findings, *_truncation(run), *silences]


def _silences(run: RunData, level: FindingLevel) -> list[Finding]:
    steps = run.rows[-1]["step"] if run.rows else 0
    findings: list[Finding] = []
    for cause in silence_record(run.rows, USUAL | dict(run.settings)):
        kind, _, role = cause["cause"].partition("/")
        if kind in SILENCE_TITLES:  # judges have another finding
            text = (
                f"{cause['text'][0].upper()}{cause['text'][1:]}. Found first at step "
                f"{cause['first']} and last at step {cause['last']} of {steps}."
            )
            title = SILENCE_TITLES[kind] + (f": {role}" if role else "")
            findings.append(Finding(level if kind == "nothing" else "warn", title, text))
    return findings


def _rates(run: RunData) -> list[Finding]:
    text = [
        f"That of {policy} {course}."
        for policy, rates in sorted(metric_series(run, RATE).items())
        for course in odd_rates([rate for _, rate in rates])
    ]
    return [Finding("warn", "The learning rate does not fall once", " ".join(text))] if text else []


def _spikes(run: RunData) -> list[Finding]:
    policies: list[str] = []
    for policy, norms in sorted(metric_series(run, NORM).items()):
        values = [norm for _, norm in norms]
        steps = [step for n, (step, norm) in enumerate(norms) if spike(norm, values[:n])]
        if steps:
            count = f"{len(steps)} of {len(norms)} steps"
            policies.append(f"of policy {policy} at {count}, first at step {steps[0]}")
    text = (
        "The gradient norm rose above 5 times its running median, and more than its usual spread "
        f"explains: {'; '.join(policies)}."
    )
    return [Finding("warn", "Gradient spikes", text)] if policies else []


def _groups(run: RunData, level: FindingLevel) -> list[Finding]:
    rows = [row for row in run.rows if row.get("group/count")][-RECENT:]
    if not rows:
        return []
    flat = sum(row["group/zero_variance"] for row in rows) / sum(row["group/count"] for row in rows)
    if flat <= MANY:
        return []
    scores = [row["reward/mean"] for row in rows if is_finite(row.get("reward/mean"))]
    title = "Most groups have zero variance"
    text = (
        f"Over the last {len(rows)} measured steps {percent(flat)} of the groups had rewards "
        "without variance and no gradient: "
    )
    lost = _describe_loss(run, scores)
    if lost:
        return [Finding("warn", title, text + lost)]
    if run.pays:
        text += "by now all samples of a problem are paid the same."
        return [Finding(level, title, text)]
    text += f"by now the problems are {_difficulty(scores, flat)}."
    names = ("group/solve_none", "group/solve_all")
    if all(name in row for row in rows for name in names):
        none, every = (percent(sum(row[name] for row in rows) / len(rows)) for name in names)
        text += f" {none} of the problems were solved in no episode, {every} in every one."
    return [Finding(level, title, text)]


def _describe_loss(run: RunData, scores: Sequence[float]) -> str:
    earlier = [row["reward/mean"] for row in run.rows if is_finite(row.get("reward/mean"))]
    windows = [sum(earlier[end - 3 : end]) / 3 for end in range(3, len(earlier) + 1)]
    now = sum(scores[-3:]) / len(scores[-3:]) if scores else math.nan
    if not windows or not now < max(windows) / 2 or max(windows) - now < LOST:
        return ""
    lost = "earns what it earned" if run.pays else "solves problems that it solved"
    return (
        f"the policy no longer {lost}. Its mean score was "
        f"{percent(max(windows))} over three steps and is {percent(now)} by now."
    )


def _difficulty(scores: Sequence[float], flat: float) -> str:
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
    shares = {role: last.get(f"eval/truncated/{role}") for role in run.roles}
    parts = [
        f"{percent(share)} of {role}"
        for role, share in shares.items()
        if share is not None and is_finite(share) and share > LONG
    ]
    text = f"At the last evaluation the length limit cut off the replies of: {join_words(parts)}."
    return [Finding("warn", "Replies run into the length limit", text)] if parts else []


def missed_peak(run: RunData) -> list[Finding]:
    """Report a training reward well above both evaluations around it."""
    # The usual distance of training from held-out accuracy is subtracted; the standard error is
    # that of rewards from step to step.
    if any(run.settings.get(name) for name in _OTHER_PROBLEMS) or len(run.evaluations) < 2:
        return []
    rows = [row for row in run.rows if isinstance(row.get("reward/mean"), (int, float))]
    steps = np.array([row["step"] for row in rows])
    rewards = np.array([row["reward/mean"] for row in rows], np.float64)
    if len(steps) < 2 * WINDOW:
        return []
    accuracy = {row["step"]: float(np.mean(row["eval/scores"])) for row in run.evaluations}
    gaps = [
        float(rewards[near].mean()) - level
        for step, level in accuracy.items()
        if (near := np.abs(steps - step) <= 1).any()
    ]
    offset = max(0.0, float(np.median(gaps))) if gaps else 0.0
    jumps = np.diff(rewards)
    # Returns of an external environment are no shares: their variance is that of the scores.
    spreads = [float(np.var(row["eval/scores"])) for row in run.evaluations]
    items = len(run.evaluations[0]["eval/scores"])
    noise = float(np.mean(jumps**2)) / 2 / WINDOW + max(spreads) / items
    best: tuple[float, int, float, tuple[int, int]] | None = None
    for first, last in pairwise(sorted(accuracy)):
        inside = np.flatnonzero((steps > first) & (steps <= last))
        for index in inside[: len(inside) - WINDOW + 1]:
            level = float(rewards[index : index + WINDOW].mean())
            excess = level - offset - max(accuracy[first], accuracy[last])
            if best is None or excess > best[0]:
                best = excess, int(steps[index]), level, (first, last)
    if best is None or best[0] < MISSED or best[0] < Z_WINDOWS * math.sqrt(noise):
        return []
    excess, step, level, (first, last) = best
    text = (
        f"Over the {WINDOW} steps from {step} on the mean training reward was {percent(level)}, "
        f"while the evaluations around it, at steps {first} and {last}, measured "
        f"{percent(accuracy[first])} and {percent(accuracy[last])}: {points(excess)} points above "
        f"both (standard error {points(math.sqrt(noise))}). The best held-out {run.measure} "
        f"and the fall after it were probably larger than evaluated; {more_evaluations(run)}."
    )
    return [Finding("warn", "Evaluations missed a peak", text)]


def distance_moved(run: RunData) -> list[Finding]:
    """Report policies that moved far in one iteration."""
    far = [row for row in distances(run) if row["largest"] >= FAR]
    if not far:
        return []
    moves = "; ".join(
        f"{row['policy']} by {row['largest']:.2g} nats a token at step {row['step']} (median "
        f"{row['median']:.2g} over {row['updates']} measured iterations)" for row in far
    )  # fmt: skip
    text = f"One iteration moved {moves}. Trust regions in use stop at 0.01 to 0.05 nats."
    return [Finding("warn", "Large updates", text, "large update")]


def distances(run: RunData) -> list[Facts]:
    """Divergence by an iteration, per policy, on samples of its rows; nats per token."""
    # `total` is no distance between the ends: steps that cancel add up as well.
    rows: list[Facts] = []
    for policy, moved in sorted(metric_series(run, KL).items()):
        largest, step = max((value, step) for step, value in moved)
        values = [value for _, value in moved]
        ratios = [row[RATIO + policy] for row in run.rows if RATIO + policy in row]
        rows.append(
            {
                "policy": policy, "updates": len(values), "median": float(np.median(values)),
                "largest": largest, "step": step, "total": float(np.sum(values)),
                "ratio": max(ratios, default=math.nan),
            }
        )  # fmt: skip
    return rows
