"""Tasks on which a team pays: one verdict a cell, from comparisons with the single agent.

The rule was fixed before the runs of the bundled matrix `map`. A cell is compared with its control
at equal training tokens, with votes of the control at equal calls of an answer, and with votes at
equal output tokens of an answer; each has a 95 % interval over seeds (`comparisons.claim`).

* `pays`: all three intervals lie above 0.
* `does not`: at least one lies below 0, and none above.
* `mixed`: some lie above 0, but not all.
* `undecided`: anything else: all hold 0, one of the three was not measured, there are too few
  seeds, or the control never had the tokens.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from flowzoo.agents.evaluation.majority import MATCHES
from flowzoo.baselines.report.findings import Finding
from flowzoo.baselines.report.words import pluralize

TeamVerdict = Literal["pays", "does not", "mixed", "undecided"]
EQUAL = ("training tokens", *(f"{match} of an answer" for match in MATCHES))
"""Equal budgets of the three comparisons, in the words of `against_controls`."""


def team_map(controls: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """`cell`, `control`, `verdict` and `rows`, the comparisons, of every pair of `controls`.

    Args:
        controls: what `against_controls` says.
    """
    pairs = dict.fromkeys((row["other"], row["one"]) for row in controls)
    found: list[dict[str, Any]] = []
    for cell, control in pairs:
        rows = [row for row in controls if (row["other"], row["one"]) == (cell, control)]
        found.append(
            {"cell": cell, "control": control, "verdict": team_verdict(rows), "rows": rows}
        )
    return found


def team_verdict(rows: Sequence[Mapping[str, Any]]) -> TeamVerdict:
    """The verdict of the comparisons of one cell with one control; see the module."""
    claims = {row["equal"]: row["claim"] for row in rows}
    if set(claims) != set(EQUAL) or any(said.startswith("no claim") for said in claims.values()):
        return "undecided"
    higher, lower = (list(claims.values()).count(word) for word in ("higher", "lower"))
    if higher == len(EQUAL):
        return "pays"
    if higher:
        return "mixed"
    return "does not" if lower else "undecided"


def team_findings(cells: Sequence[Mapping[str, Any]]) -> list[Finding]:
    """The map in a sentence; nothing where no cell has a control."""
    if not cells:
        return []
    named = {
        verdict: [cell["cell"] for cell in cells if cell["verdict"] == verdict]
        for verdict in ("pays", "does not", "mixed", "undecided")
    }
    said = {
        "pays": "ends above the single agent at equal training tokens, calls and tokens of an "
        "answer",
        "does not": "is below it in one of the three or more, and above in none",
        "mixed": "is above it in some and not in others",
        "undecided": "cannot be told",
    }
    parts = [
        f"{pluralize(len(names), 'cell')} {said[verdict]}: {', '.join(names)}."
        for verdict, names in named.items()
        if names
    ]
    return [Finding("result", "Where a team pays", " ".join(parts))]


def team_lines(cells: Sequence[Mapping[str, Any]]) -> list[str]:
    """The map as Markdown: differences with their intervals over seeds."""
    lines = [
        "Where a team pays: the workflow less the single agent, in points (95 % over seeds):",
        "",
        f"| cell | {' | '.join(f'equal {equal}' for equal in EQUAL)} | the team |",
        f"|---|{'---|' * len(EQUAL)}---|",
    ]
    for cell in cells:
        rows = {row["equal"]: row for row in cell["rows"]}
        said = [_over_seeds(rows[equal]) if equal in rows else "" for equal in EQUAL]
        lines.append(f"| {cell['cell']} | {' | '.join(said)} | {cell['verdict']} |")
    return lines


def _over_seeds(row: Mapping[str, Any]) -> str:
    low, high = row["seed_low"], row["seed_high"]
    interval = "one seed" if low is None else f"{100 * low:+.1f} to {100 * high:+.1f}"
    return f"{100 * row['mean']:+.1f} ({interval})"
