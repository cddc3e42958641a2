"""Folders for files that a continued run replaces: repeated steps and damaged files."""

from __future__ import annotations

import os
from pathlib import Path

from flowzoo.files import write_synced, writing

ASIDE = "aside"


class Aside:
    """A new folder below `aside/` of a run, made for its first file."""

    def __init__(self, root: Path) -> None:
        """Store the root of the run."""
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
