"""The rows of metrics.jsonl: stable names for what episodes and groups were like."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from flowzoo.agents.summary import summarise
from flowzoo.baselines.advantages import Advantages
from flowzoo.envs import EpisodeRecord

Row = dict[str, Any]


def role_metrics(records: Sequence[EpisodeRecord], prefix: str = "") -> Row:
    """Stable metric names of `summarise`: `reward/mean`, `truth/generator`, `tokens/mean` …"""
    total = summarise(records)
    row: Row = {
        f"{prefix}reward/mean": total["accuracy"],
        f"{prefix}tokens/mean": total["tokens"],
        f"{prefix}calls/mean": total["calls"],
    }
    for role, values in total["roles"].items():
        for name in ("reward", "truth", "strict", "lenient", "tokens", "truncated", "shortened"):
            if not math.isnan(values[name]):  # a role without a truth of its own has none to report
                row[f"{prefix}{name}/{role}"] = values[name]
    for name, value in total["facts"].items():
        row[f"{prefix}fact/{name}"] = value
    return row


def advantage_metrics(advantages: Advantages) -> Row:
    """Group statistics, and Dr. MAS's inflation and shift per role (means over problems)."""
    row: Row = {
        "group/count": advantages.groups,
        "group/zero_variance": advantages.zero_variance_groups,
        "group/singleton": advantages.singleton_groups,
    }
    stats = advantages.roles
    for code, role in enumerate(stats.role):
        mine = stats.role_code == code
        row[f"mu_k/{role}"] = float(stats.mu_k[mine].mean())
        row[f"sigma_k/{role}"] = float(stats.sigma_k[mine].mean())
        known = mine & (stats.sigma > 0)
        if np.any(known):
            row[f"inflation/{role}"] = float(stats.inflation[known].mean())
            row[f"shift/{role}"] = float(stats.shift[known].mean())
    return row
