"""Rows of files (JSON Lines, JSON, CSV, TSV, Parquet) and of datasets of the Hugging Face Hub."""

from __future__ import annotations

import contextlib
import csv
import gzip
import hashlib
import io
import json
import logging
import os
import random
import re
import sys
import zlib
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import Any, ClassVar, Generic, Protocol, Self, TypeAlias, TypeVar, cast

from flowzoo.aliases import DataRecord
from flowzoo.declared import check_value, declared_types
from flowzoo.envs.script import GradeResult
from flowzoo.envs.settings import check_seed, plain_integers
from flowzoo.envs.tasks.task import (
    SPLITS,
    Problem,
    Task,
    check_split,
    number_by_first,
    split_of,
)
from flowzoo.errors import DataError, FlowzooError, UsageError, missing_extra, unknown
from flowzoo.sandbox.tier import check_sandbox
from flowzoo.seeding import key_rng

_log = logging.getLogger(__name__)

_PARTS = re.compile(
    r"(?P<place>.+?)(?::(?P<config>[\w.-]+))?"
    r"(?:@(?P<split>[\w.-]+)(?:\[(?P<first>\d*):(?P<stop>\d*)\])?)?(?:#(?P<revision>[\w./-]+))?",
    re.ASCII,
)
_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*", re.ASCII)
_COMMIT = re.compile(r"[0-9a-f]{40}")
_FILE_ENDINGS = (".jsonl", ".json", ".parquet", ".csv", ".tsv", ".txt", ".gz")


NumberedRecord = tuple[int, object]  # a line of a file, from 1, and what is on it
Records = Iterable[NumberedRecord]
RowPlace: TypeAlias = Mapping[str, object]
"""Name of the source and line of a row, which are part of the `meta` of its problem."""


@dataclass(frozen=True, slots=True)
class Published:
    """A range of rows of a data set."""

    location: str  # an id of the hub, or the path of a folder
    config: str | None = None
    split: str | None = None
    first: int = 0  # number of skipped rows at the beginning of the split
    stop: int | None = None  # index after the last row; None: all rows, from a cached copy
    revision: str | None = None  # commit, tag or branch of the hub

    @property
    def folder(self) -> Path | None:
        """The folder, if `location` is one."""
        return Path(self.location) if os.path.isdir(self.location) else None

    @property
    def stamp(self) -> str:
        """Fingerprint of the files of the folder; empty for an id."""
        if self.folder is None:
            return ""
        hasher = hashlib.blake2b(digest_size=16)
        for path in sorted(self.folder.rglob("*")):
            if path.is_file():
                status = path.stat()
                hasher.update(repr((str(path), status.st_size, status.st_mtime_ns)).encode())
        return hasher.hexdigest()


def read_published(data: str) -> Published:
    """Parse `data` as a dataset, without a request."""
    if os.path.isdir(data):
        return Published(data)
    parts = _PARTS.fullmatch(data)
    is_folder = parts is not None and os.path.isdir(parts["place"])
    named = (
        parts is not None
        and _ID.fullmatch(parts["place"])
        and not parts["place"].lower().endswith(_FILE_ENDINGS)
    )
    if parts is None or not (is_folder or named):
        raise UsageError(
            f"data {data!r}: neither an existing file or folder nor a dataset id. Expected the "
            "path of an existing JSON Lines, CSV, TSV or Parquet file, a folder in the layout of "
            "the hub, or an id such as 'org/name', 'org/name:config' or "
            "'org/name:config@split#commit'."
        )
    if is_folder and parts["revision"]:
        raise UsageError(
            f"data {data!r}: a folder has no revisions; leave out #{parts['revision']}."
        )
    stop = int(parts["stop"]) if parts["stop"] else None
    first = int(parts["first"] or 0)
    if stop is not None and stop <= first:
        raise UsageError(f"data {data!r}: no row is in the range from {first} to before {stop}.")
    return Published(
        parts["place"], parts["config"], parts["split"], first, stop, parts["revision"]
    )


