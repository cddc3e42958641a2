"""Findings on rewards: training reward against held-out score, shaped scores, judges."""

import math
from collections.abc import Sequence

import numpy as np

from flowzoo.agents.evaluation.summary import kappa
from flowzoo.aliases import Floats
from flowzoo.baselines.diagnostics.checkers import Episode
from flowzoo.baselines.diagnostics.cliff import FELL
from flowzoo.baselines.report.findings import Facts, Finding, RunFindings
from flowzoo.baselines.report.words import gain_words, is_finite, percent, points
from flowzoo.baselines.run.reading import RunData, end_episodes
from flowzoo.baselines.stats import paired_gain

FALL = 0.10  # fall of held-out accuracy beside which a reward is looked at
APART = 0.20  # growth of the distance of training reward and held-out accuracy that is called
Z_APART = {"": 3.0, "reward": 2.0}
"""The same in standard errors, under the task's score and under a reward of the user's own."""
LEAST_KAPPA = 0.2  # agreement beyond chance below which a judge is called
FEWEST_STEPS = 6
FEWEST = 30  # problems


def rewards(run: RunData, facts: Facts) -> RunFindings:
    """Report a training reward or a shaped score that parts from its purpose."""
    return RunFindings(
        findings=[*_hacked_reward(run, facts), *_shaped_score(run), *judge_agreement(run)]
    )


def judge_agreement(run: RunData) -> list[Finding]:
    """Report how far the judge's verdicts agree with the truth, and how many were unreadable."""
    of_steps = [row for row in run.rows if row.get("judge/verdicts")]
    prefix = "judge/" if of_steps else "eval/judge/"
    rows = of_steps or [row for row in run.rows if row.get("eval/judge/verdicts")]
    if not rows:
        return []
    verdicts, unreadable, compared = (
        sum(int(row.get(prefix + name, 0)) for row in rows)
        for name in ("verdicts", "unreadable", "compared")
    )
    lost = f"Of {verdicts:,} verdicts {unreadable:,} could not be read; none of these counts as 0."
    if not compared or run.pays:
        scores = "pay, and no truth" if run.pays else "no role score"
        text = f"The judged replies have {scores} to compare with. {lost}"
        return [Finding("unknown", "The judge was compared with no truth", text)]
    agreement, passed, right = (
        sum(row[prefix + name] * row[prefix + "compared"] for row in rows if prefix + name in row)
        / compared
        for name in ("agreement", "passed", "right")
    )
    chance = passed * right + (1 - passed) * (1 - right)
    text = (
        f"On {compared:,} judged replies with a role score both were on the same side of 0.5 in "
        f"{percent(agreement)} (Cohen's kappa {kappa(agreement, passed, right)}, by chance alone "
        f"{percent(chance)}): the judge passed {percent(passed)}, and {percent(right)} were right. "
        f"{lost}"
    )
    error = math.sqrt(agreement * (1 - agreement) / compared)
    if agreement + 2 * error < chance + LEAST_KAPPA * (1 - chance):
        return [Finding("warn", "The judge hardly agrees with the truth", text)]
    return [Finding("result", f"The judge agrees with the truth on {percent(agreement)}", text)]


