"""A finding of a report: its level, title and text."""

# A finding claims no more than its test: a difference whose interval includes 0 is not significant,
# a role in which a loss shows is not its cause, and a test that was not made is named.

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from flowzoo.baselines.report.words import is_finite
from flowzoo.baselines.run.reading import RunData

FindingLevel = Literal["bad", "warn", "unknown", "result", "good"]
LEVELS: Mapping[FindingLevel, str] = {
    "bad": "Problem", "warn": "Warning", "unknown": "Undecided", "result": "Result", "good": "OK",
}  # fmt: skip
"""Label by level, the most urgent first."""
FindingCode = Literal[
    "", "below start", "fall", "alarm", "rejects everything", "accepts everything", "never judges",
    "one place", "never read", "never right", "lost skill", "nobody asks", "says the same",
    "a copy", "a single agent", "worse", "blamed", "loss", "lost form", "loops", "fits no prompt",
    "hacked", "parted", "large update",
]  # fmt: skip
"""Names by which `called_by` of a matrix's failures refers to findings; empty: it has none."""
Facts = Mapping[str, Any]
Series = list[tuple[int, float]]  # (step, value) pairs
TEAM = ""  # role of a finding about the whole team


class Finding(NamedTuple):
    """One paragraph of the verdict."""

    level: FindingLevel
    title: str
    text: str
    code: FindingCode = ""
    role: str = TEAM  # role that a finding with a code is about

    def as_facts(self) -> dict[str, str]:
        """Values for the page."""
        label = LEVELS[self.level]
        return {"level": self.level, "label": label, "title": self.title, "text": self.text}


@dataclass(frozen=True, slots=True)
class RunFindings:
    """Facts of a run for its page, and the findings that follow from them."""

    facts: Facts = field(default_factory=dict)
    findings: Sequence[Finding] = ()


def metric_series(run: RunData, prefix: str) -> dict[str, Series]:
    """Finite values of the metrics whose names begin with `prefix`, by the rest of the name."""
    series: dict[str, Series] = {}
    for row in run.rows:
        for name, value in row.items():
            if name.startswith(prefix) and is_finite(value):
                points = series.setdefault(name.removeprefix(prefix), [])
                points.append((int(row["step"]), float(value)))
    return series