def published_rows(data: str) -> Iterator[NumberedRecord]:
    """Rows of a data set with their numbers in the split, from 1."""
    source = read_published(data)
    try:
        import datasets.exceptions
        import httpx  # used by `datasets` for requests to the Hub; some of its errors pass through
    except ImportError as error:
        raise missing_extra("datasets", "data", f"loading the dataset {data!r}") from error
    try:
        loaded = _load_split(data, source)
        rows = islice(loaded, source.first, source.stop)
        yield from enumerate(rows, start=source.first + 1)
    except FlowzooError:
        raise
    except (ValueError, OSError, httpx.HTTPError, datasets.exceptions.DatasetsError) as error:
        remedy = ""
        if source.folder is None and isinstance(error, OSError | httpx.HTTPError):
            remedy = (
                " If this machine cannot reach the hub: on one that can, run `hf download "
                f"--repo-type dataset {source.location} --local-dir FOLDER`, bring the folder here "
                "and name it instead."
            )
        message = str(error).rstrip(".")
        raise DataError(f"dataset {data!r} could not be loaded: {message}.{remedy}") from error


def _load_split(data: str, source: Published) -> Any:
    import datasets

    builder = datasets.load_dataset_builder(
        source.location, source.config, revision=source.revision
    )
    if source.folder is None:
        _check_commit(data, source, builder)
    if source.folder is None and source.stop is None:
        builder.download_and_prepare()
        loaded: object = builder.as_dataset(split=source.split)
    else:
        loaded = builder.as_streaming_dataset(split=source.split)
    if not isinstance(loaded, Mapping):
        return loaded
    if len(loaded) == 1:
        return next(iter(loaded.values()))
    location = source.location + (f":{source.config}" if source.config else "")
    names = ", ".join(f"{location}@{name}" for name in loaded)
    raise UsageError(f"dataset {data!r} has several splits; choose one of: {names}.")


def _check_commit(data: str, source: Published, builder: Any) -> None:
    # Reject a commit other than the requested one; log it if none was requested. If the Hub does
    # not answer, `datasets` uses any revision from its cache.
    from datasets.packaged_modules.cache.cache import Cache

    commit, revision = builder.hash, source.revision
    if revision is None:
        _log.warning("data %s is commit %s; %s#%s pins it", data, commit, data, commit)
    elif revision != commit and (isinstance(builder, Cache) or _COMMIT.fullmatch(revision)):
        raise DataError(
            f"dataset {data!r}: the hub did not answer, and the cached commit {commit} may differ "
            f"from {revision}. Load it once with access to the hub, or use the cached one with "
            f"#{commit}."
        )


SEPARATORS = {".csv": ",", ".tsv": "\t"}  # cell separator by suffix of a file


def table_records(file: str, content: bytes, separator: str) -> Iterator[NumberedRecord]:
    """The rows of a table with the lines on which they begin."""
    rows = iter(_rows(file, content, separator))
    line, header = next(rows, (1, []))
    names = [name.strip() for name in header]
    _check_header(f"{file}, line {line}", names, separator)
    for line, cells in rows:
        if len(cells) != len(names):
            raise DataError(f"{file}, line {line}: {_wrong_count(cells, names)}")
        yield line, {name: cell or None for name, cell in zip(names, cells, strict=True)}


def _rows(file: str, content: bytes, separator: str) -> list[tuple[int, list[str]]]:
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise DataError(f"{file}, line {line}: no UTF-8 ({error}).") from error
    most = csv.field_size_limit(sys.maxsize)
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=separator, strict=True)
    rows, line = list[tuple[int, list[str]]](), 1
    try:
        for cells in reader:
            if cells:
                rows.append((line, cells))
            line = reader.line_num + 1
    except csv.Error as error:
        raise DataError(
            f"{file}, line {line}: not a table row ({error}): a cell with quotes must be "
            'quoted, with each inner quote doubled, as in "a ""word"""'
        ) from error
    finally:
        csv.field_size_limit(most)
    return rows


