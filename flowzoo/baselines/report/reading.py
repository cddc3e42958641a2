"""Finds the runs that a report is about."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from flowzoo.baselines.run.reading import RunData, read_run
from flowzoo.errors import UsageError

DEEPEST = 3
"""Levels of folders below a given one in which runs are looked for."""


def find_runs(paths: Iterable[Path]) -> list[Path]:
    """Run directories at or below `paths`, in order of name below each.

    Raises:
        UsageError: a path is no folder, or holds no run.
    """
    found: dict[Path, None] = {}
    for path in paths:
        if not path.is_dir():
            raise UsageError(f"expected the directory of a run or of a matrix, got {path}")
        below = list(_below(path, DEEPEST))
        if not below:
            raise UsageError(
                f"no run was found in {path}: a run directory has a run.json, which "
                "`flowzoo train` and `flowzoo matrix` write"
            )
        for folder in below:
            found.setdefault(folder)
    return list(found)


def read_runs(paths: Iterable[Path]) -> list[RunData]:
    """All runs at or below `paths`, named by what tells their folders apart."""
    folders = find_runs(paths)
    absolute = [folder.resolve() for folder in folders]
    common = Path(os.path.commonpath([folder.parent for folder in absolute]))
    return [
        read_run(folder, full.relative_to(common).as_posix())
        for folder, full in zip(folders, absolute, strict=True)
    ]


def _below(folder: Path, levels: int) -> Iterator[Path]:
    """Run directories in `folder`, itself included; a run holds no other."""
    if (folder / "run.json").is_file():
        yield folder
    elif levels:
        for child in sorted(one for one in folder.iterdir() if one.is_dir()):
            yield from _below(child, levels - 1)