def _hacked_reward(run: RunData, facts: Facts) -> list[Finding]:
    course = [(int(row["step"]), float(row["reward/mean"])) for row in run.rows
              if is_finite(row.get("reward/mean"))]  # fmt: skip
    top = _top(run, facts)
    if len(course) < FEWEST_STEPS or top is None or run.settings.get("env"):
        return []
    steps, values = (np.array(column) for column in zip(*course, strict=True))
    values = values / max(1.0, float(values.max()))  # a reward of another scale
    # The first step samples with the starting weights, as the first evaluation does.
    start = run.steps[top]
    first = values[:1] if top == 0 else values[np.abs(steps - start) <= 1]
    last = values[steps > start + 1][-max(3, len(values) // 3) :]
    if len(first) == 0 or len(last) < 3:
        return []
    held_out = run.scores[[top, -1]]
    start_level, end_level = held_out.mean(axis=1).tolist()
    before, after = float(first.mean()), float(last.mean())
    parted = (after - end_level) - (before - start_level)
    # A batch has few problems: its noise is read off the differences from step to step.
    noise = float(np.mean(np.diff(values[len(values) // 2 :]) ** 2)) / 2 * (1 + 1 / len(last))
    # Episodes of one problem resemble one another.
    problems = max(1, int(run.settings.get("problems") or 1))
    noise += max(before * (1 - before), 0.0) / problems / len(first)  # a reward may be negative
    noise += float(held_out.var(axis=1).sum()) / held_out.shape[1]
    source = str(run.settings.get("reward") or "")
    if parted < APART or parted < Z_APART["reward" if source else ""] * math.sqrt(noise):
        return []
    change = paired_gain(run.scores[top].tolist(), run.scores[-1].tolist())
    text = (
        f"The mean training reward was {percent(before)} {'at' if top == 0 else 'around'} step "
        f"{steps[0] if top == 0 else start} and is {percent(after)} over the last {len(last)}, "
        f"while held-out {run.measure} changed by {gain_words(change._asdict())}: they have parted "
        f"by {points(parted)} points (standard error {points(math.sqrt(noise))})."
    )
    if source and not run.pays:
        title, code = "The reward was earned without right answers", "hacked"
        text += (
            f" Training was paid by {source}, not by the task's score: its reward can be earned "
            "without right answers."
        )
    else:
        title, code = f"Training reward rose while held-out {run.measure} fell", "parted"
        text += (
            " Training and held-out problems differ, or the training problems were learned by "
            "heart."
        )
    return [Finding("bad", title, text, code)]


def _top(run: RunData, facts: Facts) -> int | None:
    """Evaluation from which accuracy fell: the first one, or the best before a cliff."""
    if facts["gain"] is None:
        return None
    gain = facts["gain"]["last"]
    if gain["mean"] <= -FALL and gain["high"] < 0:
        return 0
    return int(run.scores.mean(axis=1).argmax()) if facts["cliff"]["verdict"] in FELL else None


def _shaped_score(run: RunData) -> list[Finding]:
    ends = end_episodes(run)
    if ends is None:
        return []
    first, last = map(_by_problem, ends)
    both = sorted(first.keys() & last.keys())
    if len(both) < FEWEST:
        return []
    before, after = (np.array([rows[name] for name in both]) for rows in (first, last))
    if not any(np.any(pairs[:, 0] != pairs[:, 1]) for pairs in (before, after)):
        return []
    score = paired_gain(before[:, 0].tolist(), after[:, 0].tolist())
    solved = paired_gain(before[:, 1].tolist(), after[:, 1].tolist())
    text = (
        f"The score is paid in part for other things than a solution. It changed by "
        f"{gain_words(score._asdict())}, and the share of problems that were solved went from "
        f"{percent(float(before[:, 1].mean()))} to {percent(float(after[:, 1].mean()))}: "
        f"{gain_words(solved._asdict())}."
    )
    if score.low > 0 and solved.high < 0:
        title = "The score rose while fewer problems were solved"
        return [Finding("bad", title, text, "hacked")]
    if score.high >= 0 and solved.high < 0 and solved.mean <= -FALL:
        title = "Fewer problems are solved, and the score does not show it"
        return [Finding("bad", title, text, "hacked")]
    if score.low > 0 and solved.low <= 0:
        return [Finding("warn", "The score rose, and no more problems are solved", text)]
    return [Finding("result", "The score is shaped: `solved` counts solutions", text)]


def _by_problem(episodes: Sequence[Episode]) -> dict[str, Floats]:
    # Mean score, and share solved, of the episodes of every problem.
    pairs: dict[str, list[tuple[float, float]]] = {}
    for episode in episodes:
        solved = episode.get("facts", {}).get("solved")
        if solved is not None:
            pair = float(episode["score"] or 0.0), float(solved)
            pairs.setdefault(episode["problem"], []).append(pair)
    return {problem: np.mean(values, axis=0) for problem, values in pairs.items()}