def _check_header(where: str, names: list[str], separator: str) -> None:
    if not names or not all(names):
        raise DataError(f"{where}: expected the names of all columns, got {names!r:.80}.")
    twice = [name for name in dict.fromkeys(names) if names.count(name) > 1]
    if twice:
        raise DataError(f"{where}: two columns have the name {twice[0]!r}.")
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
        f"last column, {names[-1]!r}; a cell with separators must be quoted."
    )


# Pairs (key of a layout, name of its column); a dot descends into a mapping.
Columns = tuple[tuple[str, str], ...]
Names = Mapping[str, tuple[str, ...]]  # key of a layout -> the columns that may hold it


class HasText(Protocol):
    """A row of any task."""

    @property
    def text(self) -> str:
        """The problem's text, whose hash determines the split."""
        ...


R = TypeVar("R", bound=HasText)
HELD_OUT = frozenset({"validation", "test"})
# Converts numbered records to rows: `(data, records, layout, columns)`; raises `DataError` at an
# invalid record, or yields an `Unusable` instead.
Reader = Callable[[str, Records, str, dict[str, str]], "Iterator[R] | Iterator[R | Unusable]"]


@dataclass(frozen=True, slots=True)
class Unusable:
    """A row that cannot be used: its line, and the reason with the location."""

    line: int
    reason: str


@dataclass(frozen=True, slots=True)
class DataSource(Generic[R]):
    """A file or dataset that was read. `splits` maps a split to its rows, in file order."""

    name: str
    digest: str
    splits: Mapping[str, tuple[R, ...]]
    unusable: tuple[Unusable, ...] = ()  # rows that the reader could not use
    names: Mapping[str, str] = field(default_factory=dict[str, str])  # by split, if they differ


def load(
    data: str, reader: Reader[R], layout: str = "auto", columns: Columns = ()
) -> DataSource[R]:
    """Read the problems of a file, a folder in the hub's layout, or an id.

    `SPLIT=DATA,SPLIT=DATA` reads every split from its own; held-out problems stay out of the
    others.
    """
    if not os.path.exists(data) and (parts := named_splits(data)):
        digests = {part: load(part, reader, layout, columns).digest for part in parts.values()}
        return _join_splits(data, reader, layout, columns, tuple(digests.items()))
    # Parsed once per content. Suffixes of an id or folder: `:config` and `@split` if the dataset
    # has several, `@split[:1000]` for a range of rows, `#commit` for a revision of an id. An
    # existing path takes precedence over an id.
    if os.path.isfile(data):  # Path.is_file raises for long names
        digest = hashlib.blake2b(Path(data).read_bytes(), digest_size=16).hexdigest()
        return _load(data, reader, layout, columns, digest)
    return _load(data, reader, layout, columns, "", read_published(data).stamp)


def named_splits(data: str) -> dict[str, str]:
    """Data by split of `SPLIT=DATA,SPLIT=DATA`; empty for other data."""
    names = "|".join(name for name in SPLITS if name != "all")
    starts = list(re.finditer(rf"(?:^|,)({names})=", data))
    if not starts or starts[0].start() > 0:
        return {}
    ends = [*(start.start() for start in starts[1:]), len(data)]
    parts = {start[1]: data[start.end() : end] for start, end in zip(starts, ends, strict=True)}
    if len(parts) < len(starts):
        raise UsageError(f"data {data!r}: a split is named twice; leave one of them out.")
    return parts


@lru_cache(maxsize=16)
def _join_splits(
    data: str,
    reader: Reader[R],
    layout: str,
    columns: Columns,
    digests: tuple[tuple[str, str], ...],
) -> DataSource[R]:
    contents = dict(digests)
    sources = {
        split: reload(part, reader, layout, columns, contents[part])
        for split, part in named_splits(data).items()
    }
    # Every source in whole is a split, but for held-out problems among those to train on.
    splits = {name: tuple[R, ...]() for name in SPLITS}
    splits |= {split: source.splits["all"] for split, source in sources.items()}
    held_out = {row.text for split in HELD_OUT for row in splits[split]}
    for split in sources.keys() - HELD_OUT:
        rows = splits[split]
        splits[split] = tuple(row for row in rows if row.text not in held_out)
        if left := len(rows) - len(splits[split]):
            _log.warning(
                "data %s: %d of %d rows of split %s are held out, too: they are left out of it",
                data, left, len(rows), split,
            )  # fmt: skip
    splits["all"] = tuple(row for rows in list(splits.values()) for row in rows)
    hasher = hashlib.blake2b(digest_size=16)
    for split, source in sources.items():
        hasher.update(f"{split} {source.digest}\n".encode())
    unusable = tuple(row for source in sources.values() for row in source.unusable)
    names = {split: source.name for split, source in sources.items()}
    name = ", ".join(dict.fromkeys(names.values()))
    return DataSource(name, hasher.hexdigest(), splits, unusable, names)


