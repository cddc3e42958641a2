"""Prose and names of the package keep to docs/style.md."""

from collections import defaultdict
from pathlib import Path

from tests.prose import findings, project_identifiers

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "flowzoo"
ALLOWED = {"stale name": 2, "function": 94}
"""Breaches that a rule may still have; their numbers only fall."""


def test_the_package_keeps_to_the_style():
    identifiers = project_identifiers(ROOT)
    places = defaultdict[str, list[str]](list)
    for path in sorted(PACKAGE.rglob("*.py")):
        for finding in findings(path, identifiers):
            line = f"{path.relative_to(ROOT)}:{finding.line}: {finding.text}"
            places[finding.rule].append(line)
    counts = {rule: len(lines) for rule, lines in places.items()}
    breaches = "\n".join(f"{rule}: {line}" for rule, lines in places.items() for line in lines)
    assert counts == ALLOWED, f"more or less than allowed:\n{breaches}"
