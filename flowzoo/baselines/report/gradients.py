"""What a run's metrics say of its roles' gradients: names, Gram tables, and capture.

Metrics are `grad/mass/ROLE` or, where a learner's metrics carry their policy,
`grad/mass/ROLE/POLICY` (likewise `norm`, `amplification`, and `cos/A/B`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from flowzoo.baselines.diagnostics.capture import ODDS, WINDOW, find_captures
from flowzoo.baselines.diagnostics.forms import Floats, feature_rows
from flowzoo.baselines.run.reading import RunData, read_episodes
from flowzoo.envs.records import Call

MOST_REPLIES = 400
"""Replies of a role in a permutation test, evenly taken; more would only take longer."""


Series = list[tuple[int, float]]
"""(step, value) pairs."""


def role_series(run: RunData, kind: str, arity: int = 1) -> dict[tuple[str, ...], Series]:
    """(step, value) pairs of `grad/{kind}/…` by the role, or by the `arity` roles, of the name."""
    found: dict[tuple[str, ...], Series] = {}
    start = f"grad/{kind}/"
    for row in run.rows:
        for name, value in row.items():
            if name.startswith(start) and _finite(value):
                roles = tuple(name.removeprefix(start).split("/")[:arity])
                found.setdefault(roles, []).append((row["step"], float(value)))
    return found


def gram_tables(run: RunData) -> list[dict[str, Any]]:
    """Mean cosines between roles over the first and the last `WINDOW` steps that have them."""
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
    name: str,
    steps: Sequence[int],
    roles: Sequence[str],
    cosines: Mapping[tuple[str, ...], Series],
) -> dict[str, Any]:
    chosen = set(steps)
    cells: list[list[Any]] = []
    for one in roles:
        line: list[Any] = []
        for two in roles:
            series = cosines.get((one, two)) or cosines.get((two, one)) or []
            values = [value for step, value in series if step in chosen]
            line.append(1.0 if one == two else float(np.mean(values)) if values else None)
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
    """Each role's share of the sampled tokens at `steps`, among `roles`; NaN where not logged."""
    rows = {row["step"]: row for row in run.rows}
    shares: dict[str, list[float]] = {role: [] for role in roles}
    for step in steps:
        take = rows[step].get
        amounts = {
            role: take(f"tokens/{role}", math.nan) * take(f"calls/{role}", math.nan)
            for role in roles
        }
        total = sum(amounts.values())
        for role in roles:
            shares[role].append(amounts[role] / total if total else math.nan)
    return shares


def capture_facts(run: RunData) -> list[dict[str, Any]]:
    """One verdict for every policy: its pairs of roles, or why there is none.

    `top` is the role with most gradient mass over the run.
    """
    found: list[dict[str, Any]] = []
    policies: dict[str, list[str]] = {}
    for role, policy in run.policies.items():
        policies.setdefault(policy, []).append(role)
    for policy, roles in policies.items():
        facts: dict[str, Any] = {"policy": policy, "roles": roles, "pairs": [], "settled": False}
        facts |= {"why": _why_not(run, roles), "top": None}
        if not facts["why"]:
            facts["top"] = _heaviest(run, roles)
            facts["pairs"] = _pairs(run, roles)
        # One role per policy: the question does not arise, which is an answer too.
        facts["settled"] = len(roles) < 2 or bool(facts["pairs"])
        found.append(facts)
    return found


def _why_not(run: RunData, roles: Sequence[str]) -> str:
    if len(roles) < 2:
        return "it serves one role, so there is nobody to capture"
    mass = {key[0]: series for key, series in role_series(run, "mass").items()}
    if not all(role in mass for role in roles):
        return "its roles' gradients were not measured (train with --role-gradients)"
    shortest = min(len(mass[role]) for role in roles)
    if shortest <= WINDOW:
        return f"it needs more than {WINDOW} measured steps and has {shortest}"
    if not any(f"calls/{roles[0]}" in row for row in run.rows):
        return "how often its roles spoke was not logged (an earlier version made this run)"
    if len(run.transcript_files("eval")) < 2:
        return "the episodes that show how its roles speak are not there"
    return ""


def _pairs(run: RunData, roles: Sequence[str]) -> list[dict[str, Any]]:
    mass = {key[0]: dict(series) for key, series in role_series(run, "mass").items()}
    steps = sorted(set.intersection(*(set(mass[role]) for role in roles)))
    whole = {step: sum(mass[role][step] for role in roles) for step in steps}
    shares = {role: [mass[role][step] / whole[step] for step in steps] for role in roles}
    files = run.transcript_files("eval")
    before, after = (_features(read_episodes(files[s]), roles) for s in (min(files), max(files)))
    if any(len(rows[role]) < 2 for rows in (before, after) for role in roles):
        return []
    tokens = token_shares(run, roles, steps)
    pairs = find_captures(shares, tokens, steps, before, after)
    return [
        asdict(pair)
        | {
            "mass_first": float(shares[pair.by][0]),
            "mass_last": float(np.mean(shares[pair.by][-WINDOW:])),
            "tokens_last": float(np.mean(tokens[pair.by][-WINDOW:])),
            "replies": len(before[pair.of]),
            "odds": ODDS,
        }
        for pair in pairs
    ]


def _features(episodes: Sequence[Mapping[str, Any]], roles: Sequence[str]) -> dict[str, Floats]:
    calls: dict[str, list[Call]] = {role: [] for role in roles}
    for episode in episodes:
        for call in episode["calls"]:
            if call["role"] in calls:
                calls[call["role"]].append(_as_call(call))
    return {role: feature_rows(_evenly(own, MOST_REPLIES)) for role, own in calls.items()}


def _evenly(calls: Sequence[Call], most: int) -> list[Call]:
    places = np.unique(np.linspace(0, len(calls) - 1, most).astype(int)) if calls else []
    return [calls[place] for place in places]


def _as_call(row: Mapping[str, Any]) -> Call:
    """What `forms.features` needs of a saved call: the reply and its number of tokens."""
    return Call(
        problem="", episode="", agent="", role=row["role"], slot=0, turn=0, phase=0, messages=(),
        reply=row["reply"], strict=True, lenient=True, role_score=None, parts={}, reward=0.0,
        state_hash="", prompts="", output_ids=range(row.get("output_tokens") or 0),
    )  # fmt: skip


def _heaviest(run: RunData, roles: Sequence[str]) -> str:
    """The role with the largest mean share of the gradient mass over the run."""
    mass = {key[0]: series for key, series in role_series(run, "mass").items()}
    return max(roles, key=lambda role: np.mean([value for _, value in mass[role]]))


def _finite(value: Any) -> bool:
    return isinstance(value, (int, float)) and math.isfinite(value)
