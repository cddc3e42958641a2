"""A batch of calls as columns: ids as dictionary codes, numbers as arrays."""

from __future__ import annotations

import math
from array import array
from collections.abc import Callable, Hashable, Iterable, Sequence
from operator import attrgetter
from typing import Any

import numpy as np

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

NUMBERS: tuple[str, ...] = ("reward", "immediate", "share", "team", "value")
"""Numbers that targets are made of: fields of `Call`, its `team_share`, and its reward part `team`;
NaN where it has none."""

FLAGS: tuple[str, ...] = ("abstained", "executed")
"""True if the reply abstained; true if the episode went on from it."""


class _Book(dict[Hashable, int]):
    # No arithmetic is ever done on ids: two published trainers mixed up their groups that way. Two
    # ids share a code exactly when they are equal.
    def __missing__(self, key: Hashable) -> int:
        code = self[key] = len(self)
        return code


def _append(stored: array[Any], values: Iterable[object], rows: int) -> None:
    # numpy reads many values several times faster than `array` does.
    if rows < 64:
        stored.extend(values)
    else:
        stored.frombytes(np.fromiter(values, stored.typecode, rows).tobytes())


_READERS: dict[str, Callable[[Call], Any]] = {
    **{name: attrgetter(field) for name, field in COLUMNS.items()},
    **{name: attrgetter(name) for name in ("reward", "immediate", "abstained", "executed")},
    "share": attrgetter("team_share"),
    "team": lambda call: call.parts.get("team", math.nan),
    "value": lambda call: math.nan if call.value is None else call.value,
}


class CallColumns:
    """The columns of a batch; `add` the calls of each episode as it ends, then compute.

    Example:
        >>> columns = CallColumns(keep=("problem", "role", "reward"))

        >>> len(columns)

        0
    """

    def __init__(self, calls: Iterable[Call] = (), keep: Iterable[str] | None = None) -> None:
        names = set(_READERS if keep is None else keep)
        for name in names:
            if name not in _READERS:
                raise unknown("column", name, _READERS)
        self._rows = 0
        self._books = {name: _Book() for name in COLUMNS if name in names}
        types = (
            dict.fromkeys(COLUMNS, "i") | dict.fromkeys(NUMBERS, "d") | dict.fromkeys(FLAGS, "b")
        )
        self._arrays = {name: array(kind) for name, kind in types.items() if name in names}
        self.add(calls)

    def __len__(self) -> int:
        return self._rows

    def add(self, calls: Iterable[Call]) -> None:
        """Append rows."""
        calls = list(calls)
        for name, stored in self._arrays.items():
            values = map(_READERS[name], calls)
            book = self._books.get(name)
            _append(stored, values if book is None else map(book.__getitem__, values), len(calls))
        self._rows += len(calls)

    def codes(self, name: str) -> Codes:
        """The codes of a column of ids, (rows,): a view, let go of it before adding rows."""
        return np.frombuffer(self._column(name), np.int32)

    def ids(self, name: str) -> list[Hashable]:
        """The distinct ids of a column; `ids[codes]` is the column."""
        self._column(name)
        return list(self._books[name])

    def kinds(self, name: str) -> int:
        """Number of distinct ids in a column."""
        self._column(name)
        return len(self._books[name])

    def numbers(self, name: str) -> Floats:
        """A column of numbers, (rows,): a view, let go of it before adding rows."""
        return np.frombuffer(self._column(name), np.float64)

    def flags(self, name: str) -> Bools:
        """A column of flags, (rows,): a view, let go of it before adding rows."""
        return np.frombuffer(self._column(name), np.bool_)

    def where(self, row: int) -> str:
        """Names a row in error messages."""
        ids = {
            name: list(self._books[name])[self._arrays[name][row]]
            for name in ("problem", "episode", "agent", "turn")
            if name in self._books
        }
        return f"row {row} ({', '.join(f'{name} {value!r}' for name, value in ids.items())})"

    def _column(self, name: str) -> array[Any]:
        if name not in self._arrays:
            raise UsageError(
                f"these columns were made without {name!r}; they hold {', '.join(self._arrays)}."
            )
        return self._arrays[name]


class Groups:
    """The groups of `columns` by any tuple of columns, without rows that are added afterwards."""

    def __init__(self, columns: CallColumns) -> None:
        self.columns = columns
        self._codes: dict[str, Codes] = {}
        self._found: dict[frozenset[str], GroupIndex] = {}

    def codes(self, name: str) -> Codes:
        """The codes of one column, (rows,)."""
        if name not in self._codes:
            self._codes[name] = self.columns.codes(name)
        return self._codes[name]

    def by(self, names: Sequence[str]) -> GroupIndex:
        """Rows grouped by equality in all of `names`, numbered by first appearance."""
        names = tuple(dict.fromkeys(names))
        key = frozenset(names)
        if key not in self._found:
            self._found[key] = self._group_index(names[0]) if len(names) == 1 else self._many(names)
        return self._found[key]

    def keys(self, names: Sequence[str]) -> list[tuple[Hashable, ...]]:
        """The ids of `names` that each group shares."""
        first = self.by(names).first
        columns = [
            [ids[code] for code in self.codes(name)[first].tolist()]
            for name in names
            for ids in [self.columns.ids(name)]
        ]
        return list(zip(*columns, strict=True))

    def _group_index(self, name: str) -> GroupIndex:
        # Codes of a column are numbered by first appearance already.
        codes = self.codes(name)
        return GroupIndex(codes, first_rows(codes))

    def _many(self, names: tuple[str, ...]) -> GroupIndex:
        wide, last = self.by(names[:-1]), self.by(names[-1:])
        if determines(last, wide.codes):
            return last
        return pair(wide, last)
