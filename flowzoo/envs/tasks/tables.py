"""Tables of text: CSV and TSV files as numbered records.

The first line names the columns. A cell is a text, in quotes where it has separators, quotes or
line breaks in it; an empty one is a column that the row does not have. Where a list is expected, it
is written as JSON.
"""

from __future__ import annotations

import csv
import io
import sys
from collections.abc import Iterator
from typing import Any

from flowzoo.errors import DataError

SEPARATORS = {".csv": ",", ".tsv": "\t"}
"""Suffix of a file -> what stands between its cells."""


def table_records(place: str, content: bytes, separator: str) -> Iterator[tuple[int, Any]]:
    """The rows of a table with the lines on which they begin.

    Args:
        place: the file, for messages.
        content: its bytes: UTF-8, with or without a byte order mark.
        separator: what stands between cells.

    Raises:
        DataError: no UTF-8, no header, quotes that do not match, or a row with more or fewer cells
            than there are columns.
    """
    rows = _rows(place, content, separator)
    line, header = next(rows, (1, []))
    names = [name.strip() for name in header]
    _check_header(f"{place}, line {line}", names, separator)
    for line, cells in rows:
        if len(cells) != len(names):
            raise DataError(f"{place}, line {line}: {_wrong_count(cells, names)}")
        yield line, {name: cell or None for name, cell in zip(names, cells, strict=True)}


def _rows(place: str, content: bytes, separator: str) -> Iterator[tuple[int, list[str]]]:
    """The rows that have cells, each with the line on which it begins."""
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise DataError(f"{place}, line {line}: no UTF-8 ({error}).") from error
    most = csv.field_size_limit(sys.maxsize)
    try:
        reader = csv.reader(io.StringIO(text, newline=""), delimiter=separator, strict=True)
        found, line = list[tuple[int, list[str]]](), 1
        try:
            for cells in reader:
                if cells:
                    found.append((line, cells))
                line = reader.line_num + 1
        except csv.Error as error:
            raise DataError(
                f"{place}, line {line}: no row of a table ({error}): a cell with quotes in it "
                'stands in quotes, and each of its own is doubled, as in "a ""word"""'
            ) from error
    finally:
        csv.field_size_limit(most)
    yield from found


def _check_header(where: str, names: list[str], separator: str) -> None:
    if not names or not all(names):
        raise DataError(f"{where}: expected the names of all columns, got {names!r:.80}.")
    twice = [name for name in dict.fromkeys(names) if names.count(name) > 1]
    if twice:
        raise DataError(f"{where}: two columns are called {twice[0]!r}.")
    others = [other for other in (";", *SEPARATORS.values()) if other != separator]
    between = next((other for other in others if len(names) == 1 and other in names[0]), None)
    if between is not None:
        raise DataError(
            f"{where}: one column, {names[0]!r:.60}: separate cells by {separator!r}, not "
            f"{between!r} (.csv: ',', .tsv: tab)."
        )


def _wrong_count(cells: list[str], names: list[str]) -> str:
    if len(cells) < len(names):
        return (
            f"{len(cells)} cells for {len(names)} columns: column {names[len(cells)]!r} is missing."
        )
    return (
        f"{len(cells)} cells for {len(names)} columns: {cells[len(names)]!r:.40} comes after the "
        f"last column, {names[-1]!r}; a cell with separators in it stands in quotes."
    )
