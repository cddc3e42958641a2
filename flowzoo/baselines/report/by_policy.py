"""Roles whose agents have several policies: each policy is judged by itself."""

from collections.abc import Iterable, Sequence
from dataclasses import replace

from flowzoo.agents.evaluation.summary import mean
from flowzoo.agents.policy_map import role_of
from flowzoo.aliases import MetricRow
from flowzoo.baselines.diagnostics.checkers import Episode, Row
from flowzoo.baselines.run.reading import RunData, read_episodes


def part_name(role: str, policy: str) -> str:
    """Name of a role's agents of one policy."""
    return f"{role} ({policy})"


def whole_role(name: str) -> str:
    """The role of a part; a role stays itself."""
    return name.partition(" (")[0]


def policy_of(run: RunData, name: str) -> str:
    """The policy of a role or of a part of it; empty if it has several."""
    role, part, policy = name.partition(" (")
    return policy.removesuffix(")") if part else run.policies.get(role, "")


def split_roles(run: RunData) -> frozenset[str]:
    """Roles whose agents have several policies."""
    policies: dict[str, set[str]] = {}
    for name, policy in run.policies.items():
        role = name if name in run.roles else role_of(name)
        policies.setdefault(role, set()).add(policy)
    return frozenset(role for role, names in policies.items() if len(names) > 1)


def by_policy(run: RunData, episodes: Sequence[Episode]) -> Sequence[Episode]:
    """Episodes in which the role of a call is its part, where a role has several policies."""
    split = split_roles(run)
    if not split:
        return episodes
    return [episode | {"calls": [_part(call, split) for call in episode["calls"]]}
            for episode in map(dict, episodes)]  # fmt: skip


def run_by_policy(run: RunData) -> RunData:
    """A run whose roles are parts, where a role has several policies, with their measures."""
    split = split_roles(run)
    if not split:
        return run
    files = run.transcript_files("eval")
    rows: list[MetricRow] = []
    for row in run.rows:
        parts = {name: value for name, value in row.items() if name.split("/")[-1] not in split}
        if row.get("eval/scores") and row["step"] in files:
            parts |= _measures(by_policy(run, read_episodes(files[row["step"]])), split)
        rows.append(parts)
    return replace(run, rows=rows)


def _part(call: Row, split: Iterable[str]) -> Row:
    role = call["role"]
    return {**call, "role": part_name(role, call["policy"]) if role in split else role}


def _measures(episodes: Sequence[Episode], split: Iterable[str]) -> dict[str, float]:
    calls: dict[str, list[Row]] = {}
    for episode in episodes:
        for call in episode["calls"]:
            if whole_role(call["role"]) in split:
                calls.setdefault(call["role"], []).append(call)
    row: dict[str, float] = {}
    for part, played in sorted(calls.items()):
        values = {
            "strict": [call["strict"] for call in played],
            "role_score": [call.get("role_score") for call in played],
            "truncated": [call["finish"] == "length" for call in played],
            "tokens": [call.get("output_tokens") for call in played],
        }
        row[f"eval/calls/{part}"] = len(played)
        row |= {
            f"eval/{name}/{part}": mean([float(value) for value in of if value is not None])
            for name, of in values.items()
        }
    return row
