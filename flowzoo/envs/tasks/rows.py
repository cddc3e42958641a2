"""Reading data files: one way for all tasks and layouts.

JSON Lines, a JSON array, CSV and TSV (`tables.py`; all of these gzipped, too), Parquet, and data
sets of the hub (`published.py`) become numbered records (of an array, a "line" is an entry); a
task's reader makes rows of them.
Every row is read and checked at once; the first bad one raises `DataError` with its line, or a
reader lists them all.
"""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import json
import os
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

from flowzoo.envs.tasks.published import published_rows, read_published
from flowzoo.envs.tasks.tables import SEPARATORS, table_records
from flowzoo.envs.tasks.task import SPLITS, split_of
from flowzoo.errors import DataError, UsageError, missing_extra, unknown

Columns = tuple[tuple[str, str], ...]
"""Pairs (what a layout needs, name of the column that has it); a dot goes into a mapping."""


class HasText(Protocol):
    """A row of any task."""

    @property
    def text(self) -> str:
        """The problem's text, whose hash decides the split."""
        ...


R = TypeVar("R", bound=HasText)
Reader = Callable[
    [str, Iterable[tuple[int, Any]], str, dict[str, str]], "Iterator[R] | Iterator[R | Unusable]"
]
"""Makes rows of numbered records: `(data, records, layout, columns)`; raises `DataError` at a bad
one, or gives an `Unusable` in its place."""


@dataclass(frozen=True, slots=True)
class Unusable:
    """A row that cannot be used: its line, and why not, with the place."""

    line: int
    reason: str


@dataclass(frozen=True, slots=True)
class DataSource(Generic[R]):
    """A file or dataset that was read. `splits` maps a split to its rows, in file order."""

    name: str
    digest: str
    splits: Mapping[str, tuple[R, ...]]
    unusable: tuple[Unusable, ...] = ()
    """Rows that the reader could make nothing of."""


def load(
    data: str, reader: Reader[R], layout: str = "auto", columns: Columns = ()
) -> DataSource[R]:
    """Read the problems of `data`: of a file, of a folder in the layout of the Hugging Face hub,
    or of an id there; parsed once per content.

    After an id or a folder: `:config` and `@split` where the dataset has several, `@split[:1000]`
    for some rows of it, `#commit` for a revision of an id. An existing path wins over an id.

    Args:
        data: path of a JSON Lines, CSV, TSV or Parquet file or of a folder, or an id.
        reader: makes the rows; a function of a module, since it is part of the cache's key.
        layout: one of the reader's layouts, or `auto` to tell by the columns of the first row.
        columns: pairs that replace the layout's column names.

    Raises:
        DataError: unreadable or empty file, or a bad row.
        UsageError: `data` is neither an existing path nor an id; unknown layout or column key.
        MissingExtraError: a Parquet file, a folder or a dataset id without the extra `data`.
    """
    if os.path.isfile(data):  # Path.is_file raises where a name is too long
        digest = hashlib.blake2b(Path(data).read_bytes(), digest_size=16).hexdigest()
        return _load(data, reader, layout, columns, digest)
    return _load(data, reader, layout, columns, "", read_published(data).stamp)


def data_source(
    data: str,
    reader: Reader[R],
    layout: str = "auto",
    columns: Columns = (),
    digest: str = "",
) -> DataSource[R]:
    """The source of `data`, whose content must have `digest` if one is given."""
    if digest:
        return reload(data, reader, layout, columns, digest)
    return load(data, reader, layout, columns)


@lru_cache(maxsize=16)
def reload(
    data: str, reader: Reader[R], layout: str, columns: Columns, digest: str
) -> DataSource[R]:
    """The source that `load` gave with `digest`; reads the file at most once in a process.

    Raises:
        DataError: the content is not what it was.
        UsageError: the file is gone.
    """
    source = load(data, reader, layout, columns)
    if source.digest != digest:
        raise DataError(
            f"{data}: the content has changed since the task was made (digest {source.digest}, "
            f"expected {digest}). Make the task anew."
        )
    return source


