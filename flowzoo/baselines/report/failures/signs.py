"""The findings of a run by the short names that a matrix's `[[failures]]` call them by."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from flowzoo.baselines.diagnostics.cliff import FELL
from flowzoo.baselines.diagnostics.dead_roles import RoleDeath

TEAM = ""
"""Stands for the team where a sign is of no role."""
_DEATHS = {
    "skill": "lost skill", "unasked": "nobody asks", "constant": "says the same",
    "copy": "a copy", "alone": "a single agent",
}  # fmt: skip


def signs(
    cliff: Mapping[str, Any], gain: Mapping[str, Any] | None, roles: Mapping[str, Any]
) -> list[tuple[str, str]]:
    """(role, sign) of every problem that a run's page names; the signs are those of `SIGNS`.

    Arguments are the parts of `run_facts` that the findings are written from.
    """
    found: list[tuple[str, str]] = []
    if cliff["verdict"] in FELL:
        found.append((TEAM, "fall"))
    if gain is not None and gain.get("terminal", gain["last"])["high"] < 0:
        found.append((TEAM, "below start"))
    for judge in roles["judges"]:
        if judge.verdict in ("rejects everything", "accepts everything"):
            found.append((judge.role, judge.verdict))
    if roles["chooser"] is not None and roles["chooser"].collapsed:
        found.append((TEAM, "one place"))
    deaths: Sequence[RoleDeath] = roles["deaths"]
    found += [(death.role, _DEATHS[death.kind]) for death in deaths if death.found]
    return found
