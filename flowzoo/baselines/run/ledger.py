"""Files of a run that only grow, line by line, with a copy to repair them from."""

from __future__ import annotations

import hashlib
import json
import logging
import os
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from flowzoo.errors import DataError
from flowzoo.files import reading, replace_text, write_synced, writing

logger = logging.getLogger("flowzoo")


ASIDE = "aside"


class Aside:
    """A new folder below `aside/` of a run, made for its first file."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self.folder: Path | None = None

    def take(self, path: Path) -> None:
        """Move a file or folder of the run into it, under the same name."""
        target = self._place() / path.relative_to(self._root)
        with writing(target):
            target.parent.mkdir(exist_ok=True)
            os.rename(path, target)

    def keep(self, name: str, data: bytes) -> None:
        """Write a copy into it."""
        target = self._place() / name
        with writing(target):
            write_synced(target, data)

    def _place(self) -> Path:
        if self.folder is None:
            with writing(self._root / ASIDE):
                (self._root / ASIDE).mkdir(exist_ok=True)
                numbers = [
                    int(p.name) for p in (self._root / ASIDE).iterdir() if p.name.isdecimal()
                ]
                folder = self._root / ASIDE / str(max(numbers, default=0) + 1)
                folder.mkdir()
            self.folder = folder
        return self.folder


# A checkpoint holds marks, not content, so that it does not grow with the run.
class Mark(NamedTuple):
    """Length and digest of a file, or of its part up to some line."""

    size: int
    """Bytes."""
    sha256: str

    def cut(self, data: bytes) -> bytes | None:
        """Return the marked part of `data`; None if `data` does not begin with it."""
        part = data[: self.size]
        same = len(part) == self.size and hashlib.sha256(part).hexdigest() == self.sha256
        return part if same else None


class Ledger:
    """A growing file and its copy."""

    def __init__(self, path: Path, copy: Path) -> None:
        self.path, self._copy = path, copy
        self._hash, self._size, self._copied = hashlib.sha256(), 0, 0

    def append(self, row: Mapping[str, object]) -> None:
        """Add a line and force it to disk."""
        line = (json.dumps(row) + "\n").encode("utf-8")
        _append(self.path, line)
        self._hash.update(line)
        self._size += len(line)

    def mark(self) -> Mark:
        """Update the copy, and return the mark of the file."""
        # The file or its copy, whichever matches a mark, repairs the other.
        if self._size > self._copied:
            with reading(self.path), self.path.open("rb") as file:
                file.seek(self._copied)
                _append(self._copy, file.read(self._size - self._copied))
            self._copied = self._size
        return Mark(self._size, self._hash.hexdigest())

    def keep(self, mark: Mark | None, aside: Aside, remedy: str) -> bytes:
        """Rewind file and copy to `mark`, and return their content; later lines go to `aside`.

        `remedy` ends the message if neither file matches the mark.
        """
        mark = mark or Mark(0, hashlib.sha256().hexdigest())
        data, damage = content(self.path)
        second, wrong = content(self._copy)
        original = None if damage else mark.cut(data)
        copied = None if wrong else mark.cut(second)
        if original is None and copied is None:
            damage = damage or "it does not match the checkpoint"
            raise DataError(f"{self.path} is damaged ({damage}), and so is its copy: {remedy}")
        whole = original if original is not None else copied
        assert whole is not None
        if original is None:
            damage = damage or difference(data, whole)
            if second[len(whole) :]:
                aside.keep(f"{self.path.name}.copy", second)
        elif copied is None and (self._copy.parent.is_dir() and mark.size):
            logger.warning("%s is damaged and was written again from %s", self._copy, self.path)
        self.replace(whole, data, damage, aside)
        return whole

    def replace(self, rows: bytes, data: bytes, damage: str, aside: Aside) -> None:
        """Write `rows` to both files; `data` is the content of the first, `damage` its damage."""
        if damage:
            if os.path.lexists(self.path):
                aside.take(self.path)
            logger.warning("%s is damaged (%s) and was repaired from its copy", self.path, damage)
        elif data[len(rows) :]:
            aside.keep(self.path.name, data[len(rows) :])
        if damage or data != rows:
            _write(self.path, rows)
        # The file first: if the process dies in between, the copy still matches the mark.
        if content(self._copy) != (rows, ""):
            if self._copy.is_dir():
                aside.take(self._copy)
            _write(self._copy, rows)
        self._hash, self._size, self._copied = hashlib.sha256(rows), len(rows), len(rows)


def content(path: Path) -> tuple[bytes, str]:
    """Read a file (empty if it is missing), and return the reason if it cannot be read."""
    try:
        with reading(path):
            return path.read_bytes() if os.path.lexists(path) else b"", ""
    except DataError as error:
        return b"", str(error)


def difference(data: bytes, written: bytes) -> str:
    """Describe the difference between a file and the rows that were written."""
    lines, rows = data.splitlines(keepends=True), written.splitlines(keepends=True)
    for number, row in enumerate(rows):
        if number == len(lines):
            return f"the rows of steps {number} to {len(rows) - 1} are missing"
        if lines[number] != row:
            return f"line {number + 1} is not the row that was written"
    return "it has other line ends"


def _write(path: Path, data: bytes) -> None:
    with writing(path):
        path.parent.mkdir(exist_ok=True)
        replace_text(path, data.decode("utf-8"))


def _append(path: Path, data: bytes) -> None:
    with writing(path):
        path.parent.mkdir(exist_ok=True)
        with path.open("ab") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
