"""Findings on the gradients of roles: capture; facts on cosines and on amplification."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from itertools import product
from typing import NamedTuple

import numpy as np

from flowzoo.aliases import Floats
from flowzoo.baselines.diagnostics.amplification import amplification
from flowzoo.baselines.diagnostics.capture import ODDS, WINDOW, find_captures
from flowzoo.baselines.diagnostics.checkers import Episode
from flowzoo.baselines.diagnostics.forms import feature_rows
from flowzoo.baselines.diagnostics.roles import role_calls
from flowzoo.baselines.report.findings import (
    Facts,
    Finding,
    FindingLevel,
    RunFindings,
    Series,
    metric_series,
)
from flowzoo.baselines.report.words import percent
from flowzoo.baselines.run.reading import RunData, read_episodes

MOST_REPLIES = 400
"""Replies of a role in a permutation test, evenly spaced; more would only take longer."""
CURVE_FROM = 3  # probes that a third of a run must have for its own estimate


def captures(run: RunData, _: Facts) -> RunFindings:
    """Report capture of one role by another under a shared policy."""
    facts = capture_facts(run)
    several = [capture for capture in facts if len(capture["roles"]) > 1]
    findings = [capture_finding(capture) for capture in several]
    if facts and not several:
        text = "Every policy serves one role, so no role can capture another."
        findings = [Finding("good", "Capture does not apply", text)]
    return RunFindings({"captures": facts}, findings)


def capture_finding(capture: Facts) -> Finding:
    """State the capture verdict on one policy."""
    policy = f"policy {capture['policy']}"
    if capture["why"]:
        level: FindingLevel = "good" if capture["settled"] else "unknown"
        title = "Capture does not apply" if capture["settled"] else "Capture not tested"
        return Finding(level, f"{title}: {policy}", f"For {policy}: {capture['why']}.")
    pairs = capture["pairs"]
    if not pairs:
        text = "Its roles have too few replies."
        return Finding("unknown", f"Capture not tested: {policy}", text)
    captured = [pair for pair in pairs if pair["captured"]]
    if captured:
        text = " ".join(_capture_text(pair) for pair in captured)
        title = "; ".join(f"{pair['by']} captured {pair['of']}" for pair in captured)
        return Finding("bad", f"{title} ({policy})", text)
    heavy = {pair["by"]: pair for pair in pairs if pair["dominant"]}
    moved = [pair for pair in pairs if pair["moved"]]
    text = (
        f"No role of {policy} has both more gradient mass than its tokens explain over {WINDOW} "
        "steps and another role whose replies moved to its form."
    )
    text += "".join(f" {_mass_text(pair)}" for pair in heavy.values())
    text += "".join(
        f" The replies of {pair['of']} did come closer to the form of {pair['by']} "
        f"(distance {pair['distance_before']:.2f} to {pair['distance_after']:.2f}, "
        f"p = {pair['p_value']:.3f})." for pair in moved
    )  # fmt: skip
    return Finding("warn" if heavy or moved else "good", f"No capture found ({policy})", text)


def _capture_text(pair: Facts) -> str:
    return (
        f"{_mass_text(pair)} The replies of {pair['of']} came closer to the form that "
        f"{pair['by']} had before training: distance {pair['distance_before']:.2f} to "
        f"{pair['distance_after']:.2f} standard deviations (permutation test over "
        f"{pair['replies']} replies, p = {pair['p_value']:.4f})."
    )


def _mass_text(pair: Facts) -> str:
    return (
        f"Over {WINDOW} steps from step {pair['from_step']} on, the odds of the gradient mass of "
        f"{pair['by']} were at least {pair['odds']:g} times those of its tokens and of its first "
        f"steps (mass {percent(pair['mass_first'])} at first, {percent(pair['mass_last'])} at the "
        f"end; tokens {percent(pair['tokens_last'])})."
    )


def role_series(run: RunData, kind: str, arity: int = 1) -> dict[tuple[str, ...], Series]:
    """Series of `grad/{kind}/…` by the role, or by the `arity` roles, of the name."""
    series: dict[tuple[str, ...], Series] = {}
    for name, points in metric_series(run, f"grad/{kind}/").items():
        series.setdefault(tuple(name.split("/")[:arity]), []).extend(points)
    return series


def gram_tables(run: RunData) -> list[Facts]:
    """Mean cosines between roles over the first and the last `WINDOW` steps that have them.

    `conflict` is the share of cosines below 0.
    """
    cosines = role_series(run, "cos", 2)
    roles = sorted({role for pair in cosines for role in pair})
    if not roles:
        return []
    steps = sorted({step for series in cosines.values() for step, _ in series})
    windows = [("first", steps[:WINDOW])]
    if len(steps) > WINDOW:
        windows.append(("last", steps[-WINDOW:]))
    return [_gram(name, chosen, roles, cosines) for name, chosen in windows]


def _gram(
    name: str, steps: Sequence[int], roles: Sequence[str], cosines: Mapping[tuple[str, ...], Series]
) -> Facts:
    chosen = set(steps)
    cells: list[list[float | None]] = []
    for role in roles:
        line: list[float | None] = []
        for other in roles:
            series = cosines.get((role, other)) or cosines.get((other, role)) or []
            values = [value for step, value in series if step in chosen]
            line.append(1.0 if role == other else float(np.mean(values)) if values else None)
        cells.append(line)
    every = [v for series in cosines.values() for step, v in series if step in chosen]
    negative = float(np.mean([value < 0 for value in every])) if every else None
    return {
        "name": name, "from": steps[0], "to": steps[-1], "steps": len(steps), "roles": list(roles),
        "cosines": cells, "conflict": negative,
    }  # fmt: skip


def token_shares(
    run: RunData, roles: Sequence[str], steps: Sequence[int]
) -> dict[str, list[float]]:
    """Each role's share of the sampled tokens at `steps`, among `roles`; NaN if not logged."""
    rows = {row["step"]: row for row in run.rows}
    shares: dict[str, list[float]] = {role: [] for role in roles}
    for step in steps:
        logged = [[rows[step].get(f"{name}/{role}", math.nan) for name in ("tokens", "calls")]
                  for role in roles]  # fmt: skip
        amounts = [math.prod(values) for values in logged]
        for role, amount in zip(roles, amounts, strict=True):
            shares[role].append(amount / sum(amounts) if sum(amounts) else math.nan)
    return shares


