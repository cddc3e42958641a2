"""Finds runs and reads what they wrote."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from flowzoo.errors import DataError, UsageError
from flowzoo.files import read_rows

Floats = npt.NDArray[np.float64]
Table = Mapping[str, Any]

DEEPEST = 3
"""Levels of folders below a given one in which runs are looked for."""


@dataclass(frozen=True, slots=True)
class RunData:
    """One run directory, as `flowzoo.baselines.rundir` lays it out."""

    folder: Path
    name: str
    """What the report calls it, unique among the runs of a report."""
    settings: Table
    grading: Table
    provenance: Table
    rows: Sequence[dict[str, Any]]
    """Metrics, one object per step."""
    summary: Table | None
    """What a finished run wrote at its end; None: it is not finished."""

    @property
    def evaluations(self) -> list[dict[str, Any]]:
        """The rows with held-out scores."""
        return [row for row in self.rows if row.get("eval/scores")]

    @property
    def steps(self) -> list[int]:
        """Steps of the evaluations."""
        return [row["step"] for row in self.evaluations]

    @property
    def scores(self) -> Floats:
        """Held-out scores, (evaluations, items)."""
        return np.array([row["eval/scores"] for row in self.evaluations], np.float64)

    @property
    def roles(self) -> list[str]:
        """The roles, in the order in which metrics name them."""
        found: dict[str, None] = {}
        for row in self.rows:
            for name in row:
                for start in ("eval/strict/", "strict/"):
                    if name.startswith(start):
                        found.setdefault(name.removeprefix(start))
        return list(found)

    @property
    def policies(self) -> dict[str, str]:
        """The policy of every role."""
        if self.summary is not None and "policies" in self.summary:
            return dict(self.summary["policies"])
        sharing = list(self.settings.get("sharing", ["shared"]))
        named = dict(part.split("=", 1) for part in sharing if "=" in part)
        alone = sharing == ["isolated"]
        return {role: named.get(role, role if alone else "shared") for role in self.roles}

    @property
    def task(self) -> str:
        """The task that was worked on, the workflow's own where the settings name none."""
        named, workflow = self.settings.get("task"), str(self.settings.get("workflow"))
        if named or ":" in workflow:  # a record's module:Class is not imported for its looks
            return str(named or "default task")
        from flowzoo.envs.registry import workflow_class

        try:
            return workflow_class(workflow).default_task
        except UsageError:
            return "default task"  # a workflow that this version does not have

    @property
    def problem_set(self) -> str:
        """What names the held-out problems, wherever they come from; "" where nothing does."""
        named = (self.summary or {}).get("protocol", {}).get("problem_set")
        if named:
            return str(named)
        files = self.transcript_files("eval")
        if not files:
            return ""
        with files[min(files)].open(encoding="utf-8", errors="replace") as lines:
            return json.dumps([json.loads(line)["problem"] for line in lines])

    def transcript_files(self, kind: str) -> dict[int, Path]:
        """Saved episodes of `kind` (`train` or `eval`) by step."""
        found = sorted((self.folder / "transcripts").glob(f"{kind}-*.jsonl"))
        return {int(path.stem.rsplit("-", 1)[1]): path for path in found}


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


def read_run(folder: Path, name: str) -> RunData:
    """The run in `folder`.

    Raises:
        DataError: a file there is not what a run writes.
    """
    record = _json(folder / "run.json")
    if not isinstance(record, dict) or not isinstance(record.get("settings"), dict):
        raise DataError(f"{folder / 'run.json'} has no `settings`: it is not the record of a run")
    rows = read_rows(folder / "metrics.jsonl", _metrics, "a row of metrics")
    summary = folder / "summary.json"
    return RunData(
        folder=folder,
        name=name,
        settings=record["settings"],
        grading=record.get("grading", {}),
        provenance=record.get("provenance", {}),
        rows=rows,
        summary=_json(summary) if summary.exists() else None,
    )


@lru_cache(maxsize=8)  # the same evaluations serve the findings and the browser
def read_episodes(path: Path) -> tuple[dict[str, Any], ...]:
    """The episodes of one transcript file.

    Raises:
        DataError: a line before the last cannot be read.
    """
    return tuple(read_rows(path, _episode, "an episode"))


def _below(folder: Path, levels: int) -> Iterator[Path]:
    """Run directories in `folder`, itself included; a run holds no other."""
    if (folder / "run.json").is_file():
        yield folder
    elif levels:
        for child in sorted(one for one in folder.iterdir() if one.is_dir()):
            yield from _below(child, levels - 1)


def _json(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise DataError(f"{path} is not JSON: {error}") from error


def _metrics(row: Any) -> dict[str, Any]:
    if type(row["step"]) is not int:
        raise ValueError("`step` is not a whole number")
    return row


def _episode(row: Any) -> dict[str, Any]:
    return row | {"calls": list(row["calls"]), "problem": str(row["problem"])}
