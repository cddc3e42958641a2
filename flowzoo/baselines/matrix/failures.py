"""Failures that a matrix is made to show: rules, the cells that show them, and remedies."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal, get_args

from flowzoo.baselines.matrix.cell import Cell
from flowzoo.errors import UsageError, check_choice, unknown

FILE = "failures.json"  # file that `flowzoo matrix` writes for `flowzoo report`
CellPart = Literal["shows", "remedies", "failed_remedies", "comparisons"]
PARTS: tuple[CellPart, ...] = get_args(CellPart)
"""Relations of a cell to a failure: it shows it; a change that is claimed to remove it; one that is
claimed not to; or a cell that is shown with these, without a claim."""
_TEXTS = ("name", "title", "role", "metric")
_FIELDS = (*_TEXTS, "at_most", "fall", "below", "called_by", *PARTS)


@dataclass(frozen=True, slots=True)
class FailureMode:
    """One way in which runs break, by a rule on their evaluations."""

    name: str
    title: str
    role: str
    metric: str
    called_by: tuple[str, ...]
    cells: tuple[tuple[str, str, CellPart], ...]
    """(name, label, relation) of every cell, in the order of the tables."""
    at_most: float | None = None
    fall: float | None = None
    below: Literal["start", "best"] = "start"

    def there(self, rows: Sequence[Mapping[str, object]]) -> bool | None:
        """True if a run ends with the failure; None if an evaluation that decides lacks it."""
        values = [_number(row.get(self.metric)) for row in rows]
        finite = [value for value in values if value is not None]
        if not values or values[-1] is None:
            # A share of no cases: for example, no right answer was left to accept.
            return None
        if self.at_most is not None:
            return values[-1] <= self.at_most
        top = values[0] if self.below == "start" else max(finite)
        return None if top is None else round(top - values[-1], 9) >= (self.fall or 0.0)

    def since(self, rows: Sequence[Mapping[str, object]]) -> int | None:
        """Index of the evaluation from which on the failure lasts to the end; None: it does not."""
        # Never the first evaluation, from which nothing can have fallen.
        if not self.there(rows):
            return None
        end = len(rows)
        while end > 2 and self.there(rows[: end - 1]):
            end -= 1
        return end - 1

    @property
    def rule(self) -> str:
        """The rule as text."""
        if self.at_most is not None:
            return f"{self.metric} is {100 * self.at_most:g} % or less at the last evaluation"
        top = "it was before training" if self.below == "start" else "at its best evaluation"
        size = f"{100 * (self.fall or 0.0):g} points or more"
        return f"{self.metric} is {size} lower at the last evaluation than {top}"


def read_failures(
    blocks: Iterable[Mapping[str, object]], cells: Iterable[Cell], where: str
) -> list[FailureMode]:
    """The failures of a matrix, from its blocks [[failures]]."""
    names = {cell.label or cell.name: cell.name for cell in cells}
    return [_failure(block, names, where) for block in blocks]


def as_record(failures: Iterable[FailureMode]) -> list[dict[str, Any]]:
    """Failures as plain values; `from_record` reads them back."""
    return [asdict(failure) for failure in failures]


def from_record(record: Sequence[Mapping[str, Any]]) -> list[FailureMode]:
    """The failures that `as_record` wrote."""
    for *_, part in (cell for row in record for cell in row["cells"]):
        check_choice("relation of a cell", part, PARTS)
    return [
        replace(
            FailureMode(**row),
            called_by=tuple(row["called_by"]),
            cells=tuple((name, label, part) for name, label, part in row["cells"]),
        )
        for row in record
    ]


def _failure(block: Mapping[str, Any], names: Mapping[str, str], where: str) -> FailureMode:
    of = f"of a failure in {where}"
    for key in block:
        if key not in _FIELDS:
            raise unknown(f"field {of}", key, _FIELDS)
    for key in _TEXTS:
        if not isinstance(block.get(key), str) or not block[key]:
            raise UsageError(f"`{key}` {of} must be text, got {block.get(key)!r}")
    rules = [key for key in ("at_most", "fall") if key in block]
    if len(rules) != 1 or not _is_share(block[rules[0]]):
        raise UsageError(
            f"a failure in {where} needs either `at_most` or `fall`, a number from 0 to 1; the "
            f"failure {block['name']} has { ({key: block[key] for key in rules}) }"
        )
    if block.get("below", "start") not in ("start", "best"):
        raise unknown(f"`below` {of}", str(block["below"]), ("start", "best"))
    cells: list[tuple[str, str, CellPart]] = []
    for part in PARTS:
        for label in _texts(block, part, of):
            if label not in names:
                raise unknown(f"cell in `{part}` {of}", label, names)
            cells.append((names[label], label, part))
    rest = {key: value for key, value in block.items() if key not in PARTS}
    rest["called_by"] = tuple(_texts(block, "called_by", of))
    return FailureMode(**rest, cells=tuple(cells))


def _texts(block: Mapping[str, object], key: str, of: str) -> list[str]:
    texts = block.get(key, [])
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
        raise UsageError(f"`{key}` {of} must be a list of texts, got {texts!r}")
    return texts


def _is_share(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value <= 1


def _number(value: object) -> float | None:
    is_finite = isinstance(value, (int, float)) and math.isfinite(value)
    return float(value) if is_finite else None
