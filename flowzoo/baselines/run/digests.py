"""Size and SHA-256 of every file of transcripts, so that whoever reads one knows it for whole."""

from __future__ import annotations

import hashlib
import json
import logging
import os
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

from flowzoo.baselines.run.aside import Aside
from flowzoo.baselines.run.ledger import Ledger, Mark, content
from flowzoo.errors import DataError
from flowzoo.files import file_digest

DIGESTS = "digests.jsonl"

logger = logging.getLogger("flowzoo")


class TranscriptDigests:
    """The digests of a run, as it writes them."""

    def __init__(self, root: Path, checkpoints: Path) -> None:
        """Of the run in `root`; a copy is in `checkpoints`."""
        self._root = root
        self._ledger = Ledger(root / DIGESTS, checkpoints / DIGESTS)

    def add(self, path: Path) -> None:
        """Note a file that was written.

        Raises:
            SaveError: its digest cannot be.
        """
        name = str(path.relative_to(self._root))
        self._ledger.append({"file": name, "sha256": file_digest(path)})

    def mark(self) -> Mark:
        """See `Ledger.mark`."""
        return self._ledger.mark()

    def begin(self, mark: Mark | None, aside: Aside) -> None:
        """Make the digests those of `mark`, and tell of transcripts that differ.

        These stay where they are: nothing that is learnt depends on them.

        Raises:
            UsageError: a file cannot be read now.
            SaveError: a file cannot be written.
        """
        try:
            self._ledger.keep(mark, aside, "transcripts are not compared with theirs any more")
        except DataError as error:
            logger.warning("%s", error)
            self._ledger.replace(b"", *content(self._root / DIGESTS), aside)
        known = transcript_digests(self._root)
        damaged = [name for name in known if damage_of(self._root / name, known[name])]
        if damaged:
            more = f" and {len(damaged) - 3} more" if len(damaged) > 3 else ""
            logger.warning(
                "%s%s in %s: not what was written, or gone; the run goes on without, and a report "
                "leaves them out: put them back from a copy",
                ", ".join(damaged[:3]), more, self._root,
            )  # fmt: skip


def transcript_digests(root: Path) -> dict[str, str]:
    """File of transcripts -> SHA-256, of a run.

    A last line that cannot be read is dropped: the process died while writing it.

    Raises:
        DataError: another line cannot be read.
    """
    data, damage = content(root / DIGESTS)
    lines = data.splitlines()
    found: dict[str, str] = {}
    for number, line in enumerate(lines, start=1):
        try:
            row = json.loads(line)
            found[str(row["file"])] = str(row["sha256"])
        except (ValueError, TypeError, KeyError) as error:
            if number < len(lines):
                damage = f"{root / DIGESTS}, line {number}: not a digest ({error})"
    if damage:
        raise DataError(f"{damage}: repeat the run's own command, which mends it")
    return found


def damage_of(path: Path, digest: str | None) -> str:
    """Why a file is not the one of that digest; "": it is, or there is no digest to compare."""
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
    """Refuse files of transcripts in the run's folder `root` that are not what was written.

    Raises:
        DataError: as said, with what to do.
    """
    known = transcript_digests(root)
    for path in files:
        damage = damage_of(path, known.get(str(path.relative_to(root))))
        if damage:
            raise DataError(f"{damage}. Put it back from a copy, or move it away to do without it")


def whole_transcripts(root: Path, kind: str) -> dict[int, Path]:
    """Files of transcripts of a kind in a run's folder, by step, which are what was written.

    Others are left out with a warning.

    Raises:
        DataError: the digests cannot be read.
    """
    known, found = transcript_digests(root), dict[int, Path]()
    for path in sorted((root / "transcripts").glob(f"{kind}-*.jsonl")):
        stat = path.lstat()
        digest = known.get(str(path.relative_to(root)))
        if _is_whole(path, digest, stat.st_mtime_ns, stat.st_size):
            found[int(path.stem.rsplit("-", 1)[1])] = path
    return found


@lru_cache(maxsize=4096)  # a report asks for the same files many times
def _is_whole(path: Path, digest: str | None, changed_ns: int, size: int) -> bool:
    """Whether the file, changed then and of that size, is the one of that digest; said once."""
    damage = damage_of(path, digest)
    if damage:
        logger.warning("%s; it is left out", damage)
    return not damage
