"""Files of a run that only grow, line by line, with a second copy to mend them from.

A checkpoint holds the length and the SHA-256 of each (`Mark`) and no copy of its own, so that a
checkpoint does not grow with the run. The copy, in the folder of the checkpoints, is brought up to
the first before each checkpoint is written; whichever of the two is as the mark says mends the
other.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from flowzoo.baselines.run.aside import Aside
from flowzoo.errors import DataError
from flowzoo.files import reading, replace_text, writing

logger = logging.getLogger("flowzoo")


class Mark(NamedTuple):
    """A file up to some line."""

    size: int
    """Bytes."""
    sha256: str

    def cut(self, data: bytes) -> bytes | None:
        """The part of `data` that it names; None: `data` does not begin with it."""
        kept = data[: self.size]
        same = len(kept) == self.size and hashlib.sha256(kept).hexdigest() == self.sha256
        return kept if same else None


class Ledger:
    """One such file."""

    def __init__(self, path: Path, copy: Path) -> None:
        """The file at `path`, with a second one at `copy`."""
        self.path, self._copy = path, copy
        self._hash, self._size, self._copied = hashlib.sha256(), 0, 0

    def append(self, row: Mapping[str, Any]) -> None:
        """Add a line and force it to disk.

        Raises:
            SaveError: it cannot be written.
        """
        line = (json.dumps(row) + "\n").encode("utf-8")
        _append(self.path, line)
        self._hash.update(line)
        self._size += len(line)

    def mark(self) -> Mark:
        """Bring the copy up to the file; where that stands now.

        Raises:
            SaveError: the copy cannot be written.
        """
        if self._size > self._copied:
            with reading(self.path), self.path.open("rb") as file:
                file.seek(self._copied)
                _append(self._copy, file.read(self._size - self._copied))
            self._copied = self._size
        return Mark(self._size, self._hash.hexdigest())

    def keep(self, mark: Mark | None, aside: Aside, remedy: str) -> bytes:
        """Make file and copy those of `mark`, and return what is in them.

        Lines after it, and what is damaged, go to `aside`.

        Args:
            mark: of the checkpoint that the run goes on from; None: no line stays.
            aside: of the run.
            remedy: said where neither file is as the mark says.

        Raises:
            DataError: as said.
            UsageError: a file cannot be read now.
            SaveError: a file cannot be written.
        """
        mark = mark or Mark(0, hashlib.sha256().hexdigest())
        data, damage = content(self.path)
        second, wrong = content(self._copy)
        kept, copied = (None if said else mark.cut(text) for text, said in
                        ((data, damage), (second, wrong)))  # fmt: skip
        if kept is None and copied is None:
            damage = damage or "it is not what was measured"
            raise DataError(f"{self.path} is damaged ({damage}), and so is its copy: {remedy}")
        whole = kept if kept is not None else copied
        assert whole is not None
        if kept is None:
            damage = damage or difference(data, whole)
            if second[len(whole) :]:
                aside.keep(f"{self.path.name}.copy", second)
        elif copied is None and (self._copy.parent.is_dir() and mark.size):
            logger.warning("%s is damaged and written anew from %s", self._copy, self.path)
        self.replace(whole, data, damage, aside)
        return whole

    def replace(self, kept: bytes, data: bytes, damage: str, aside: Aside) -> None:
        """Make `kept` the content of both files, `data` being what the first had.

        `damage` says what is wrong with that; "": its further lines go to `aside`.

        Raises:
            SaveError: a file cannot be written.
        """
        if damage:
            if os.path.lexists(self.path):
                aside.take(self.path)
            logger.warning("%s is damaged (%s) and mended from the checkpoint", self.path, damage)
        elif data[len(kept) :]:
            aside.keep(self.path.name, data[len(kept) :])
        if damage or data != kept:
            _write(self.path, kept)
        if content(self._copy) != (kept, ""):
            if self._copy.is_dir():
                aside.take(self._copy)
            _write(self._copy, kept)
        self._hash, self._size, self._copied = hashlib.sha256(kept), len(kept), len(kept)


def content(path: Path) -> tuple[bytes, str]:
    """The bytes of a file (none, where there is none), and why it cannot be read."""
    try:
        with reading(path):
            return path.read_bytes() if os.path.lexists(path) else b"", ""
    except DataError as error:
        return b"", str(error)


def difference(data: bytes, kept: bytes) -> str:
    """How a file differs from the lines that were written."""
    lines, rows = data.splitlines(keepends=True), kept.splitlines(keepends=True)
    for number, row in enumerate(rows):
        if number == len(lines):
            return f"the rows of steps {number} to {len(rows) - 1} are missing"
        if lines[number] != row:
            return f"line {number + 1} is not what was measured"
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
