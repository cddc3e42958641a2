"""Several runs as cells: the runs of one configuration under several seeds, and their verdicts."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from flowzoo.baselines.diagnostics.cliff import FELL, LAST, discoveries
from flowzoo.baselines.matrix.cell import is_control
from flowzoo.baselines.report.accuracy import (
    ENOUGH,
    cliff_facts,
    cliff_of,
    more_evaluations,
)
from flowzoo.baselines.run.reading import Floats, RunData, cell_label, sharing_words
from flowzoo.baselines.stats import at_least, mean_over_seeds, paired_gain

AXES = ("workflow", "task", "model", "sharing", "algorithm")
_PLACE = ("seed", "out", "threads")
"""Settings that may differ within a cell."""
Notes = Mapping[str, Mapping[str, Any]]
"""By the name of a run, its `run_facts`."""
JUDGED = (*FELL, "no cliff")
"""The verdicts that say whether there is a cliff."""
RATE = 0.05
"""False-discovery rate of the cliffs of a matrix."""
FALSE_FALLS = 0.05
"""Bound of the rate at which a run that lost nothing is called fallen (docs/diagnostics.md)."""


@dataclass(frozen=True, slots=True)
class CellData:
    """The runs of one configuration."""

    name: str
    settings: Mapping[str, Any]
    runs: Sequence[RunData]
    """By seed, those with an evaluation before and one after training began."""
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

    def item_means(self, places: slice) -> Floats:
        """Mean over seeds and over the evaluations at `places`, (items,)."""
        return np.mean([run.scores[places].mean(axis=0) for run in self.runs], axis=0)


def group_cells(runs: Sequence[RunData]) -> list[CellData]:
    """Runs whose settings differ in nothing but the seed, in order of first appearance.

    The budgets of a control may differ as well: they are those of other runs of its seeds. Only
    finished runs count; a cell of unfinished ones stays in the list without any.
    """
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
    """What the runs of one cell have in common."""
    kept = {name: value for name, value in run.settings.items() if name not in _PLACE}
    if kept.get("token_budget") and is_control(kept.get("workflow")):
        # It differs by seed, so that it tells no cells apart: their folders do.
        kept["token_budget"] = cell_label(run.folder)
    return json.dumps(kept, sort_keys=True)


def _name(runs: Sequence[RunData]) -> str:
    """The folder above `seed-N` folders, else the run's own name."""
    path = Path(runs[0].name)
    return path.parent.as_posix() if path.name.startswith("seed-") else path.as_posix()


def cell_facts(cell: CellData, notes: Notes) -> dict[str, Any]:
    """A cell's figures: base, peak, terminal, gain with its intervals, verdicts, cost.

    `notes` are the facts of the runs that have some, by name.
    """
    facts: dict[str, Any] = {
        "name": cell.name,
        "axes": {name: cell.axis(name) for name in AXES},
        "seeds": cell.seeds,
        "unfinished": len(cell.unfinished),
        "pages": {},
    }
    if not cell.runs or len({run.scores.shape[1] for run in cell.runs}) > 1:
        why = "no finished run" if not cell.runs else "its seeds have different numbers of items"
        nothing = {"runs": 0, "of": 0, "seeds": [], "p_value": 1.0}
        none = {"verdict": None, "why": why}
        return facts | {
            "gain": None, "cliff": none, "fell": nothing, "alarms": alarms(cell, notes),
            "captures": [],
        }  # fmt: skip
    cliff, why = cliff_of(cell.runs)
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
        "cliff": cliff_facts(cliff, why, more_evaluations(cell.runs[0])),
        "fell": fallen_runs(cell, notes),
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


def captures(cell: CellData, notes: Notes) -> list[dict[str, Any]]:
    """Every pair of roles of a shared policy: in how many of the tested seeds it was captured."""
    counts: dict[tuple[str, str], list[int]] = {}
    for run in cell.runs:
        for verdict in notes.get(run.name, {"captures": ()})["captures"]:
            for pair in verdict["pairs"]:
                seen = counts.setdefault((pair["by"], pair["of"]), [0, 0])
                seen[0] += int(pair["captured"])
                seen[1] += 1
    return [
        {"by": by, "of": of, "captured": captured, "tested": tested}
        for (by, of), (captured, tested) in counts.items()
    ]


def cliff_counts(cell: CellData, notes: Notes) -> tuple[int, int]:
    """Runs of a cell that fell, and those that were judged, each by itself."""
    verdicts = [notes[run.name]["cliff"]["verdict"] for run in cell.runs if run.name in notes]
    found = sum(verdict in FELL for verdict in verdicts)
    return found, found + verdicts.count("no cliff")


def fallen_runs(cell: CellData, notes: Notes) -> dict[str, Any]:
    """How many runs fell, each judged by itself before anything is averaged, and `seeds` of them.

    `of` counts all runs with a verdict of their own, also those in which a smaller fall could have
    been missed. `p_value`: as many or more, if each is called fallen by mistake at `FALSE_FALLS`.
    """
    judged = [run for run in cell.runs if run.name in notes]
    judged = [run for run in judged if notes[run.name]["cliff"]["verdict"] is not None]
    fell = [run for run in judged if notes[run.name]["cliff"]["verdict"] in FELL]
    return {
        "runs": len(fell),
        "of": len(judged),
        "seeds": [int(run.settings.get("seed", 0)) for run in fell],
        "p_value": at_least(len(fell), len(judged), FALSE_FALLS),
    }


def alarms(cell: CellData, notes: Notes) -> dict[str, Any]:
    """What broke in how many of the cell's runs: the titles of the worst findings of their pages.

    `clean` counts the runs without any, `broken` has per title the seeds of those with it.
    """
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


def mark_discoveries(cells: Sequence[dict[str, Any]]) -> int:
    """Note in every cell with a verdict whether its cliff stays at the false-discovery rate.

    Returns how many cells were judged together.
    """
    judged = [cell["cliff"] for cell in cells if cell["cliff"]["verdict"] in JUDGED]
    kept = discoveries([verdict["p_value"] for verdict in judged], RATE)
    for verdict, stays in zip(judged, kept, strict=True):
        verdict["discovery"] = stays and verdict["verdict"] in FELL
    return len(judged)


def same_problems(one: CellData, other: CellData) -> bool:
    """Whether two cells were evaluated on the same problems."""
    sets = [cell.runs[0].problem_set for cell in (one, other)]
    return bool(sets[0]) and sets[0] == sets[1]


def _terminal(cell: CellData) -> float | None:
    """Mean over the seeds of the last evaluations; None where a run has too few in all."""
    if min(len(run.steps) for run in cell.runs) < ENOUGH:
        return None
    return float(np.mean([run.scores[-LAST:].mean() for run in cell.runs]))


def _mean(cell: CellData, metric: str) -> float:
    return float(np.mean([run.rows[-1].get(metric, 0.0) for run in cell.runs]))