def data_source(
    data: str, reader: Reader[R], layout: str = "auto", columns: Columns = (), digest: str = ""
) -> DataSource[R]:
    """The source of `data`, whose content must have `digest` if one is given."""
    if digest:
        return reload(data, reader, layout, columns, digest)
    return load(data, reader, layout, columns)


@lru_cache(maxsize=16)
def reload(
    data: str, reader: Reader[R], layout: str, columns: Columns, digest: str
) -> DataSource[R]:
    """The source with `digest`, as from `load`; a process reads the file at most once."""
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
    # `load` for known content: `digest` is that of the file, empty for an id or folder. `stamp`
    # distinguishes versions of a folder.
    records = _read_file(Path(data)) if digest else published_rows(data)
    parsed = tuple(reader(data, records, layout, dict(columns)))
    unusable = tuple(row for row in parsed if isinstance(row, Unusable))
    rows = tuple(row for row in parsed if not isinstance(row, Unusable))
    if not rows:
        if unusable:
            raise unusable_rows(data, unusable, len(unusable))
        raise DataError(f"{data}: no rows; expected at least one problem.")
    if not digest:
        content = repr(rows).encode("utf-8", "surrogatepass")
        digest = hashlib.blake2b(content, digest_size=16).hexdigest()
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
    """Make the error that lists rows, one per line; a single row stays on the first line."""
    reasons = [row.reason for row in sorted(unusable, key=lambda row: row.line)]
    if len(reasons) == 1:
        return DataError(f"{reasons[0]} {remedy}".rstrip())
    listed = "".join(f"\n  {reason}" for reason in reasons)
    head = f"{data}: {len(reasons)} of {total} rows cannot be used. {remedy}".rstrip()
    return DataError(f"{head}{listed}")


def read_columns(value: object) -> Columns:
    """Read columns from an option: a mapping, pairs, or a text such as `text:ask,tests:checks`."""
    pairs: object = value
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
        "columns: expected column names by key of the layout, as "
        f"{{'text': 'ask', 'tests': 'checks'}} or 'text:ask,tests:checks', got {value!r:.80}."
    )


def _read_file(path: Path) -> Records:
    suffix = Path(path.stem if path.suffix == ".gz" else path).suffix.lower()
    if suffix == ".parquet" and path.suffix != ".gz":
        return _read_parquet(path)
    if suffix in SEPARATORS:
        return table_records(str(path), _content(path), SEPARATORS[suffix])
    return _read_json(path)


def _content(path: Path) -> bytes:
    # The bytes of a file, decompressed if it is gzipped.
    if path.suffix != ".gz":
        return path.read_bytes()
    try:
        return gzip.decompress(path.read_bytes())
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{path}: not a readable gzip file ({error}).") from error


def _read_json(path: Path) -> Iterator[NumberedRecord]:
    # The objects of a file, one per line, or the items of its only array. Other lines are
    # `Unusable`.
    content = _content(path)
    if content.lstrip(b"\xef\xbb\xbf \t\r\n").startswith(b"["):
        try:
            yield from enumerate(json.loads(content.decode("utf-8-sig")), start=1)
        except (ValueError, RecursionError) as error:
            raise DataError(
                f"{path}: starts like a JSON array, but is not valid ({error})."
            ) from error
        return
    # Lines end only at b"\n": str.splitlines would also split at U+2028 inside a string.
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
                    f"{path}, line {line}: not a JSON object ({error}). Other formats need the "
                    "suffix .csv, .tsv or .parquet.",
                ),
            )


