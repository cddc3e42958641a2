"""A batch of calls as columns: ids as dictionary codes, numbers as arrays."""

import math
from collections.abc import Callable, Hashable, Iterable, Sequence
from operator import attrgetter
from typing import Any

import numpy as np
import numpy.typing as npt

from flowzoo.aliases import Floats
from flowzoo.baselines.advantages.segments import (
    Bools,
    Codes,
    GroupIndex,
    determines,
    first_rows,
    pair,
)
from flowzoo.baselines.advantages.spec import COLUMNS
from flowzoo.envs.records import Call
from flowzoo.errors import UsageError, unknown

_READERS: dict[str, tuple[Callable[[Call], Any], npt.DTypeLike]] = {
    **{name: (attrgetter(field), np.int32) for name, field in COLUMNS.items()},
    "reward": (attrgetter("reward"), np.float64),
    "immediate": (attrgetter("immediate"), np.float64),
    "share": (attrgetter("team_share"), np.float64),
    "team": (lambda call: call.parts.get("team", math.nan), np.float64),
    "value": (lambda call: math.nan if call.value is None else call.value, np.float64),
    "abstained": (attrgetter("abstained"), np.bool_),
    "executed": (attrgetter("executed"), np.bool_),
}
"""Column -> its value of a call, and its kind: codes of ids, a number (NaN for none), or a flag."""


class CallColumns:
    """The columns of a batch: those in `keep`, or all.

    Example:
        >>> columns = CallColumns([], keep=("problem", "role", "reward"))

        >>> len(columns)

        0
    """

    def __init__(self, calls: Iterable[Call], keep: Iterable[str] | None = None) -> None:
        calls = list(calls)
        self._rows = len(calls)
        self._ids: dict[str, list[Hashable]] = {}
        self._columns: dict[str, npt.NDArray[Any]] = {}
        for name in _READERS if keep is None else keep:
            if name not in _READERS:
                raise unknown("column", name, _READERS)
            read, kind = _READERS[name]
            values: Iterable[Any] = map(read, calls)
            if name in COLUMNS:
                # No arithmetic is ever done on ids: two published trainers mixed up their groups
                # that way. Two ids share a code exactly when they are equal.
                codes: dict[Hashable, int] = {}
                values = [codes.setdefault(value, len(codes)) for value in values]
                self._ids[name] = list(codes)
            self._columns[name] = np.fromiter(values, kind, len(calls))

    def __len__(self) -> int:
        return self._rows

    def codes(self, name: str) -> Codes:
        """The codes of a column of ids, (rows,), numbered by first appearance."""
        return self._column(name)

    def ids(self, name: str) -> list[Hashable]:
        """The distinct ids of a column; `ids[codes]` is the column."""
        self._column(name)
        return self._ids[name]

    def numbers(self, name: str) -> Floats:
        """A column of numbers, (rows,)."""
        return self._column(name)

    def flags(self, name: str) -> Bools:
        """A column of flags, (rows,)."""
        return self._column(name)

    def where(self, row: int) -> str:
        """Names a row in error messages."""
        names = [name for name in ("problem", "episode", "agent", "turn") if name in self._ids]
        ids = (f"{name} {self._ids[name][self._columns[name][row]]!r}" for name in names)
        return f"row {row} ({', '.join(ids)})"

    def _column(self, name: str) -> npt.NDArray[Any]:
        if name not in self._columns:
            raise UsageError(
                f"these columns were made without {name!r}; they hold {', '.join(self._columns)}."
            )
        return self._columns[name]


class Groups:
    """The groups of the rows of `columns` by any tuple of columns."""

    def __init__(self, columns: CallColumns) -> None:
        self.columns = columns
        self._found: dict[frozenset[str], GroupIndex] = {}

    def by(self, names: Sequence[str]) -> GroupIndex:
        """Rows grouped by equality in all of `names`, numbered by first appearance."""
        *wider, last = dict.fromkeys(names)
        key = frozenset(names)
        if key not in self._found:
            if wider:
                wide, fine = self.by(wider), self.by((last,))
                self._found[key] = fine if determines(fine, wide.codes) else pair(wide, fine)
            else:
                codes = self.columns.codes(last)
                self._found[key] = GroupIndex(codes, first_rows(codes))
        return self._found[key]

    def keys(self, names: Sequence[str]) -> list[tuple[Hashable, ...]]:
        """The ids of `names` that each group shares."""
        first = self.by(names).first
        columns = (
            [self.columns.ids(name)[code] for code in self.columns.codes(name)[first].tolist()]
            for name in names
        )
        return list(zip(*columns, strict=True))
