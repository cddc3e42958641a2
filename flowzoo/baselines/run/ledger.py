"""Files of a run that only grow, with a copy to repair them from; digests of its transcripts."""

import hashlib
import json
import logging
import os
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from flowzoo.errors import DataError
from flowzoo.files import file_digest, reading, replace_text, write_synced, writing

ASIDE = "aside"
DIGESTS = "digests.jsonl"
"""SHA-256 of every file of transcripts, by which readers detect damage."""

logger = logging.getLogger("flowzoo")


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


class TranscriptDigests:
    """Digests of a run that is writing transcripts."""

    def __init__(self, root: Path, checkpoints: Path) -> None:
        self._root = root
        self._ledger = Ledger(root / DIGESTS, checkpoints / DIGESTS)

    def add(self, path: Path) -> None:
        """Record a file that was written."""
        name = str(path.relative_to(self._root))
        self._ledger.append({"file": name, "sha256": file_digest(path)})

    def mark(self) -> Mark:
        """See `Ledger.mark`."""
        return self._ledger.mark()

    def begin(self, mark: Mark | None, aside: Aside) -> None:
        """Rewind the digests to `mark`, and warn of transcripts that differ."""
        try:
            self._ledger.keep(mark, aside, "transcripts are not compared with theirs any more")
        except DataError as error:
            logger.warning("%s", error)
            self._ledger.replace(b"", *content(self._root / DIGESTS), aside)
        # Damaged transcripts stay in place: training does not depend on them.
        digests = transcript_digests(self._root)
        damaged = [name for name in digests if damage_of(self._root / name, digests[name])]
        if damaged:
            more = f" and {len(damaged) - 3} more" if len(damaged) > 3 else ""
            logger.warning(
                "%s%s in %s: damaged or missing; the run continues without them, and a report "
                "leaves them out: restore them from a copy",
                ", ".join(damaged[:3]), more, self._root,
            )  # fmt: skip


def transcript_digests(root: Path) -> dict[str, str]:
    """Read the SHA-256 of a run's files of transcripts, by path."""
    data, damage = content(root / DIGESTS)
    lines = data.splitlines()
    digests: dict[str, str] = {}
    for number, line in enumerate(lines, start=1):
        try:
            row = json.loads(line)
            digests[str(row["file"])] = str(row["sha256"])
        except (ValueError, TypeError, KeyError) as error:
            # The process may have died while writing the last line.
            if number < len(lines):
                damage = f"{root / DIGESTS}, line {number}: not a digest ({error})"
    if damage:
        raise DataError(f"{damage}: repeat the run's command, which repairs it")
    return digests


def damage_of(path: Path, digest: str | None) -> str:
    """Describe the damage of a file; empty if it has the digest, or there is none to compare."""
    if digest is None:
        return ""
    if not os.path.lexists(path):
        return f"{path} is gone"
    data, damage = content(path)
    if damage:
        return damage
    same = hashlib.sha256(data).hexdigest() == digest
    return "" if same else f"{path} is not what was written: its SHA-256 differs"


def check_transcripts(root: Path, files: Sequence[Path]) -> None:
    """Refuse damaged files of transcripts in the run's folder `root`."""
    digests = transcript_digests(root)
    for path in files:
        damage = damage_of(path, digests.get(str(path.relative_to(root))))
        if damage:
            raise DataError(f"{damage}. Put it back from a copy, or move it away to do without it")


def whole_transcripts(root: Path, kind: str) -> dict[int, Path]:
    """List the intact files of transcripts of a kind, by step; damaged ones raise a warning."""
    digests, files = transcript_digests(root), dict[int, Path]()
    for path in sorted((root / "transcripts").glob(f"{kind}-*.jsonl")):
        stat = path.lstat()
        digest = digests.get(str(path.relative_to(root)))
        if _is_whole(path, digest, stat.st_mtime_ns, stat.st_size):
            files[int(path.stem.rsplit("-", 1)[1])] = path
    return files


@lru_cache(maxsize=4096)  # a report asks for the same files many times
def _is_whole(path: Path, digest: str | None, changed_ns: int, size: int) -> bool:
    """True if the file has the digest; its time of change and size are part of the cache's key."""
    damage = damage_of(path, digest)
    if damage:
        logger.warning("%s; it is left out", damage)
    return not damage
