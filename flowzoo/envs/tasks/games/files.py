"""Worlds from files: one board a row, in the symbols of its task, checked and solved when read.

The column is `board` (or what `columns={"board": ...}` names): text with a row of the board on
every line, or a list of such rows. The best actions are computed, not read.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from flowzoo.envs.tasks.rows import check_layout, objects
from flowzoo.errors import DataError, UsageError


@dataclass(frozen=True, slots=True)
class BoardRow:
    """One world of a file; `made` is its `Instance`."""

    line: int
    made: Any

    @property
    def text(self) -> str:
        """What decides the split."""
        return self.made.key


def board_rows(
    data: str, records: Iterable[tuple[int, Any]], layout: str, columns: dict[str, str]
) -> Iterator[BoardRow]:
    """The worlds of a file; `layout` is `task/side`.

    Raises:
        DataError: a bad row, with its line.
        UsageError: an unknown column key.
    """
    from flowzoo.envs.tasks import task_class

    check_layout(layout, (layout,), columns, ("board",))
    name, _, side = layout.partition("/")
    game: Any = task_class(name)
    column = columns.get("board", "board")
    for line, where, record in objects(data, records):
        value = record.get(column)
        rows = value if isinstance(value, list) else str(value or "").strip("\n").split("\n")
        if not all(isinstance(row, str) for row in rows) or not any(rows):
            raise DataError(
                f"{where}: column {column!r}: expected a board as text or as a list of rows, "
                f"got {value!r:.100}; another column is named with --options columns=board:COLUMN."
            )
        try:
            made = game.instance([row.rstrip("\r") for row in rows], int(side))
        except UsageError as error:
            raise DataError(f"{where}: {error}") from error
        yield BoardRow(line, made)


def check_square(rows: list[str], side: int, symbols: str) -> None:
    """Raise `UsageError` unless `rows` are `side` rows of `side` of the `symbols`."""
    if len(rows) != side or {len(row) for row in rows} != {side}:
        widths = sorted({len(row) for row in rows})
        raise UsageError(
            f"expected a board of {side} x {side} cells, got {len(rows)} rows of "
            f"{' or '.join(map(str, widths))}; the option `side` says how large boards are."
        )
    for symbol in sorted(set("".join(rows)) - set(symbols)):
        raise UsageError(f"symbol {symbol!r} on the board; expected one of {' '.join(symbols)}")
