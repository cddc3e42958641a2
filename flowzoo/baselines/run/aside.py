"""Where a run that goes on keeps what is done again, and what is damaged."""

from __future__ import annotations

import os
from pathlib import Path

from flowzoo.files import write_synced, writing

ASIDE = "aside"


class Aside:
    """A new folder below `aside/` of a run, made when the first thing comes into it."""

    def __init__(self, root: Path) -> None:
        """Of the run in `root`."""
        self._root = root
        self.folder: Path | None = None

    def take(self, path: Path) -> None:
        """Move a file or folder of the run there, under the same name."""
        target = self._place() / path.relative_to(self._root)
        with writing(target):
            target.parent.mkdir(exist_ok=True)
            os.rename(path, target)

    def keep(self, name: str, data: bytes) -> None:
        """Write a copy there."""
        target = self._place() / name
        with writing(target):
            write_synced(target, data)

    def _place(self) -> Path:
        if self.folder is None:
            with writing(self._root / ASIDE):
                (self._root / ASIDE).mkdir(exist_ok=True)
                taken = [int(p.name) for p in (self._root / ASIDE).iterdir() if p.name.isdecimal()]
                folder = self._root / ASIDE / str(max(taken, default=0) + 1)
                folder.mkdir()
            self.folder = folder
        return self.folder
