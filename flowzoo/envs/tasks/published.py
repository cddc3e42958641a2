"""Data sets of the hub, and folders in the layout of the hub: their rows, one by one.

What is meant is one line: `PLACE[:CONFIG][@SPLIT[FROM:TO]][#REVISION]`, where PLACE is an id
`org/name` or a folder here. `datasets` finds the files in both (by the README's `configs`, or by
names such as `data/train-00000-of-00002.parquet`); it runs no code of a data set.

A whole split is downloaded once and kept in the cache of `datasets`. Of `SPLIT[FROM:TO]` only
those rows are read, streamed, and nothing is kept. Folders are always streamed.
"""

from __future__ import annotations

import hashlib
import logging
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from flowzoo.errors import DataError, FlowzooError, UsageError, missing_extra

_log = logging.getLogger(__name__)

_PARTS = re.compile(
    r"(?P<place>.+?)(?::(?P<config>[\w.-]+))?"
    r"(?:@(?P<split>[\w.-]+)(?:\[(?P<first>\d*):(?P<stop>\d*)\])?)?(?:#(?P<revision>[\w./-]+))?",
    re.ASCII,
)
_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*", re.ASCII)
_COMMIT = re.compile(r"[0-9a-f]{40}")
_FILE_ENDINGS = (".jsonl", ".json", ".parquet", ".csv", ".tsv", ".txt", ".gz")


@dataclass(frozen=True, slots=True)
class Published:
    """Which rows of which data set."""

    place: str
    """An id of the hub, or the path of a folder."""
    config: str | None = None
    split: str | None = None
    first: int = 0
    """Rows of the split that are left out at its beginning."""
    stop: int | None = None
    """The row before which it ends; None: all, from a copy in the cache."""
    revision: str | None = None
    """Commit, tag or branch of the hub."""

    @property
    def folder(self) -> Path | None:
        """The folder, if `place` is one."""
        return Path(self.place) if os.path.isdir(self.place) else None

    @property
    def stamp(self) -> str:
        """Changes when a file of the folder does; empty for an id."""
        if self.folder is None:
            return ""
        found = hashlib.blake2b(digest_size=16)
        for path in sorted(self.folder.rglob("*")):
            if path.is_file():
                status = path.stat()
                found.update(repr((str(path), status.st_size, status.st_mtime_ns)).encode())
        return found.hexdigest()


def read_published(data: str) -> Published:
    """What `data` names; asks nobody.

    Raises:
        UsageError: neither an id nor a folder, or a folder with a revision.
    """
    if os.path.isdir(data):
        return Published(data)
    parts = _PARTS.fullmatch(data)
    is_folder = parts is not None and os.path.isdir(parts["place"])
    named = parts is not None and _ID.fullmatch(parts["place"])
    if parts is None or not (is_folder or named) or _ends_like_a_file(parts["place"], is_folder):
        raise UsageError(
            f"data {data!r}: no such file or folder, and not a dataset id either. Expected the "
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
        raise UsageError(f"data {data!r}: no row is from {first} on and before {stop}.")
    return Published(
        parts["place"], parts["config"], parts["split"], first, stop, parts["revision"]
    )


def _ends_like_a_file(place: str, is_folder: bool) -> bool:
    return not is_folder and place.lower().endswith(_FILE_ENDINGS)


def published_rows(data: str) -> Iterator[tuple[int, Any]]:
    """Rows of a data set with their numbers in the split, from 1.

    Raises:
        UsageError: `data` is neither an id nor a folder; there are several splits and none was
            chosen.
        DataError: it cannot be loaded, or only with another revision than the one wanted.
        MissingExtraError: `datasets` is not installed.
    """
    wanted = read_published(data)
    try:
        import httpx  # `datasets` asks the hub with it, and lets some of its errors through
        from datasets.exceptions import DatasetsError
    except ImportError as error:
        raise missing_extra("datasets", "data", f"loading the dataset {data!r}") from error
    try:
        loaded = _load(data, wanted)
        rows = islice(loaded, wanted.first, wanted.stop)
        yield from enumerate(rows, start=wanted.first + 1)
    except FlowzooError:
        raise
    except (ValueError, OSError, httpx.HTTPError, DatasetsError) as error:
        said = str(error).rstrip(".")
        remedy = _remedy(wanted) if isinstance(error, OSError | httpx.HTTPError) else ""
        raise DataError(f"dataset {data!r} could not be loaded: {said}.{remedy}") from error


def _load(data: str, wanted: Published) -> Any:
    """The split, from the cache or as a stream."""
    import datasets

    builder = datasets.load_dataset_builder(wanted.place, wanted.config, revision=wanted.revision)
    if wanted.folder is None:
        _check_commit(data, wanted, builder)
    if wanted.folder is None and wanted.stop is None:
        builder.download_and_prepare()
        loaded: Any = builder.as_dataset(split=wanted.split)
    else:
        loaded = builder.as_streaming_dataset(split=wanted.split)
    if not isinstance(loaded, Mapping):
        return loaded
    if len(loaded) == 1:
        return next(iter(loaded.values()))
    place = wanted.place + (f":{wanted.config}" if wanted.config else "")
    names = ", ".join(f"{place}@{name}" for name in loaded)
    raise UsageError(f"dataset {data!r} has several splits; choose one of: {names}.")


def _check_commit(data: str, wanted: Published, builder: Any) -> None:
    """Refuse another commit than the one wanted; say which one it is where none was.

    Where the hub does not answer, `datasets` takes what its cache has, whatever was asked for.
    """
    from datasets.packaged_modules.cache.cache import Cache

    commit, revision = builder.hash, wanted.revision
    if revision is None:
        _log.warning("data %s is commit %s; %s#%s pins it", data, commit, data, commit)
    elif revision != commit and (isinstance(builder, Cache) or _COMMIT.fullmatch(revision)):
        raise DataError(
            f"dataset {data!r}: the hub did not answer, and the cache has commit {commit}, which "
            f"need not be {revision}. Load it once where the hub can be reached, or write "
            f"#{commit} to take what is here."
        )


def _remedy(wanted: Published) -> str:
    """What to do where the hub cannot be reached."""
    if wanted.folder is not None:
        return ""
    return (
        " If this machine cannot reach the hub: on one that can, run `hf download --repo-type "
        f"dataset {wanted.place} --local-dir FOLDER`, bring the folder here and name it instead."
    )
