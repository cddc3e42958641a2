"""Several runs as cells: the runs of one configuration under several seeds, and their verdicts."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias, TypedDict

import numpy as np

from flowzoo.aliases import Floats
from flowzoo.baselines.diagnostics.cliff import FELL, LAST, discoveries
from flowzoo.baselines.matrix.cell import is_control
from flowzoo.baselines.report.accuracy import (
    ENOUGH,
    cliff_facts,
    cliff_of,
    more_evaluations,
)
from flowzoo.baselines.run.reading import RunData, cell_label, sharing_words
from flowzoo.baselines.stats import at_least, mean_over_seeds, paired_gain

AXES = ("workflow", "task", "model", "sharing", "algorithm")
_VARYING = ("seed", "out", "threads")  # settings that may differ within a cell
Notes = Mapping[str, Mapping[str, Any]]  # `run_facts` by the name of the run
JUDGED = (*FELL, "no cliff")  # verdicts that decide if there is a cliff
CellFacts: TypeAlias = dict[str, Any]
"""Figures of a cell for its page, as `cell_facts` makes them."""
RATE = 0.05  # false-discovery rate of the cliffs of a matrix
FALSE_FALLS = 0.05  # bound of the false-alarm rate of falls of single runs (docs/diagnostics.md)


class CaptureCount(TypedDict):
    """Seeds in which role `by` captured role `of`, of those tested."""

    by: str
    of: str
    captured: int
    tested: int


class FallenRuns(TypedDict):
    """Runs that fell, of those with a verdict; `p_value` is that of as many false alarms."""

    runs: int
    of: int
    seeds: list[int]
    p_value: float


class SeedAlarm(TypedDict):
    """Title of a problem with the seeds that have it."""

    title: str
    seeds: list[int]


class CellAlarms(TypedDict):
    """Problems of a cell's runs, and the number of runs without any."""

    of: int
    clean: int
    broken: list[SeedAlarm]


@dataclass(frozen=True, slots=True)
class CellData:
    """The runs of one configuration."""

    name: str
    settings: Mapping[str, Any]
    runs: Sequence[RunData]  # finished runs with two evaluations or more, by seed
    unfinished: Sequence[RunData]
    task: str

    @property
    def seeds(self) -> list[int]:
        """Seeds of `runs`."""
        return [int(run.settings.get("seed", 0)) for run in self.runs]

    def axis(self, name: str) -> str:
        """One coordinate in the matrix as text."""
        value = self.settings.get(name)
        if name == "sharing":
            return " ".join(sharing_words(self.settings))
        if name == "task":
            return self.task
        return Path(str(value)).name if name == "model" else str(value)

    def item_means(self, evaluations: slice) -> Floats:
        """Mean over seeds and over some evaluations, (items,)."""
        return np.mean([run.scores[evaluations].mean(axis=0) for run in self.runs], axis=0)


def group_cells(runs: Sequence[RunData]) -> list[CellData]:
    """Runs whose settings differ in nothing but the seed, in order of first appearance."""
    # The budgets of a control may differ, too: they come from other runs of its seeds. Only
    # finished runs count; a cell of unfinished ones stays in the list without runs.
    groups: dict[str, list[RunData]] = {}
    for run in runs:
        groups.setdefault(_configuration(run), []).append(run)
    cells: list[CellData] = []
    for members in groups.values():
        members.sort(key=lambda run: run.settings.get("seed", 0))
        done = [run for run in members if run.summary is not None and len(run.evaluations) > 1]
        left = [run for run in members if run not in done]
        cells.append(CellData(_name(members), members[0].settings, done, left, members[0].task))
    return cells


def _configuration(run: RunData) -> str:
    settings = {name: value for name, value in run.settings.items() if name not in _VARYING}
    if settings.get("token_budget") and is_control(settings.get("workflow")):
        # The budget differs by seed, so the folder tells cells apart.
        settings["token_budget"] = cell_label(run.folder)
    return json.dumps(settings, sort_keys=True)


def _name(runs: Sequence[RunData]) -> str:
    # the folder above `seed-N` folders, else the run
    path = Path(runs[0].name)
    return path.parent.as_posix() if path.name.startswith("seed-") else path.as_posix()


