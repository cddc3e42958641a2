"""SHA-256 of every file of transcripts, by which readers detect damage."""

from __future__ import annotations

import hashlib
import json
import logging
import os
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

from flowzoo.baselines.run.ledger import Aside, Ledger, Mark, content
from flowzoo.errors import DataError
from flowzoo.files import file_digest

DIGESTS = "digests.jsonl"

logger = logging.getLogger("flowzoo")


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
