"""Everything the page of one run shows, as plain values."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from flowzoo.baselines.diagnostics.cliff import FELL
from flowzoo.baselines.report.accuracy import (
    accuracy_table,
    cliff_facts,
    cliff_of,
    gain_facts,
    interval,
    more_evaluations,
)
from flowzoo.baselines.report.cell_amplification import amplification_facts
from flowzoo.baselines.report.changes import role_changes
from flowzoo.baselines.report.course_findings import distances
from flowzoo.baselines.report.failures.signs import signs
from flowzoo.baselines.report.findings import (
    Finding,
    capture_findings,
    cliff_finding,
    gain_finding,
    role_finding,
    swap_finding,
)
from flowzoo.baselines.report.gradients import capture_facts, gram_tables
from flowzoo.baselines.report.health import health_findings
from flowzoo.baselines.report.roles.blame_facts import blame_facts, blame_finding
from flowzoo.baselines.report.roles.role_health import role_health, role_health_findings
from flowzoo.baselines.run.reading import RunData, sharing_words
from flowzoo.files import read_json

PROTOCOL = ("eval_split", "eval_problems", "eval_temperature", "max_tokens", "eval_every")
SHARE = "eval/share/"
ORDER = {"bad": 0, "warn": 1, "unknown": 2, "result": 3, "good": 4}


def run_facts(run: RunData) -> dict[str, Any]:
    """The facts of one run; see the page's script for what each part becomes."""
    cliff, why = cliff_of([run]) if run.evaluations else (None, "there is no evaluation")
    remedy = more_evaluations(run) if run.rows else ""
    verdict = cliff_facts(cliff, why, remedy)
    changes = role_changes(run) if run.evaluations else {"rows": [], "why": "no evaluation yet"}
    captures = capture_facts(run)
    gain = gain_facts(run) if run.evaluations else None
    fell = verdict["verdict"] in FELL
    roles = role_health(run)
    gained = gain is not None and gain.get("terminal", gain["last"])["low"] > 0
    health = role_health_findings(roles, gained)
    blamed: list[Finding] = []
    if len(run.roles) > 1 and (fell or any(finding.level == "bad" for finding in health)):
        blamed.append(blame_finding(blame_facts(run, fell=fell)))
    findings = [
        gain_finding(gain),
        cliff_finding(verdict),
        *health,
        *blamed,
        role_finding(changes, fell),
        *capture_findings(captures),
        *(swap_finding(swap) for swap in swaps(run)),
        *health_findings(run),
    ]
    return {
        "name": run.name,
        "task": run.task,
        "settings": dict(run.settings),
        "sharing": sharing_words(run.settings),
        "grading": dict(run.grading),
        "provenance": dict(run.provenance),
        "finished": run.summary is not None,
        "protocol": protocol(run),
        "roles": run.roles,
        "policies": run.policies,
        "findings": [finding._asdict() for finding in _sorted(findings)],
        "accuracy": accuracy_table(run, cliff),
        "cliff": verdict,
        "gain": gain,
        "changes": changes,
        "captures": captures,
        "grams": gram_tables(run),
        "amplification": amplification_facts(run),
        "course": course(run),
        "held_out": held_out(run),
        "shares": shares(run),
        "swaps": swaps(run),
        "distances": distances(run),
        "alarms": [finding.title for finding in findings if finding.level == "bad"],
        "signs": signs(verdict, gain, roles),
    }


def protocol(run: RunData) -> dict[str, Any]:
    """How held-out figures came about."""
    found = {name: run.settings.get(name) for name in PROTOCOL}
    said = dict((run.summary or {}).get("protocol", {}))
    return {
        "split": said.get("split", found["eval_split"]),
        "problems": said.get("problems", found["eval_problems"]),
        "samples": said.get("samples", run.settings.get("eval_samples", 1)),
        "temperature": said.get("temperature", found["eval_temperature"]),
        "max_tokens": said.get("max_tokens", found["max_tokens"]),
        "prompts": said.get("prompts", ""),
        "every": found["eval_every"],
        "at": [*run.settings.get("eval_at", ())],
    }


def course(run: RunData) -> dict[str, Any]:
    """All metrics over steps: `steps`, and per metric one value a step, None where there is none.

    Item scores are left out.
    """
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
    """Of every share of `role_facts` of an evaluation: step, share, and the cases that it is of."""
    found: dict[str, list[list[float]]] = {}
    for row in run.evaluations:
        for name, value in row.items():
            if name.startswith(SHARE) and _is_number(value):
                cases = row[f"eval/share_of/{name.removeprefix(SHARE)}"]
                found.setdefault(name.removeprefix(SHARE), []).append([row["step"], value, cases])
    return found


def swaps(run: RunData) -> list[dict[str, Any]]:
    """What `flowzoo.baselines.diagnostics.swap` found, at the end or by `flowzoo swap` later."""
    record = run.summary or {}
    path = run.folder / "swaps.json"
    if "swaps" not in record and path.is_file():
        record = read_json(path)
    return [dict(one) for one in record.get("swaps", ())]


def _sorted(findings: Sequence[Finding]) -> list[Finding]:
    """The worst first; the order of the questions stays among equals."""
    return sorted(findings, key=lambda finding: ORDER[finding.level])


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _value(value: Any) -> float | None:
    """A number of six digits, which is what a curve shows; None where it is not finite."""
    if not _is_number(value) or not math.isfinite(value):
        return None
    return float(f"{value:.6g}")
