"""Files that survive a crash: whole replacements, and JSON Lines whose last line may be torn.

A record that carries its own digest (`sealed`) tells a changed byte from what was written.
"""

import contextlib
import errno
import fcntl
import hashlib
import json
import os
import time
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import chain, count
from pathlib import Path
from typing import Any, TextIO, TypeVar

from flowzoo.errors import DataError, SaveError, UsageError
from flowzoo.waits import LOCKS

JsonRow = TypeVar("JsonRow")

_SEAL = "sha256"
_GONE = {errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.ELOOP, errno.EIO}
"""Errors that mean a file is gone. Others (permissions, too many open files) say nothing about its
content: it is intact once they are fixed."""

_BIG = 2**24
"""Bytes of a file whose digest is kept in the cache folder."""
_TICK_NS = 2_000_000_000
MOST_BYTES = 2**28
"""Most bytes of a file of JSON or TOML, and of a line of JSON Lines."""

_IN_THE_WAY = {errno.EISDIR, errno.ENOTDIR, errno.EEXIST}
"""Errors that mean something of another kind is at the path."""


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Turn errors of reading into a DataError (damaged or missing), or a UsageError (not now)."""
    try:
        yield
    except OSError as error:
        message = f"{path} cannot be read: {error.strerror}"
        if error.errno in _GONE:
            raise DataError(message) from error
        raise UsageError(f"{message}. Fix this, and repeat the command.") from error


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn errors of writing into a SaveError."""
    try:
        yield
    except OSError as error:
        what = "free space or fix the permissions"
        if error.errno in _IN_THE_WAY:
            what = "move away what is in its place"
        raise SaveError(
            f"{path} could not be written: {error.strerror or error}. What was written before is "
            f"whole: {what}, and repeat the command."
        ) from error


def lock_folder(folder: Path, activity: str) -> TextIO:
    """Lock a folder; `unlock_folder`, or the end of the process, unlocks it.

    Raises:
        UsageError: another process is `activity` in it.
    """
    with writing(folder / ".lock"):
        file = (folder / ".lock").open("a", encoding="utf-8")
    try:
        with LOCKS.wait(f"the file system of {folder}"):
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        file.close()
        # Some file systems have no locks, which is no other process.
        if error.errno not in (errno.EAGAIN, errno.EACCES):
            raise
        raise UsageError(
            f"another process is {activity} in {folder}: wait for it, end it, or choose another "
            "--out"
        ) from error
    return file


def unlock_folder(lock: TextIO, owner: int) -> None:
    """Unlock a folder that the process `owner` locked; in a fork of it, only close the file.

    A child between its fork and its program has the file too, so closing would leave it locked.
    """
    if not lock.closed and os.getpid() == owner:
        with contextlib.suppress(OSError):  # a file system without locks
            fcntl.flock(lock, fcntl.LOCK_UN)
    lock.close()


def check_lock(folder: Path, lock: TextIO) -> None:
    """Check that a folder is the one that was locked.

    Raises:
        SaveError: it was removed, or another one is in its place.
    """
    with contextlib.suppress(OSError):
        if os.path.samestat(os.fstat(lock.fileno()), os.stat(folder / ".lock")):
            return
    raise SaveError(
        f"{folder} was removed or exchanged while this process was writing in it, and nothing more "
        "is written: leave a run's folder in its place, and repeat the command with another --out"
    )


def replace_text(path: Path, text: str) -> None:
    """Write atomically: a reader sees the old file or the new one, after a loss of power too."""
    partial = path.with_name(f".{path.name}.partial")
    try:
        write_synced(partial, text.encode("utf-8"))
        os.replace(partial, path)
    except OSError:
        partial.unlink(missing_ok=True)  # a full disk gets its space back
        raise


def write_synced(path: Path, data: bytes) -> None:
    """Write a file and force it to disk."""
    with path.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def write_json(path: Path, value: Any) -> None:
    """Write `value` atomically, for people to read and diff."""
    replace_text(path, json.dumps(value, indent=1, sort_keys=True) + "\n")


def read_json(path: Path) -> Any:
    """Read a JSON file of at most `MOST_BYTES`."""
    data = _content(path)
    with _parsing(f"{path} is not JSON"):
        return json.loads(data)


def read_toml(path: Path) -> dict[str, Any]:
    """Read a TOML file of at most `MOST_BYTES`."""
    data = _content(path)
    with _parsing(f"{path} is not TOML"):
        return tomllib.loads(data.decode("utf-8"))


def _content(path: Path) -> bytes:
    with reading(path), path.open("rb") as file:
        data = file.read(MOST_BYTES + 1)  # its size would say nothing about a pipe or a device
    if len(data) > MOST_BYTES:
        raise DataError(f"{path} has more than {MOST_BYTES:,} bytes")
    return data


