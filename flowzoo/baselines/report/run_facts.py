"""Facts and findings of one run, as plain values for its page."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any, TypedDict

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
from flowzoo.baselines.report.diagnosis import diagnose
from flowzoo.baselines.report.findings import LEVELS, STAGES, Finding, FindingSource
from flowzoo.baselines.report.gradients import amplification_facts, gram_tables
from flowzoo.baselines.run.reading import RunData, sharing_words
from flowzoo.baselines.settings.algorithms import ALGORITHMS
from flowzoo.baselines.settings.config import TrainConfig
from flowzoo.baselines.settings.layers import AUTOMATIC, PLAIN

FINDINGS = (
    FindingSource(accuracy.gain, ("below start",), "team"),
    FindingSource(accuracy.cliff, ("fall",), "team"),
    FindingSource(pay.pay),
    FindingSource(
        roles.health,
        (
            *roles.COLLAPSED,
            roles.BORN,
            roles.ONE_PLACE,
            *roles.DEATH_CODES.values(),
            roles.WORSE,
            "blamed",
        ),
    ),
    FindingSource(changes.roles, ("loss",)),
    FindingSource(replies.replies, ("lost form", "loops", "fits no prompt")),
    FindingSource(rewards.rewards, ("hacked", "parted"), "cause"),
    FindingSource(gradients.captures),
    FindingSource(roles.swaps),
    FindingSource(health.health, stage="cause"),
)
"""Questions of a report, in order; a source sees the facts of the earlier ones."""
CODES = tuple(code for source in FINDINGS for code in source.codes)
"""Codes by which the failures of a matrix refer to findings."""
PROTOCOL = ("eval_split", "eval_problems", "eval_temperature", "max_tokens", "eval_every")
SHARE = "eval/share/"
UNTOLD = (
    "workflow", "task", "out", "threads", "device", "seed", "sharing", "algorithm", "pass_rates",
    "prompts", "examples", "engine_dtype", "shard_jobs", "eval_every", "checkpoint_every",
)  # fmt: skip
"""Settings that the heading has, that do not change numbers, or that every run resolves."""
RESOLVED = tuple(AUTOMATIC)
"""Settings that a run chooses where they are left out; its record does not say which were given."""
ORDER = [*LEVELS]  # levels, the most urgent first


def run_facts(run: RunData) -> dict[str, Any]:
    """The facts of one run; `page/run.js` shows them."""
    facts: dict[str, Any] = {}
    staged: list[tuple[int, int, Finding]] = []
    for source in FINDINGS:
        result = source.find(run, facts)
        facts |= result.facts
        stage = STAGES.index(source.stage)
        staged += [(ORDER.index(finding.level), stage, finding) for finding in result.findings]
    # The most urgent first; of one level causes first, then roles, then the team.
    findings = [finding for *_, finding in sorted(staged, key=lambda row: row[:2])]
    return facts | {
        "name": run.name,
        "task": run.task,
        "settings": dict(run.settings),
        "sharing": sharing_words(run.settings),
        "changed": [row for row in changed_settings(run.settings) if row[0] not in RESOLVED],
        "resolved": [row for row in changed_settings(run.settings) if row[0] in RESOLVED],
        "grading": dict(run.grading),
        "provenance": dict(run.provenance),
        "finished": run.summary is not None,
        "protocol": protocol(run),
        "roles": run.roles,
        "policies": run.policies,
        "branches": branches(run),
        "diagnosis": diagnose(run, facts, findings),
        "findings": [finding.as_facts() for finding in findings],
        "grams": gram_tables(run),
        "amplification": amplification_facts(run),
        "course": course(run),
        "held_out": held_out(run),
        "shares": shares(run),
        "alarms": [finding.title for finding in findings if finding.level == "bad"],
        "codes": [
            (finding.role, finding.code)
            for finding in findings
            if finding.code and finding.level == "bad"
        ],
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
    settings = {name: run.settings.get(name) for name in PROTOCOL}
    record = dict((run.summary or {}).get("protocol", {}))
    return {
        "split": record.get("split", settings["eval_split"]),
        "problems": record.get("problems", settings["eval_problems"]),
        "samples": record.get("samples", run.settings.get("eval_samples", 1)),
        "temperature": record.get("temperature", settings["eval_temperature"]),
        "max_tokens": record.get(
            "max_tokens", run.settings.get("eval_max_tokens") or settings["max_tokens"]
        ),
        "prompts": record.get("prompts", ""),
        "score_range": record.get("score_range", (0, 1)),
        "every": settings["eval_every"],
        "at": [*run.settings.get("eval_at", ())],
    }


class MetricCourse(TypedDict):
    """Steps, and one value a step or None of every metric."""

    steps: list[int]
    metrics: dict[str, list[float | None]]


def course(run: RunData) -> MetricCourse:
    """All metrics over steps but item scores."""
    names: dict[str, None] = {}
    for row in run.rows:
        for name, value in row.items():
            if name != "step" and _is_number(value):
                names.setdefault(name)
    return {
        "steps": [row["step"] for row in run.rows],
        "metrics": {name: [_value(row.get(name)) for row in run.rows] for name in names},
    }


def held_out(run: RunData) -> list[list[float]]:
    """Step, accuracy, and its 95 % interval at every evaluation."""
    if not run.evaluations:
        return []
    return [
        [step, float(scores.mean()), *interval(scores)]
        for step, scores in zip(run.steps, run.scores, strict=True)
    ]


def shares(run: RunData) -> dict[str, list[list[float]]]:
    """Step, share and number of cases of every share in an evaluation's facts of roles, by name."""
    series: dict[str, list[list[float]]] = {}
    for row in run.evaluations:
        for name, value in row.items():
            if name.startswith(SHARE) and _is_number(value):
                cases = row[f"eval/share_of/{name.removeprefix(SHARE)}"]
                series.setdefault(name.removeprefix(SHARE), []).append([row["step"], value, cases])
    return series


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _value(value: Any) -> float | None:
    # Six digits are enough for a curve.
    if not _is_number(value) or not math.isfinite(value):
        return None
    return float(f"{value:.6g}")