def cell_facts(cell: CellData, notes: Notes) -> CellFacts:
    """Figures of a cell: base, peak, terminal, gain with its intervals, verdicts, cost."""
    facts: CellFacts = {
        "name": cell.name,
        "axes": {name: cell.axis(name) for name in AXES},
        "seeds": cell.seeds,
        "unfinished": len(cell.unfinished),
        "pages": {},
    }
    if not cell.runs or len({run.scores.shape[1] for run in cell.runs}) > 1:
        reason = "its seeds have different numbers of items" if cell.runs else "no finished run"
        no_falls = {"runs": 0, "of": 0, "seeds": [], "p_value": 1.0}
        no_cliff = {"verdict": None, "why": reason}
        return facts | {
            "gain": None, "cliff": no_cliff, "fell": no_falls, "alarms": alarms(cell, notes),
            "captures": [],
        }  # fmt: skip
    cliff, reason = cliff_of(cell.runs)
    gains = [float(run.scores[-1].mean() - run.scores[0].mean()) for run in cell.runs]
    gain = paired_gain(
        cell.item_means(slice(0, 1)).tolist(), cell.item_means(slice(-1, None)).tolist()
    )
    mean, low, high = mean_over_seeds(gains)
    return facts | {
        "items": gain.n,
        "evaluations": len(cell.runs[0].steps),
        "gain": gain._asdict(),
        "gain_seeds": {"mean": mean, "low": low, "high": high, "values": gains},
        "base": float(np.mean([run.scores[0].mean() for run in cell.runs])),
        "last": float(np.mean([run.scores[-1].mean() for run in cell.runs])),
        "terminal": _terminal(cell),
        "cliff": cliff_facts(cliff, reason, more_evaluations(cell.runs[0])),
        "fell": _fallen_runs(cell, notes),
        "alarms": alarms(cell, notes),
        "captures": captures(cell, notes),
        "shares": len(set(cell.runs[0].policies.values())) < len(cell.runs[0].policies),
        "tokens": _mean(cell, "tokens/total"),
        "minutes": _mean(cell, "time/total") / 60,
        "courses": [
            [
                [step, float(level)]
                for step, level in zip(run.steps, run.scores.mean(axis=1), strict=True)
            ]
            for run in cell.runs
        ],
    }


def captures(cell: CellData, notes: Notes) -> list[CaptureCount]:
    """Number of seeds with a capture, of those tested, by pair of roles of a shared policy."""
    counts: dict[tuple[str, str], list[int]] = {}
    for run in cell.runs:
        for verdict in notes.get(run.name, {"captures": ()})["captures"]:
            for pair in verdict["pairs"]:
                count = counts.setdefault((pair["by"], pair["of"]), [0, 0])
                count[0] += int(pair["captured"])
                count[1] += 1
    return [
        {"by": by, "of": of, "captured": captured, "tested": tested}
        for (by, of), (captured, tested) in counts.items()
    ]


def _fallen_runs(cell: CellData, notes: Notes) -> FallenRuns:
    judged = [run for run in cell.runs if run.name in notes]
    judged = [run for run in judged if notes[run.name]["cliff"]["verdict"] is not None]
    fell = [run for run in judged if notes[run.name]["cliff"]["verdict"] in FELL]
    return {
        "runs": len(fell),
        "of": len(judged),
        "seeds": [int(run.settings.get("seed", 0)) for run in fell],
        "p_value": at_least(len(fell), len(judged), FALSE_FALLS),
    }


def alarms(cell: CellData, notes: Notes) -> CellAlarms:
    """Seeds with each problem (`broken`), and number of runs without any (`clean`)."""
    judged = [run for run in cell.runs if run.name in notes]
    broken: dict[str, list[int]] = {}
    for run in judged:
        for title in notes[run.name].get("alarms", ()):
            broken.setdefault(title, []).append(int(run.settings.get("seed", 0)))
    clean = sum(not notes[run.name].get("alarms") for run in judged)
    order = sorted(broken.items(), key=lambda item: (-len(item[1]), item[0]))
    return {
        "of": len(judged),
        "clean": clean,
        "broken": [{"title": title, "seeds": seeds} for title, seeds in order],
    }


def mark_discoveries(cells: Sequence[CellFacts]) -> int:
    """Set `discovery` of every cell with a verdict; number of cells that were tested together."""
    judged = [cell["cliff"] for cell in cells if cell["cliff"]["verdict"] in JUDGED]
    passed = discoveries([verdict["p_value"] for verdict in judged], RATE)
    for verdict, passes in zip(judged, passed, strict=True):
        verdict["discovery"] = passes and verdict["verdict"] in FELL
    return len(judged)


def same_problems(first: CellData, second: CellData) -> bool:
    """True if two cells were evaluated on the same problems."""
    sets = [cell.runs[0].problem_set for cell in (first, second)]
    return bool(sets[0]) and sets[0] == sets[1]


def _terminal(cell: CellData) -> float | None:
    if min(len(run.steps) for run in cell.runs) < ENOUGH:
        return None
    return float(np.mean([run.scores[-LAST:].mean() for run in cell.runs]))


def _mean(cell: CellData, metric: str) -> float:
    return float(np.mean([run.rows[-1].get(metric, 0.0) for run in cell.runs]))
