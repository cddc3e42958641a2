"""Finding the runs of a report."""

import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from flowzoo.agents.evaluation.summary import is_evaluation, refuse_evaluation
from flowzoo.baselines.run.reading import RunData, read_run
from flowzoo.errors import UsageError

MAX_DEPTH = 3  # levels of folders below a given one that are searched for runs


def find_runs(paths: Iterable[Path]) -> list[Path]:
    """Run directories at or below `paths`, sorted below each; evaluations are left out."""
    folders: dict[Path, None] = {}
    for path in paths:
        if not path.is_dir():
            there = "is a file" if path.exists() else "does not exist"
            raise UsageError(
                f"expected the directory of a run, a matrix or an evaluation, got {path}, which "
                f"{there}"
            )
        refuse_evaluation(path, f"`flowzoo report {path}` alone writes its page")
        below = list(_find_runs(path, MAX_DEPTH))
        runs = [folder for folder in below if not is_evaluation(folder)]
        if not runs:
            other = f" (only evaluations, {len(below)})" if below else ""
            raise UsageError(
                f"no run was found in {path}{other}: a run directory has a run.json, which "
                "`flowzoo train` and `flowzoo matrix` write"
            )
        for folder in runs:
            folders.setdefault(folder)
    return list(folders)


def find_evaluations(paths: Iterable[Path]) -> list[Path]:
    """Folders of evaluations below `paths`, which a report of runs leaves out."""
    below = (folder for path in paths if path.is_dir() for folder in _find_runs(path, MAX_DEPTH))
    return [folder for folder in dict.fromkeys(below) if is_evaluation(folder)]


def read_runs(paths: Iterable[Path]) -> list[RunData]:
    """All runs at or below `paths`, named by their folders relative to the common one."""
    folders = find_runs(paths)
    absolute = [folder.resolve() for folder in folders]
    common = Path(os.path.commonpath([folder.parent for folder in absolute]))
    return [
        read_run(folder, full.relative_to(common).as_posix())
        for folder, full in zip(folders, absolute, strict=True)
    ]


def _find_runs(folder: Path, levels: int) -> Iterator[Path]:
    # A run holds no other.
    if (folder / "run.json").is_file():
        yield folder
    elif levels:
        for child in sorted(path for path in folder.iterdir() if path.is_dir()):
            yield from _find_runs(child, levels - 1)
