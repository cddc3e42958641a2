"""Prose and names of the package keep to docs/style.md."""

from __future__ import annotations

from collections import Counter, defaultdict
from pathlib import Path

import pytest

from tests.prose import findings, project_identifiers

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "flowzoo"
RULES = ("first word", "local", "phrase", "spelling", "stale name")
ALLOWED: dict[str, tuple[int, ...]] = {
    "agents": (93, 130, 104, 6, 1),
    #
    "baselines": (590, 989, 391, 119, 11),
    #
    "commands": (50, 178, 49, 2, 1),
    #
    "envs": (182, 265, 112, 20, 26),
    #
    "reward": (121, 138, 47, 3, 9),
    #
    "sandbox": (163, 129, 109, 3, 9),
    #
    "": (19, 32, 12, 0, 1),
}
"""Breaches of each rule that a room may still have. They only fall."""


@pytest.mark.parametrize("room", ALLOWED)
def test_a_room_keeps_to_the_style(room: str) -> None:
    files = sorted((PACKAGE / room).rglob("*.py") if room else PACKAGE.glob("*.py"))
    assert files, f"no files in {room}"
    identifiers = project_identifiers(ROOT)
    places = defaultdict[str, list[str]](list)
    for path in files:
        for finding in findings(path, identifiers):
            line = f"{path.relative_to(ROOT)}:{finding.line}: {finding.text}"
            places[finding.rule].append(line)
    counts = Counter({rule: len(lines) for rule, lines in places.items()})
    for rule, allowed in zip(RULES, ALLOWED[room], strict=True):
        assert counts[rule] <= allowed, f"{rule}, at most {allowed}:\n" + "\n".join(places[rule])
        assert counts[rule] == allowed, f"{rule}: {counts[rule]} left, lower the allowance"
