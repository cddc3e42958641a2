"""Findings from held-out scores: accuracies with intervals, the gain, and the cliff verdict."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict
from statistics import NormalDist
from typing import Any

import numpy as np

from flowzoo.agents.evaluation.intervals import Z, interval
from flowzoo.aliases import Floats
from flowzoo.baselines.diagnostics.cliff import (
    EARLIEST,
    FALLING,
    FELL,
    LAST,
    THRESHOLD,
    TOO_COARSE,
    Cliff,
    find_cliff,
)
from flowzoo.baselines.diagnostics.watch import MARGIN, ROLLBACK, fall_alarms
from flowzoo.baselines.report.findings import Facts, Finding, RunFindings
from flowzoo.baselines.report.words import between, gain_words, percent, points
from flowzoo.baselines.run.reading import RunData
from flowzoo.baselines.stats import MeanUncertainty, mean_and_error, paired_gain
from flowzoo.baselines.training.metrics import progress, set_evaluations

MIN_ITEMS = 30  # items below which a bootstrap over them is unreliable
ENOUGH = LAST + 2  # evaluations of a run that has a terminal accuracy and can have a cliff
SWING = 0.10  # fall and rise of a swing
STEADY = 3.0  # standard errors of a fall at every evaluation
FINE = 0.10
"""Fall that a test must find (with probability 0.8) before a page says that there is none."""
GOOD_COVERAGE = 10
"""Evaluations after step 0 that a remedy asks for: a missed peak is then a tenth of the run."""


def gain(run: RunData, _: Facts) -> RunFindings:
    """Report the gain over step 0."""
    facts = gain_facts(run) if run.evaluations else None
    return RunFindings({"gain": facts}, [gain_finding(facts, run.measure)])


def cliff(run: RunData, _: Facts) -> RunFindings:
    """Report a fall from the peak or a swing, and the table of accuracies."""
    verdict, reason = cliff_of([run]) if run.evaluations else (None, "there is no evaluation")
    facts = cliff_facts(verdict, reason, more_evaluations(run) if run.rows else "")
    facts["onset"] = onset(run.scores, run.steps) if facts["verdict"] in FELL else None
    table = accuracy_table(run, verdict)
    findings = [cliff_finding(facts, run.measure)]
    if facts["verdict"] not in FELL:
        findings += swing_findings(run)
        findings = find_steady_fall(run) or findings
    return RunFindings({"cliff": facts, "accuracy": table}, findings)


def find_steady_fall(run: RunData) -> list[Finding]:
    """Report a run whose every evaluation after its best is lower than the one before."""
    scores = run.scores
    if not _is_judged(scores, EARLIEST):
        return []
    means = scores.mean(axis=1)
    best = int(means.argmax())
    after = means[best:]
    drop, error = mean_and_error(scores[best] - scores[-1])
    steady = len(after) > 2 and bool((np.diff(after) < 0).all())
    if not steady or drop < SWING or drop <= STEADY * error:
        return []
    text = (
        f"It went from {percent(means[best])} at step {run.steps[best]} down to "
        f"{percent(means[-1])} at the end, lower at each of {len(after) - 1} evaluations: by "
        f"{points(drop)} points, standard error {points(error)}."
    )
    title = f"{run.measure.capitalize()} fell at every evaluation after its best"
    return [Finding("bad", title, text, "fall")]


def _is_judged(scores: Floats, fewest: int) -> bool:
    return len(scores) >= fewest and len(scores[0]) >= MIN_ITEMS and bool(np.isfinite(scores).all())


def watch(run: RunData, _: Facts) -> RunFindings:
    """Report what the watch has said, the first alarm of every role."""
    backs = {row["step"]: row[ROLLBACK] for row in run.rows if ROLLBACK in row}
    means = dict(zip(run.steps, run.scores.mean(axis=1).tolist(), strict=True)) if run.steps else {}
    findings: list[Finding] = []
    alarms = fall_alarms(run.rows)
    for alarm in alarms:
        end = means[run.steps[-1]] if run.steps[-1] > alarm.step else None
        text = f"{alarm.text[0].upper()}{alarm.text[1:]}."
        what = alarm.role or "the team"
        if alarm.step in backs:
            text += f" The run went back to the weights of step {backs[alarm.step]}"
            text += "." if end is None else f"; it ended at {percent(end)}."
            findings.append(Finding("result", f"A fall of {what} was rolled back", text))
            continue
        over = end is not None and end > means[alarm.best] - MARGIN
        text += " It was over at the end." if over else ""
        title = f"The watch: {what} fell from step {alarm.since} on"
        findings.append(Finding("warn" if over else "bad", title, text, "alarm", alarm.role))
    return RunFindings({"watch": [alarm.as_event() for alarm in alarms]}, findings)


def onset(scores: Floats, steps: Sequence[int]) -> Facts | None:
    """The first evaluation from which on every one is significantly below the best before it."""
    # One-sided 2.5 % for each evaluation, all of which must agree.
    means = scores.mean(axis=1)
    best = int(means.argmax())
    start = len(steps)
    while start - 1 > best and _is_above(scores[best], scores[start - 1], 0.0, Z):
        start -= 1
    if start == len(steps):
        return None
    return {
        "peak": steps[best], "before": steps[start - 1], "step": steps[start],
        "high": float(means[best]), "low": float(means[start]),
    }  # fmt: skip


def swing_findings(run: RunData) -> list[Finding]:
    """Report a fall of 10 points that a rise of 10 points followed."""
    scores, steps = run.scores, run.steps
    count = len(steps)
    if not _is_judged(scores, ENOUGH):
        return []
    means = scores.mean(axis=1)
    z = NormalDist().inv_cdf(1 - 0.05 / (count * (count - 1) / 2))
    for low in range(1, count - 1):
        top = int(means[:low].argmax())
        back = low + 1 + int(means[low + 1 :].argmax())
        if all(_is_above(scores[high], scores[low], SWING, z) for high in (top, back)):
            text = (
                f"Held-out {run.measure} went from {percent(means[top])} at step {steps[top]} to "
                f"{percent(means[low])} at step {steps[low]} and back to {percent(means[back])} at "
                f"step {steps[back]}; each change is significant among all pairs of evaluations. "
                "Where it ends depends on when it is stopped."
            )
            return [Finding("warn", f"{run.measure.capitalize()} swings", text)]
    return []


def _is_above(high: Floats, low: Floats, least: float, z: float) -> bool:
    gap, error = mean_and_error(high - low)
    return gap >= least and gap > z * error


def cliff_of(runs: Sequence[RunData]) -> tuple[Cliff | None, str]:
    """The verdict on one cell, or None and the reason."""
    steps = runs[0].steps
    shapes = {(run.scores.shape, tuple(run.steps)) for run in runs}
    if len(shapes) > 1:
        return None, "the seeds were evaluated at different steps or on different numbers of items"
    scores = [run.scores for run in runs]
    items = scores[0].shape[1]
    if len(steps) < EARLIEST:
        reason = f"a fall takes {EARLIEST} evaluations (before, a peak, after) and there are"
        return None, f"{reason} {len(steps)}; {more_evaluations(runs[0])}"
    if items < MIN_ITEMS:
        return None, f"a verdict needs {MIN_ITEMS} items or more and there are {items}"
    if not all(np.isfinite(values).all() for values in scores):
        return None, "some held-out scores are not finite"
    return find_cliff(scores, steps), ""


def cliff_facts(verdict: Cliff | None, reason: str, remedy: str = "") -> dict[str, Any]:
    """The verdict as plain values; `reason` and `remedy` say why there is none."""
    if verdict is None:
        return {"verdict": None, "why": reason}
    return asdict(verdict) | {"why": "", "items_needed": items_needed(verdict), "remedy": remedy}


def more_evaluations(run: RunData) -> str:
    """The setting with which a fall would be visible."""
    every = max(1, run.rows[-1]["step"] // GOOD_COVERAGE)
    return f"repeat the run with --eval-every {every}, which gives {GOOD_COVERAGE} or more"


def items_needed(verdict: Cliff) -> int | None:
    """Items that would allow a verdict at this spread; None if there are enough."""
    if verdict.verdict != "not enough items":
        return None
    coarse = MeanUncertainty(verdict.se_items**2, 0.0, verdict.seeds).detectable
    return math.ceil(verdict.items * (coarse / TOO_COARSE) ** 2)


def accuracy_table(run: RunData, verdict: Cliff | None) -> list[Facts]:
    """First, best and last held-out accuracy, each with its interval and cost."""
    if not run.evaluations:
        return []
    scores = run.scores
    best = int(scores.mean(axis=1).argmax())
    rows = [
        _level(name, note, scores[index], run.evaluations[index])
        for index, name, note in (
            (0, "before training", ""),
            (best, "best evaluation", "chosen for being best, so biased upwards"),
            (-1, "last evaluation", ""),
        )
    ]
    if verdict is not None:
        rows.insert(2, _level("peak, cross-fitted", "without that bias", verdict.peak))
    if len(scores) >= ENOUGH:
        note = f"mean of the last {LAST} evaluations"
        rows.append(_level("terminal", note, scores[-LAST:].mean(axis=0)))
    return rows


def _level(name: str, note: str, scores: Floats | float, row: Facts | None = None) -> Facts:
    # Without a row of metrics it is the level of no single evaluation.
    low, high = (None, None) if isinstance(scores, float) else interval(scores)
    take = (row or {}).get
    return {
        "name": name, "note": note, "step": take("step"), "accuracy": float(np.mean(scores)),
        "low": low, "high": high, "n": np.size(scores) if row else None,
        "tokens": take("tokens/total"), "seconds": take("time/total"),
    }  # fmt: skip


def gain_facts(run: RunData) -> dict[str, Any] | None:
    """Paired gain of the last evaluation, and of the terminal accuracy, over step 0."""
    scores = run.scores
    if len(scores) < 2:
        return None
    last = paired_gain(scores[0].tolist(), scores[-1].tolist())
    levels = {"before": float(scores[0].mean()), "after": float(scores[-1].mean())}
    facts: dict[str, Any] = {"last": last._asdict(), "step": run.steps[-1], **levels}
    if len(scores) >= ENOUGH:
        end = scores[-LAST:].mean(axis=0)
        facts["terminal"] = paired_gain(scores[0].tolist(), end.tolist())._asdict()
    facts["sets"] = {
        name: progress(evaluations, 1) for name, evaluations in set_evaluations(run.rows).items()
    }
    return facts


def is_gain(facts: Facts | None) -> bool:
    """True if the gain of `gain_facts` is significant."""
    return facts is not None and facts.get("terminal", facts["last"])["low"] > 0


def is_unchanged(facts: Facts) -> bool:
    """True if the gain of `gain_facts` is 0 on every problem."""
    return facts["last"]["low"] == facts["last"]["high"] == 0


def gain_finding(facts: Facts | None, measure: str = "accuracy") -> Finding:
    """State the gain over step 0; `measure` is the word for a mean score."""
    name = measure.capitalize()
    if facts is None:
        text = "A gain needs two evaluations or more."
        return Finding("unknown", "Too few evaluations to see a gain", text)
    last = facts["last"]
    more = f", paired over {last['n']} problems; one run, so not over seeds"
    text = (
        f"Held-out {measure} went from {percent(facts['before'])} before training to "
        f"{percent(facts['after'])} at step {facts['step']}: "
        f"{gain_words(last, more)}."
    )
    if "terminal" in facts:
        end = facts["terminal"]
        text += (
            f" By the mean of the last {LAST} evaluations it is "
            f"{points(end['mean'], sign=True)} ({between(end['low'], end['high'])})."
        )
    for label, item in facts.get("sets", {}).items():
        more = f", over {item['gain']['n']} problems"
        text += (
            f" On the evaluation set {label} it went from {percent(item['accuracy_before'])} to "
            f"{percent(item['accuracy_after'])}: {gain_words(item['gain'], more)}."
        )
    tested = facts.get("terminal", last)
    if tested["high"] < 0:
        return Finding("bad", f"{name} ended below the start", text, "below start")
    if tested["low"] > 0:
        return Finding("good", f"{name} ended above the start", text)
    if last["high"] < 0:  # and the mean of the last evaluations is not
        return Finding("warn", "The last evaluation is below the start", text)
    if is_unchanged(facts):
        return Finding("result", f"{name} did not change on any problem", text)
    return Finding("unknown", "Gain not significant", text)


def cliff_finding(facts: Facts, measure: str = "accuracy") -> Finding:
    """State the cliff verdict with its uncertainty and smallest detectable drop."""
    verdict = facts["verdict"]
    if verdict is None:
        return Finding("unknown", "No cliff verdict", f"Reason: {facts['why']}.")
    measured, power = _measured_drop(facts), f"{points(facts['detectable'])} points"
    if verdict in FELL:
        return _fall_finding(facts, measured, power, measure)
    if verdict == "not enough evaluations":
        text = (
            f"{measured} With {facts['evaluations']} evaluations the test looks only for a fall of "
            f"{points(FALLING[1])} points or more at the very end, and there is none. A rise and a "
            "fall between two evaluations leave no trace, nor does a smaller fall. To see them, "
            f"{facts['remedy']}."
        )
        return Finding("unknown", "Too few evaluations to see a fall", text)
    if verdict == "not enough items":
        text = (
            f"{measured} At this standard error the test finds only a drop of {power} or more with "
            "probability 0.8; there is none, and smaller ones are not excluded. About "
            f"{facts['items_needed']} problems per evaluation would find {points(TOO_COARSE)} "
            "points (--eval-problems)."
        )
        return Finding("unknown", "Too few held-out problems to exclude a fall", text)
    if verdict == "not enough seeds":
        text = (
            f"{measured} The seeds differ so much that the test finds only a drop of {power} or "
            "more with probability 0.8, and smaller ones are not excluded. More seeds would allow "
            "a verdict; more problems would not."
        )
        return Finding("unknown", "The seeds differ too much for a cliff verdict", text)
    rule = (
        f"A cliff is a drop of at least {points(THRESHOLD)} points whose interval excludes 0, with "
        f"none of the last {LAST} evaluations within one standard error of the peak; a fall in "
        f"progress is one of {points(FALLING[2])} points over the last two, or "
        f"{points(FALLING[1])} in the last."
    )
    if facts["low"] > 0 and facts["drop"] >= THRESHOLD:
        title = f"{measure.capitalize()} ended below its peak, not steadily"
        return Finding("warn", title, f"{measured} {rule} This fall is not steady.", "fall")
    if facts["detectable"] > FINE:
        items = math.ceil(facts["items"] * (facts["detectable"] / FINE) ** 2)
        text = (
            f"{measured} Only a drop of {power} or more is found with probability 0.8 here, and "
            f"there is none. About {items} problems per evaluation (--eval-problems) would "
            f"show one of {points(FINE)} points. {rule}"
        )
        return Finding("unknown", f"Cannot tell whether {measure} fell", text)
    text = f"{measured} {rule} Drops smaller than {power} may be missed."
    return Finding("good", "No cliff found", text)


def _measured_drop(facts: Facts) -> str:
    sizes = f"{facts['items']} held-out problems and {facts['evaluations']} evaluations"
    if facts["seeds"] > 1:
        sizes += f" of {facts['seeds']} seeds"
    end = "the last evaluation"
    if facts["last"] > 1:
        end = f"mean of the last {facts['last']} evaluations after it"
    return (
        f"The cross-fitted peak is {percent(facts['peak'])} and the end "
        f"{percent(facts['terminal'])} ({end}): peak minus end is {points(facts['drop'])} points "
        f"({between(facts['low'], facts['high'])}, standard error {points(facts['se'])}; {sizes})."
    )


def _fall_finding(facts: Facts, measured: str, power: str, measure: str) -> Finding:
    name = measure.capitalize()
    if facts["verdict"] == "cliff":
        since = facts.get("onset") or {"step": facts["cliff_step"]}
        text = (
            f"{measured} From step {since['step']} on every evaluation is below the peak. A drop "
            f"of {power} or more is found with probability 0.8 here."
        )
        return Finding("bad", f"{name} fell off a cliff", text, "fall")
    text = (
        f"{measured} The fall began at step {facts['cliff_step']} at the latest and has not lasted "
        f"for {LAST} evaluations yet: only more steps would show if it continues or recovers."
    )
    return Finding("bad", f"{name} was falling at the end", text, "fall")