def capture_facts(run: RunData) -> list[Facts]:
    """One verdict for every policy: its pairs of roles, or `why` there are none."""
    mass = {role: dict(series) for (role,), series in role_series(run, "mass").items()}
    policies: dict[str, list[str]] = {}
    for role, policy in run.policies.items():
        policies.setdefault(policy, []).append(role)
    verdicts: list[Facts] = []
    for policy, roles in policies.items():
        why = _untested_reason(run, roles, mass)
        pairs = [] if why else _pairs(run, {role: mass[role] for role in roles})
        heaviest = None if why else max(roles, key=lambda role: np.mean([*mass[role].values()]))
        # A policy of one role settles the question: there is no other role to capture.
        verdicts.append({
            "policy": policy, "roles": roles, "pairs": pairs,
            "settled": len(roles) < 2 or bool(pairs), "why": why, "top": heaviest,
        })  # fmt: skip
    return verdicts


def _untested_reason(
    run: RunData, roles: Sequence[str], mass: Mapping[str, Mapping[int, float]]
) -> str:
    if len(roles) < 2:
        return "it serves one role, so there is no role to capture"
    if not mass.keys() >= {*roles}:
        return "its roles' gradients were not measured (train with --role-gradients)"
    shortest = min(len(mass[role]) for role in roles)
    if shortest <= WINDOW:
        return f"it needs more than {WINDOW} measured steps and has {shortest}"
    if len(run.transcript_files("eval")) < 2:
        return "the episodes with replies of its roles are missing"
    return ""