@lru_cache(maxsize=16)
def _load(
    data: str, reader: Reader[R], layout: str, columns: Columns, digest: str, stamp: str = ""
) -> DataSource[R]:
    """`load` for a known content: `digest` is that of the file, empty for an id or a folder.

    `stamp` only tells a folder from what it was before.
    """
    records = _read_file(Path(data)) if digest else published_rows(data)
    found = tuple(reader(data, records, layout, dict(columns)))
    unusable = tuple(row for row in found if isinstance(row, Unusable))
    rows = tuple(row for row in found if not isinstance(row, Unusable))
    if not rows:
        if unusable:
            raise unusable_rows(data, unusable, len(unusable))
        raise DataError(f"{data}: no rows; expected at least one problem.")
    if not digest:
        said = repr(rows).encode("utf-8", "surrogatepass")
        digest = hashlib.blake2b(said, digest_size=16).hexdigest()
    splits: dict[str, list[R]] = {name: [] for name in SPLITS}
    for row in rows:
        splits[split_of(row.text)].append(row)
    splits["all"] = list(rows)
    name = Path(data).name if Path(data).is_file() else data
    parts = {split: tuple(part) for split, part in splits.items()}
    return DataSource(name, digest, parts, unusable)


def unusable_rows(
    data: str, unusable: Sequence[Unusable], total: int, remedy: str = ""
) -> DataError:
    """An error that lists rows, a line each; one row alone on the same line."""
    reasons = [row.reason for row in sorted(unusable, key=lambda row: row.line)]
    if len(reasons) == 1:
        return DataError(f"{reasons[0]} {remedy}".rstrip())
    listed = "".join(f"\n  {reason}" for reason in reasons)
    head = f"{data}: {len(reasons)} of {total} rows cannot be used. {remedy}".rstrip()
    return DataError(f"{head}{listed}")


def read_columns(value: object) -> Columns:
    """Columns as an option gives them: a mapping, pairs, or a text such as `text:ask,tests:checks`.

    Raises:
        UsageError: anything else.
    """
    pairs: Any = value
    if isinstance(value, str):
        pairs = [tuple(part.strip() for part in word.split(":")) for word in value.split(",")]
        pairs = pairs if value else []
    if isinstance(value, Mapping):
        pairs = list(value.items())
    if isinstance(pairs, list | tuple) and all(
        isinstance(pair, list | tuple)
        and len(pair) == 2
        and all(isinstance(name, str) and name for name in pair)
        for pair in pairs
    ):
        return tuple(sorted((key, name) for key, name in pairs))
    raise UsageError(
        "columns: expected what a layout needs and the column that has it, as "
        f"{{'text': 'ask', 'tests': 'checks'}} or 'text:ask,tests:checks', got {value!r:.80}."
    )


def _read_file(path: Path) -> Iterable[tuple[int, Any]]:
    suffix = Path(path.stem if path.suffix == ".gz" else path).suffix.lower()
    if suffix == ".parquet" and path.suffix != ".gz":
        return _read_parquet(path)
    if suffix in SEPARATORS:
        return table_records(str(path), _content(path), SEPARATORS[suffix])
    return _read_json(path)


def _content(path: Path) -> bytes:
    """The bytes of a file, which may be gzipped."""
    if path.suffix != ".gz":
        return path.read_bytes()
    try:
        return gzip.decompress(path.read_bytes())
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{path}: not a readable gzip file ({error}).") from error


