"""Facts and findings of one run, as plain values for its page."""

import math
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any, get_args

from flowzoo.agents.evaluation.intervals import interval
from flowzoo.baselines.report import (
    accuracy,
    changes,
    gradients,
    health,
    pay,
    replies,
    rewards,
    roles,
)
from flowzoo.baselines.report.diagnosis import diagnose, read_explanation
from flowzoo.baselines.report.findings import LEVELS, Facts, Finding, FindingCode
from flowzoo.baselines.run.reading import RunData, sharing_words
from flowzoo.baselines.settings.algorithms import ALGORITHMS
from flowzoo.baselines.settings.config import TrainConfig
from flowzoo.baselines.settings.layers import AUTOMATIC, PLAIN

TEAM = (accuracy.gain, accuracy.cliff, accuracy.watch)
CAUSES = (rewards.rewards, health.health)
SOURCES = (
    *TEAM, pay.pay, roles.health, changes.roles, replies.replies, rewards.rewards,
    gradients.captures, roles.swaps, health.health,
)  # fmt: skip
"""Functions of a run and of the facts of the sources before them, each about one question."""
CODES = get_args(FindingCode)[1:]
"""Codes by which the failures of a matrix refer to findings."""
SHARE = "eval/share/"
UNTOLD = (
    "workflow", "task", "out", "threads", "device", "seed", "sharing", "algorithm", "pass_rates",
    "prompts", "examples", "engine_dtype", "shard_jobs", "eval_every", "checkpoint_every",
)  # fmt: skip
"""Settings that the heading has, that do not change numbers, or that every run resolves."""
RESOLVED = tuple(AUTOMATIC)
"""Settings that a run chooses where they are left out; its record does not say which were given."""


def run_facts(run: RunData) -> dict[str, Any]:
    """The facts of one run; `page/run.js` shows them."""
    facts: dict[str, Any] = {"why": read_explanation(run)}
    levels, staged = list(LEVELS), list[tuple[int, int, Finding]]()
    for source in SOURCES:
        result = source(run, facts)
        facts |= result.facts
        stage = 0 if source in CAUSES else 2 if source in TEAM else 1
        staged += [(levels.index(finding.level), stage, finding) for finding in result.findings]
    # The most urgent first; of one level causes first, then roles, then the team.
    findings = [finding for *_, finding in sorted(staged, key=lambda row: row[:2])]
    settings = changed_settings(run.settings)
    changed = [row for row in settings if row[0] not in RESOLVED]
    bad = [finding for finding in findings if finding.level == "bad"]
    return facts | {
        "name": run.name,
        "task": run.task,
        "settings": dict(run.settings),
        "sharing": sharing_words(run.settings),
        "changed": changed,
        "resolved": [row for row in settings if row[0] in RESOLVED],
        "grading": dict(run.grading),
        "provenance": dict(run.provenance),
        "finished": run.summary is not None,
        "protocol": protocol(run),
        "roles": run.roles,
        "policies": run.policies,
        "branches": branches(run),
        "diagnosis": diagnose(run, facts, findings, changed),
        "findings": [finding.as_facts() for finding in findings],
        "grams": gradients.gram_tables(run),
        "amplification": gradients.amplification_facts(run),
        "course": course(run),
        "held_out": held_out(run),
        "shares": shares(run),
        "alarms": [finding.title for finding in bad],
        "codes": [(finding.role, finding.code) for finding in bad if finding.code],
    }


def branches(run: RunData) -> bool:
    """True if the algorithm samples candidates, of which a step saves the executed ones."""
    algorithm = ALGORITHMS.get(str(run.settings.get("algorithm")))
    return algorithm is not None and algorithm.sampling != "episodes"


def changed_settings(settings: Mapping[str, object]) -> list[list[str]]:
    """Names and values of the settings that differ from the defaults."""
    default = asdict(TrainConfig())
    return [
        [name, " ".join(map(str, value)) if isinstance(value, list) else str(value)]
        for name, value in settings.items()
        if name in default
        and name not in UNTOLD
        and value not in (default[name], PLAIN.get(name), [])
    ]


def protocol(run: RunData) -> dict[str, Any]:
    """Protocol of the held-out evaluations."""
    take, record = run.settings.get, (run.summary or {}).get("protocol", {})
    usual = {
        "split": take("eval_split"),
        "problems": take("eval_problems"),
        "samples": take("eval_samples", 1),
        "temperature": take("eval_temperature"),
        "max_tokens": take("eval_max_tokens") or take("max_tokens"),
        "prompts": "",
        "score_range": (0, 1),
    }
    values = {name: record.get(name, value) for name, value in usual.items()}
    return values | {"every": take("eval_every"), "at": [*take("eval_at", ())]}


def course(run: RunData) -> Facts:
    """All metrics but item scores, one value a step or None."""
    names = dict.fromkeys(
        name for row in run.rows for name in row if name != "step" and _is_number(row[name])
    )
    return {
        "steps": [row["step"] for row in run.rows],
        "metrics": {name: [_value(row.get(name)) for row in run.rows] for name in names},
    }


def held_out(run: RunData) -> list[list[float]]:
    """Step, accuracy, and its 95 % interval at every evaluation."""
    scores = run.scores if run.evaluations else ()
    return [
        [step, float(values.mean()), *interval(values)]
        for step, values in zip(run.steps, scores, strict=True)
    ]


def shares(run: RunData) -> dict[str, list[list[float]]]:
    """Step, share and number of cases of every share in an evaluation's facts of roles, by name."""
    series: dict[str, list[list[float]]] = {}
    for row in run.evaluations:
        for name, value in row.items():
            if name.startswith(SHARE) and _is_number(value):
                share = name.removeprefix(SHARE)
                cases = row[f"eval/share_of/{share}"]
                series.setdefault(share, []).append([row["step"], value, cases])
    return series


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _value(value: Any) -> float | None:
    # Six digits are enough for a curve.
    if not _is_number(value) or not math.isfinite(value):
        return None
    return float(f"{value:.6g}")