@contextmanager
def _parsing(fault: str) -> Iterator[None]:
    # Parsers call themselves for what is nested, to a depth that only Python bounds.
    try:
        yield
    except RecursionError:
        raise DataError(f"{fault}: it is nested too deeply") from None
    except (ValueError, TypeError, KeyError) as error:
        raise DataError(f"{fault}: {error}") from error


def sealed(record: Mapping[str, Any]) -> dict[str, Any]:
    """`record`, which must be JSON-able, with the SHA-256 of its content under `sha256`."""
    content = json.loads(json.dumps(record))  # as it will be read: keys are texts
    return {**content, _SEAL: _digest(content)}


def read_sealed(path: Path) -> dict[str, Any]:
    """The record in a file of JSON, without its digest; one without a digest is taken as it is."""
    record = read_json(path)
    if not isinstance(record, dict):
        raise DataError(f"{path} is not a JSON object")
    content = {name: value for name, value in record.items() if name != _SEAL}
    if _SEAL in record and record[_SEAL] != _digest(content):
        raise DataError(f"{path} is not what was written: its SHA-256 differs")
    return content


def file_digest(path: Path) -> str:
    """SHA-256 of a file."""
    with reading(path), path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def present_digest(path: Path) -> str:
    """SHA-256 of a file; a big one is read again only after it has changed."""
    state = path.stat()
    if state.st_size < _BIG:
        return file_digest(path)
    parts = (state.st_dev, state.st_ino, state.st_size, state.st_mtime_ns, state.st_ctime_ns)
    key = hashlib.sha256(repr((os.path.realpath(path), *parts)).encode()).hexdigest()
    record = cache_folder() / "digests" / key[:32]
    with contextlib.suppress(OSError):
        return record.read_text(encoding="ascii")
    digest = file_digest(path)
    # A file that was just written may change again within the same tick of the clock.
    if time.time_ns() - state.st_ctime_ns > _TICK_NS:
        with contextlib.suppress(OSError):  # a cache that cannot be written costs time only
            record.parent.mkdir(parents=True, exist_ok=True)
            replace_text(record, digest)
    return digest


def check_digests(folder: Path, digests: Mapping[str, str]) -> None:
    """Read files of `folder`, by their paths in it, and compare their SHA-256 with `digests`."""
    for name, digest in digests.items():
        if file_digest(folder / name) != digest:
            raise DataError(f"{folder} is damaged: {name} has another SHA-256 than written")


def read_rows(path: Path, read: Callable[[Any], JsonRow], what: str) -> list[JsonRow]:
    """`read` of every line of a JSON Lines file; none if there is no file.

    A last line that cannot be read is dropped: the process died while writing it.

    Raises:
        DataError: another line cannot be read; the message names it and says it is not `what`.
        UsageError: the file cannot be read now.
    """
    with reading(path):
        lines = path.read_bytes().splitlines() if os.path.lexists(path) else []
    rows: list[JsonRow] = []
    for number, line in enumerate(lines, start=1):
        try:
            if len(line) > MOST_BYTES:
                raise DataError(f"{path}, line {number} has more than {MOST_BYTES:,} bytes")
            with _parsing(f"{path}, line {number}: not {what}"):
                rows.append(read(json.loads(line)))
        except DataError:
            if number < len(lines):
                raise
    return rows


def cache_folder() -> Path:
    """Folder for what can be made again: `$FLOWZOO_CACHE`, else `flowzoo` in the user's cache."""
    if folder := os.environ.get("FLOWZOO_CACHE"):
        return Path(folder)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "flowzoo"


def free_path(path: Path) -> Path:
    """`path` if nothing is there, else the first free one of PATH.1, PATH.2, …"""
    numbered = (path.with_name(f"{path.name}.{number}") for number in count(1))
    return next(free for free in chain([path], numbered) if not os.path.lexists(free))


def is_vacant(path: Path) -> bool:
    """True if a new folder can be renamed to `path`: nothing is there, or an empty folder."""
    # Not over the working directory or a link, which the system refuses.
    if not os.path.lexists(path):
        return True
    empty = path.is_dir() and not path.is_symlink() and not any(path.iterdir())
    return empty and path.resolve() != Path.cwd()


def distinct_names(folders: Sequence[Path]) -> list[str]:
    """Names of folders: the last parts of their paths, as many as tell all of them apart."""
    paths = [folder.resolve().parts for folder in folders]
    counts = range(1, max(map(len, paths), default=0))
    parts = next((n for n in counts if len({path[-n:] for path in paths}) == len(paths)), 1)
    return ["/".join(path[-parts:]) for path in paths]


def _digest(record: Mapping[str, Any]) -> str:
    text = json.dumps(record, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode("ascii")).hexdigest()
