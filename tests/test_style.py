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
    "adapters": (0, 0, 0, 0, 0),
    #
    "agents": (0, 0, 0, 0, 0),
    #
    "baselines": (0, 0, 0, 0, 2),
    #
    "baselines/advantages": (0, 0, 0, 0, 0),
    #
    "baselines/backends": (0, 0, 0, 0, 0),
    #
    "baselines/diagnostics": (0, 0, 0, 0, 0),
    #
    "baselines/engines": (0, 0, 0, 0, 0),
    #
    "baselines/learner": (0, 0, 0, 0, 0),
    #
    "baselines/matrix": (0, 0, 0, 0, 0),
    #
    #
    "baselines/report": (0, 0, 0, 0, 0),
    #
    "baselines/run": (0, 0, 0, 0, 0),
    #
    "baselines/settings": (0, 0, 0, 0, 0),
    #
    "baselines/sft": (0, 0, 0, 0, 0),
    #
    "baselines/sizing": (0, 0, 0, 0, 0),
    #
    "baselines/training": (0, 0, 0, 0, 0),
    #
    "baselines/workers": (0, 0, 0, 0, 0),
    #
    "commands": (0, 0, 0, 0, 0),
    #
    "envs": (0, 0, 0, 0, 0),
    #
    "reward": (0, 0, 0, 0, 0),
    #
    "sandbox": (0, 0, 0, 0, 0),
    #
    "": (0, 0, 0, 0, 0),
}
"""Breaches of each rule that a room may still have. They only fall.

A file belongs to the row with the longest path that contains it.
"""


def room_of(path: Path) -> str:
    """Row of ALLOWED that a file belongs to."""
    name = path.relative_to(PACKAGE).as_posix()
    return max((room for room in ALLOWED if not room or name.startswith(f"{room}/")), key=len)


@pytest.mark.parametrize("room", ALLOWED)
def test_a_room_keeps_to_the_style(room):
    files = [path for path in sorted(PACKAGE.rglob("*.py")) if room_of(path) == room]
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