def _read_parquet(path: Path) -> Iterator[NumberedRecord]:
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
    """Raise `UsageError` unless `layout` is in `layouts` and its `keys` contain all `columns`."""
    if layout not in layouts:
        raise unknown("layout", layout, layouts)
    keys_known = list(keys)
    for key in columns:
        if key not in keys_known:
            raise unknown("column key", key, keys_known)


def find_layout(
    where: str,
    record: DataRecord,
    layout: str,
    layouts: Mapping[str, Names],
    columns: Mapping[str, str],
    fits: Callable[[str, Names], bool],
) -> tuple[str, Names]:
    """The layout, told by the first record where it is `auto`, and the names of its columns."""
    renamed = {key: (name,) for key, name in columns.items()}
    for name in layouts if layout == "auto" else (layout,):
        names = {**layouts[name], **renamed}
        if layout != "auto" or fits(name, names):
            return name, names
    expected = "; ".join(
        f"{name}: " + ", ".join(column for group in groups.values() for column in group)
        for name, groups in layouts.items()
    )
    needed = [*next(iter(layouts.values()))][:2]
    assignments = ",".join(f"{key}:COLUMN" for key in needed)
    mapping = ", ".join(f"{key!r}: ..." for key in needed)
    raise DataError(
        f"{where}: no known layout has the columns {sorted(record)}. Expected {expected}; or name "
        f"them with --options columns={assignments} (in Python columns={{{mapping}}})."
    )


def listed(value: object) -> Any:
    """`value`, or the list of texts that it has as JSON, for cells of CSV files."""
    if isinstance(value, str) and value.lstrip().startswith("["):
        with contextlib.suppress(ValueError, RecursionError):
            items = json.loads(value)
            if all(isinstance(item, str) for item in items):
                return items
    return value


def objects(data: str, records: Records) -> Iterator[tuple[int, str, DataRecord]]:
    """Line number, location for messages, and record, for records that must be mappings."""
    for line, record in records:
        where = f"{data}, line {line}"
        if isinstance(record, Unusable):
            raise DataError(record.reason)
        if not isinstance(record, dict):
            got = type(record).__name__
            raise DataError(f"{where}: expected an object with columns, got {got}.")
        yield line, where, record


def first(record: Mapping[str, object], names: Iterable[str]) -> Any:
    """The first of the columns `names` that `record` has, or None."""
    for name in names:
        value: object = record
        for key in [name] if name in record else name.split("."):
            value = value.get(key) if isinstance(value, Mapping) else None
        if value is not None:
            return value
    return None


def text_of(value: object) -> str | None:
    """A string column, a number as text, or the last user message of a chat; None otherwise."""
    if isinstance(value, str):
        return value
    if isinstance(value, int | float) and not isinstance(value, bool):
        return str(value)
    if isinstance(value, list):
        user_messages = [m for m in value if isinstance(m, Mapping) and m.get("role") == "user"]
        content = user_messages[-1].get("content") if user_messages else None
        return content if isinstance(content, str) else None
    return None


class NumberedRow(HasText, Protocol):
    """A row with a line number."""

    @property
    def line(self) -> int:
        """The row's line in the file, from 1."""
        ...


N = TypeVar("N", bound=NumberedRow)


_TEXTS = (str, str | None)
"""Types of options that are texts."""


