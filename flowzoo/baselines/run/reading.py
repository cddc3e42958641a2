"""Reads what one run wrote: its settings, metrics, summary and episodes."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from flowzoo.agents.evaluation.summary import measure_name
from flowzoo.aliases import Floats, MetricRow
from flowzoo.baselines.diagnostics.pay import has_pay
from flowzoo.baselines.run.ledger import whole_transcripts
from flowzoo.baselines.settings.algorithms import ALGORITHMS
from flowzoo.envs.api.registry import workflow_class
from flowzoo.errors import DataError, UsageError
from flowzoo.files import read_json, read_rows

Table = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class RunData:
    """One run directory, as `flowzoo.baselines.run.directory` lays it out."""

    folder: Path
    name: str
    """Name of the run, unique in a report."""
    settings: Table
    grading: Table
    provenance: Table
    rows: Sequence[MetricRow]
    """Metrics, one object per step."""
    summary: Table | None
    """Summary of a finished run; None before its end."""

    @property
    def evaluations(self) -> list[MetricRow]:
        """The rows with held-out scores."""
        return [row for row in self.rows if row.get("eval/scores")]

    @property
    def pays(self) -> bool:
        """True if every role has its own pay, and scores are no shares of right answers."""
        return has_pay(self.evaluations)

    @property
    def measure(self) -> str:
        """The word for the mean held-out score."""
        return measure_name(self.pays)

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
        names: dict[str, None] = {}
        for row in self.rows:
            for name in row:
                for start in ("eval/strict/", "strict/"):
                    if name.startswith(start):
                        names.setdefault(name.removeprefix(start))
        return list(names)

    @property
    def policies(self) -> dict[str, str]:
        """The policy of every role, or of every agent of a role with several policies."""
        if self.summary is not None and "policies" in self.summary:
            return dict(self.summary["policies"])
        sharing = sharing_words(self.settings)
        named = dict(part.split("=", 1) for part in sharing if "=" in part)
        if named:
            return named
        return {role: role if sharing == ["isolated"] else "shared" for role in self.roles}

    @property
    def task(self) -> str:
        """The task that was worked on, the workflow's own where the settings name none."""
        named, workflow = self.settings.get("task"), str(self.settings.get("workflow"))
        if self.settings.get("env"):  # the environment's own name, or where it comes from
            return str((self.summary or {}).get("task", self.settings["env"]))
        if named or ":" in workflow:  # module:Class of a record is not imported for its name
            return str(named or "default task")
        try:
            return workflow_class(workflow).default_task
        except UsageError:
            return "default task"  # a workflow of another installation

    @property
    def problem_set(self) -> str:
        """Identity of the held-out problems; empty if unknown."""
        named = (self.summary or {}).get("protocol", {}).get("problem_set")
        if named:
            return str(named)
        files = self.transcript_files("eval")
        if not files:
            return ""
        with files[min(files)].open(encoding="utf-8", errors="replace") as lines:
            return json.dumps([json.loads(line)["problem"] for line in lines])

    def transcript_files(self, kind: str) -> dict[int, Path]:
        """Saved episodes of `kind` (`train` or `eval`) by step, but for damaged files."""
        return whole_transcripts(self.folder, kind)


def end_episodes(run: RunData) -> tuple[tuple[Table, ...], tuple[Table, ...]] | None:
    """Saved episodes of the first and the last evaluation; None without both."""
    files, steps = run.transcript_files("eval"), run.steps
    if len(steps) < 2 or not {steps[0], steps[-1]} <= files.keys():
        return None
    return read_episodes(files[steps[0]]), read_episodes(files[steps[-1]])


def sharing_words(settings: Table) -> list[str]:
    """`sharing` in the settings of a run; if it is left out, the usual one of the algorithm."""
    sharing: list[str] = list(settings.get("sharing") or ())
    if sharing:
        return sharing
    algorithm = ALGORITHMS.get(str(settings.get("algorithm")))
    return [algorithm.usual_sharing if algorithm else "shared"]  # an algorithm of another version


def cell_label(run: Path) -> str:
    """The name of the cell that a run is a seed of, which is its folder's; "" of other runs."""
    run = run.resolve()
    return run.parent.name if re.fullmatch(r"seed-\d+", run.name) else ""


def run_label(run: Path) -> str:
    """The name of a run: its folder's, for a seed of a matrix with the cell's before it."""
    cell, name = cell_label(run), run.resolve().name
    return f"{cell}--{name}" if cell else name


def like_path(control: Path, workflow: Path) -> Path:
    """The file in a control's run directory about votes at the inference of a workflow's run."""
    return control / f"like-{run_label(workflow)}.json"


def read_run(folder: Path, name: str) -> RunData:
    """The run in `folder`."""
    record = read_json(folder / "run.json")
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
        summary=read_json(summary) if summary.exists() else None,
    )


@lru_cache(maxsize=8)  # the same evaluations serve the findings and the browser
def read_episodes(path: Path) -> tuple[Table, ...]:
    """The episodes of one transcript file."""
    return tuple(read_rows(path, _episode, "an episode"))


def _metrics(row: Any) -> MetricRow:
    if type(row["step"]) is not int:
        raise ValueError("`step` is not a whole number")
    return row


def _episode(row: Any) -> Table:
    return row | {"problem": str(row["problem"])}