def _read_json(path: Path) -> Iterator[tuple[int, Any]]:
    """The objects of a file, one a line, or those of the one array that it holds.

    A line that is none is an `Unusable`.
    """
    content = _content(path)
    if content.lstrip(b"\xef\xbb\xbf \t\r\n").startswith(b"["):
        try:
            yield from enumerate(json.loads(content.decode("utf-8-sig")), start=1)
        except (ValueError, RecursionError) as error:
            raise DataError(f"{path}: begins like a JSON array, but is none ({error}).") from error
        return
    # Lines end at b"\n" alone: str.splitlines would also cut at U+2028 inside a string.
    for line, raw in enumerate(content.split(b"\n"), start=1):
        if not raw.strip():
            continue
        try:
            yield line, json.loads(raw.decode("utf-8-sig" if line == 1 else "utf-8"))
        except (ValueError, RecursionError) as error:
            yield (
                line,
                Unusable(
                    line,
                    f"{path}, line {line}: not a JSON object ({error}). Files of other kinds end "
                    "in .csv, .tsv or .parquet.",
                ),
            )


def _read_parquet(path: Path) -> Iterator[tuple[int, Any]]:
    try:
        import pyarrow as arrow
        import pyarrow.parquet as parquet
    except ImportError as error:
        raise missing_extra("pyarrow", "data", "reading a Parquet file") from error
    try:
        table = parquet.read_table(path)
    except (arrow.ArrowException, OSError) as error:
        raise DataError(f"{path}: not a readable Parquet file ({error}).") from error
    yield from enumerate(table.to_pylist(), start=1)


def check_layout(
    layout: str, layouts: Sequence[str], columns: Iterable[str], keys: Iterable[str]
) -> None:
    """Raise `UsageError` unless `layout` is one of `layouts` and all `columns` are `keys` of it."""
    if layout not in layouts:
        raise unknown("layout", layout, layouts)
    known = list(keys)
    for key in columns:
        if key not in known:
            raise unknown("column key", key, known)


def no_layout(
    where: str,
    record: Mapping[str, Any],
    layouts: Mapping[str, Mapping[str, tuple[str, ...]]],
    needed: Sequence[str],
) -> DataError:
    """The error for a file whose first record fits none of `layouts`.

    Args:
        where: the record's place.
        record: the record.
        layouts: layout -> what it needs -> columns that may have it.
        needed: what all layouts need, which columns can be named for.
    """
    expected = "; ".join(
        f"{name}: " + ", ".join(column for group in groups.values() for column in group)
        for name, groups in layouts.items()
    )
    words = ",".join(f"{key}:COLUMN" for key in needed)
    mapping = ", ".join(f"{key!r}: ..." for key in needed)
    return DataError(
        f"{where}: no known layout has the columns {sorted(record)}. Expected {expected}; or name "
        f"them with --options columns={words} (in Python columns={{{mapping}}})."
    )


def listed(value: Any) -> Any:
    """`value`, or the list of texts that it writes as JSON, as cells of CSV files do."""
    if isinstance(value, str) and value.lstrip().startswith("["):
        with contextlib.suppress(ValueError, RecursionError):
            items = json.loads(value)
            if all(isinstance(item, str) for item in items):
                return items
    return value


def objects(
    data: str, records: Iterable[tuple[int, Any]]
) -> Iterator[tuple[int, str, dict[str, Any]]]:
    """Line number, place for messages, and record, of records that must be mappings.

    Raises:
        DataError: one is something else.
    """
    for line, record in records:
        where = f"{data}, line {line}"
        if isinstance(record, Unusable):
            raise DataError(record.reason)
        if not isinstance(record, dict):
            got = type(record).__name__
            raise DataError(f"{where}: expected an object with columns, got {got}.")
        yield line, where, record


def first(record: Mapping[str, Any], names: Iterable[str]) -> Any:
    """The first of the columns `names` that `record` has, or None."""
    for name in names:
        value: Any = record
        for key in [name] if name in record else name.split("."):
            value = value.get(key) if isinstance(value, Mapping) else None
        if value is not None:
            return value
    return None


def text_of(value: Any) -> str | None:
    """A string column, a number as text, or the last user message of a chat; None otherwise."""
    if isinstance(value, str):
        return value
    if isinstance(value, int | float) and not isinstance(value, bool):
        return str(value)
    if isinstance(value, list):
        said = [m for m in value if isinstance(m, Mapping) and m.get("role") == "user"]
        content = said[-1].get("content") if said else None
        return content if isinstance(content, str) else None
    return None