def _pairs(run: RunData, mass: Mapping[str, Mapping[int, float]]) -> list[Facts]:
    steps = sorted(set.intersection(*map(set, mass.values())))
    whole = {step: sum(series[step] for series in mass.values()) for step in steps}
    shares = {role: [series[step] / whole[step] for step in steps] for role, series in mass.items()}
    files = run.transcript_files("eval")
    before, after = (_features(read_episodes(files[s]), mass) for s in (min(files), max(files)))
    if any(len(rows) < 2 for rows in (*before.values(), *after.values())):
        return []
    tokens = token_shares(run, [*mass], steps)
    return [
        asdict(pair)
        | {
            "mass_first": float(shares[pair.by][0]),
            "mass_last": float(np.mean(shares[pair.by][-WINDOW:])),
            "tokens_last": float(np.mean(tokens[pair.by][-WINDOW:])),
            "replies": len(before[pair.of]),
            "odds": ODDS,
        }
        for pair in find_captures(shares, tokens, steps, before, after)
    ]


def _features(episodes: Sequence[Episode], roles: Iterable[str]) -> dict[str, Floats]:
    features: dict[str, Floats] = {}
    for role in roles:
        calls = [call for _, call in role_calls(episodes, role)]
        last = len(calls) - 1
        chosen = np.unique(np.linspace(0, last, MOST_REPLIES).astype(int)) if calls else ()
        replies = [(calls[i]["reply"], calls[i].get("output_tokens") or 0) for i in chosen]
        features[role] = feature_rows(replies)
    return features


class GradientProbe(NamedTuple):
    """The Gram matrices of one role at one step: (slots, blocks, slots, blocks)."""

    step: int
    products: Floats
    applied: Floats | None  # the same for the update of the optimizer; None before its first step

    def gram(self, applied: bool) -> Floats | None:
        """One of the two; None if it is missing or all zeros."""
        matrix = self.applied if applied else self.products
        return matrix if matrix is not None and np.einsum("sbsb->", matrix) > 0 else None


def probes(run: RunData) -> dict[str, list[GradientProbe]]:
    """The probes of every parallel role of a run, in order of steps, by `ROLE under POLICY`."""
    # One probe alone is noisy, so matrices are pooled. Probes with another number of slots than
    # usual (slots without rows in that step) cannot be.
    named: dict[str, list[GradientProbe]] = {}
    for row in run.rows:
        for name in (name for name in row if name.startswith("gram/")):
            products, applied = row[name]["products"], row[name].get("applied")
            probe = GradientProbe(
                row["step"],
                np.array(products, np.float64),
                None if applied is None else np.array(applied, np.float64),
            )
            named.setdefault(name.removeprefix("gram/"), []).append(probe)
    roles = Counter(name.partition("/")[0] for name in named)
    by_title: dict[str, list[GradientProbe]] = {}
    for name, series in named.items():
        role, _, policy = name.partition("/")
        slots = Counter(len(probe.products) for probe in series).most_common(1)[0][0]
        title = role if roles[role] == 1 else f"{role} under {policy}"
        by_title[title] = [probe for probe in series if len(probe.products) == slots]
    return by_title


def amplification_facts(run: RunData) -> list[Facts]:
    """Amplification of parallel roles, of gradient and update: whole run, and its thirds."""
    last = run.rows[-1]["step"] if run.rows else 0
    rows: list[Facts] = []
    for (role, series), applied in product(probes(run).items(), (False, True)):
        measured = [probe for probe in series if probe.gram(applied) is not None]
        parts = {
            "whole": measured,
            "first": [probe for probe in measured if 3 * probe.step <= last],
            "last": [probe for probe in measured if 3 * probe.step > 2 * last],
        }
        for part, chosen in parts.items():
            if len(chosen) >= (1 if part == "whole" else CURVE_FROM):
                rows.append(
                    {"role": role, "applied": applied, "part": part, "probes": len(chosen),
                     "from": chosen[0].step, "to": chosen[-1].step}
                    | asdict(amplification(grams_of(chosen, applied)))
                )  # fmt: skip
    return rows


def grams_of(probes: Sequence[GradientProbe], applied: bool) -> list[Floats]:
    """Gram matrices of the probes that have one."""
    return [gram for probe in probes if (gram := probe.gram(applied)) is not None]
