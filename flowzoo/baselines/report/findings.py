"""A finding of a report: its level, title and text, and the words that findings share."""

# A finding claims no more than its test: a difference whose interval includes 0 is not significant,
# a role in which a loss shows is not its cause, and a test that was not made is named.

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

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


def is_finite(value: object) -> bool:
    """True for a finite number."""
    return isinstance(value, (int, float)) and math.isfinite(value)


def metric_series(run: RunData, prefix: str) -> dict[str, Series]:
    """Finite values of the metrics whose names begin with `prefix`, by the rest of the name."""
    series: dict[str, Series] = {}
    for row in run.rows:
        for name, value in row.items():
            if name.startswith(prefix) and is_finite(value):
                points = series.setdefault(name.removeprefix(prefix), [])
                points.append((int(row["step"]), float(value)))
    return series


def finite_only(value: object) -> Any:
    """`value` with None for every number that JSON does not have, recursively."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): finite_only(item) for key, item in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [finite_only(item) for item in value]
    return value


def percent(value: float) -> str:
    """A fraction in percent."""
    return f"{100 * value:.1f}\u00a0%"


def points(value: float, *, sign: bool = False) -> str:
    """A difference of fractions in percentage points."""
    rounded = round(100 * value, 1) + 0.0  # no minus before 0
    return f"{rounded:{'+' if sign else ''}.1f}".replace("-", "−")


def between(low: float, high: float, show: Callable[..., str] = points) -> str:
    """A 95 % interval of a difference, in points; without width it is none."""
    if low == high:
        return "no interval, since all differences are equal"
    return f"95\u00a0% interval {show(low, sign=True)} to {show(high, sign=True)}"


def pluralize(count: int, noun: str) -> str:
    """A number and its noun, in the plural if needed."""
    return f"{count} {noun}" + ("" if count == 1 else "s")


def join_words(items: Sequence[str]) -> str:
    """Words joined with commas and a final `and`."""
    return ", ".join(items[:-1]) + f" and {items[-1]}" if len(items) > 1 else "".join(items)