@dataclass(frozen=True, kw_only=True)
class DataTask(Task, Generic[N]):
    """A task on a file or a generator.

    Immutable and cheap to pickle: a task on a file is pickled as path and content digest, and
    unpickling reads the file again.
    """

    drawn_by: ClassVar[tuple[str, ...]] = ()
    """Options of the generator, which files do not have."""
    of_file: ClassVar[tuple[str, ...]] = ("layout", "columns", "digest")
    """Options that describe a file."""
    most_draws: ClassVar[int] = 10_000
    """Draws for one problem of a split; if all fail, the options leave too few problems."""

    data: str | None = None
    """A file, folder or Hugging Face id, as `org/name:config@split#commit`; None: generated."""
    seed: int = 0
    """Seed of the generator. For files it is only part of the problems' ids."""
    digest: str = field(default="", repr=False)
    """Expected digest of the content of `data`; default: computed when the task is made."""

    @abstractmethod
    def _source(self) -> DataSource[N]:
        """The rows of `data`."""

    @abstractmethod
    def _of_row(self, row: N, index: int, split: str, where: RowPlace) -> Problem:
        """The problem of a row; `where` is part of its `meta`."""

    @abstractmethod
    def _draw_key(self, index: int) -> tuple[int | str, ...]:
        """Options that determine the generated problem `index`: part of its key."""

    @abstractmethod
    def _draw(self, rng: random.Random, index: int, split: str, number: int) -> Problem | None:
        """Draw `number` (from 0) of problem `index`; None if it failed or is not in `split`."""

    def _rng(
        self, drawn: tuple[int | str, ...], index: int, split: str, number: int
    ) -> random.Random:
        return key_rng("task", self.name, *drawn, split, self.seed, index, number)

    def _generate(self, index: int, split: str) -> Problem:
        # Draw until a problem belongs to `split` by its hash; it depends only on its key.
        drawn = self._draw_key(index)
        for number in range(self.most_draws):
            problem = self._draw(self._rng(drawn, index, split, number), index, split, number)
            if problem is not None:
                return problem
        options = ", ".join(f"{name}={getattr(self, name)!r}" for name in self.drawn_by)
        raise UsageError(
            f"{self.name}: no problem for split {split!r} in {self.most_draws} draws with "
            f"{options}: choose options with more problems."
        )

    def grade(self, problem: Problem, answer: str | None) -> GradeResult:
        """Grade one answer, in tasks that do not grade batches faster."""
        raise NotImplementedError(f"{type(self).__name__} must define grade() or grade_batch()")

    def grade_batch(
        self, problems: Sequence[Problem], answers: Sequence[str | None]
    ) -> list[GradeResult]:
        return [self.grade(*pair) for pair in zip(problems, answers, strict=True)]

    def classes(self, problem: Problem, answers: Sequence[str | None]) -> tuple[int, ...]:
        return number_by_first(answers)

    def __post_init__(self) -> None:
        if hasattr(self, "columns"):
            object.__setattr__(self, "columns", read_columns(self.columns))
        plain_integers(self)
        if isinstance(self.data, os.PathLike):
            object.__setattr__(self, "data", os.fspath(self.data))
        for name, kind in declared_types(type(self)).items():
            if kind in _TEXTS:
                check_value(f"`{name}`", getattr(self, name), kind)
        check_seed(self.seed)
        check_sandbox(self.sandbox)
        names = self.drawn_by if self.data is not None else self.of_file
        for name, default in self._defaults(names).items():
            if getattr(self, name) != default:
                given = f"{name}={getattr(self, name)!r}"
                raise UsageError(
                    f"{given} describes a file: give data as well."
                    if self.data is None
                    else f"{given} is for generated problems and data={self.data!r} for a file: "
                    "give only one of the two."
                )

    def _defaults(self, names: Iterable[str]) -> dict[str, object]:
        options = {option.name: option for option in fields(self)}
        return {name: options[name].default for name in names if name in options}

    def on(self, data: str) -> Self:
        """The task on the problems of another file, read by its own layout and columns."""
        described = self._defaults((*self.drawn_by, *self.of_file))
        return replace(self, data=data, **cast(dict[str, Any], described))

    def size(self, split: str) -> int | None:
        """Number of rows of the file in `split`; None for generated problems."""
        check_split(split)
        return None if self.data is None else len(self._source().splits[split])

    def problem(self, index: int, split: str = "train") -> Problem:
        """Problem `index` of `split`; for a file, the row at that position of the split."""
        size = self.check_index(index, split)
        if size is None:
            return self._generate(index, split)
        source = self._source()
        row = source.splits[split][index]
        name = source.names.get(split, source.name)
        return self._of_row(row, index, split, {"source": name, "row": row.line})
