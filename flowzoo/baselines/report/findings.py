"""A finding of a report: its level, title and text, and the words that findings share.

A finding claims no more than its test. A difference whose interval includes 0 is not significant, a
role in which a loss shows is not its cause, and a test that was not made is named.

A function of `flowzoo.baselines.report.run_facts.FINDINGS` makes the findings of one question.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from flowzoo.baselines.run.reading import RunData

FindingLevel = Literal["bad", "warn", "unknown", "result", "good"]
LEVELS: Mapping[FindingLevel, str] = {
    "bad": "Problem", "warn": "Warning", "unknown": "Undecided", "result": "Result", "good": "OK",
}  # fmt: skip
"""Label by level, the most urgent first."""
Facts = Mapping[str, Any]
TEAM = ""
"""Role of a finding about the whole team."""


class Finding(NamedTuple):
    """One paragraph of the verdict."""

    level: FindingLevel
    title: str
    text: str
    code: str = ""
    """Name by which `called_by` of a matrix's failures refers to it; empty: it has none."""
    role: str = TEAM
    """Role that a finding with a code is about."""

    def as_facts(self) -> dict[str, str]:
        """Values for the page."""
        label = LEVELS[self.level]
        return {"level": self.level, "label": label, "title": self.title, "text": self.text}


@dataclass(frozen=True, slots=True)
class RunFindings:
    """Facts of a run for its page, and the findings that follow from them."""

    facts: Facts = field(default_factory=dict)
    findings: Sequence[Finding] = ()


@dataclass(frozen=True, slots=True)
class FindingSource:
    """A function that answers one question about a run.

    It takes the run and the facts of the sources before it.
    """

    find: Callable[[RunData, Facts], RunFindings]
    codes: tuple[str, ...] = ()
    """Codes that its findings may have."""


def percent(value: float) -> str:
    """A fraction in percent."""
    return f"{100 * value:.1f}\u00a0%"


def points(value: float, *, sign: bool = False) -> str:
    """A difference of fractions in percentage points."""
    rounded = round(100 * value, 1) + 0.0  # no minus before 0
    return f"{rounded:{'+' if sign else ''}.1f}".replace("-", "−")


def between(low: float, high: float) -> str:
    """A 95 % interval of a difference, in points."""
    return f"95\u00a0% interval {points(low, sign=True)} to {points(high, sign=True)}"


def counted(count: int, noun: str) -> str:
    """A number and its noun, in the plural if needed."""
    return f"{count} {noun}" + ("" if count == 1 else "s")


def listed(items: Sequence[str]) -> str:
    """Words joined with commas and a final `and`."""
    return ", ".join(items[:-1]) + f" and {items[-1]}" if len(items) > 1 else "".join(items)
