"""Several runs as cells: the runs of one configuration under several seeds, and their verdicts."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from flowzoo.aliases import Floats
from flowzoo.baselines.diagnostics.cliff import FELL, LAST, discoveries
from flowzoo.baselines.matrix.cell import is_control
from flowzoo.baselines.report.accuracy import ENOUGH, cliff_facts, cliff_of, more_evaluations
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

    @property
    def gains(self) -> list[float]:
        """Last minus first accuracy of every run."""
        return [float(run.scores[-1].mean() - run.scores[0].mean()) for run in self.runs]

    def item_means(self, evaluations: slice) -> Floats:
        """Mean over seeds and over some evaluations, (items,)."""
        return np.mean([run.scores[evaluations].mean(axis=0) for run in self.runs], axis=0)

    def level(self, evaluations: slice) -> float:
        """Mean over seeds of the accuracy over some evaluations."""
        return float(np.mean([run.scores[evaluations].mean() for run in self.runs]))


def group_cells(runs: Sequence[RunData]) -> list[CellData]:
    """Runs whose settings differ in nothing but the seed, in order of first appearance."""
    # The budgets of a control may differ, too: they come from other runs of its seeds. Only
    # finished runs count; a cell of unfinished ones stays in the list without runs.
    groups: dict[str, list[RunData]] = {}
    for run in runs:
        settings = {name: value for name, value in run.settings.items() if name not in _VARYING}
        if settings.get("token_budget") and is_control(settings.get("workflow")):
            # The budget differs by seed, so the folder tells cells apart.
            settings["token_budget"] = cell_label(run.folder)
        groups.setdefault(json.dumps(settings, sort_keys=True), []).append(run)
    cells: list[CellData] = []
    for members in groups.values():
        members.sort(key=lambda run: run.settings.get("seed", 0))
        done = [run for run in members if run.summary is not None and len(run.evaluations) > 1]
        left = [run for run in members if run not in done]
        path = Path(members[0].name)
        path = path.parent if path.name.startswith("seed-") else path
        settings = members[0].settings
        cells.append(CellData(path.as_posix(), settings, done, left, members[0].task))
    return cells


def cell_facts(cell: CellData, notes: Notes) -> CellFacts:
    """Figures of a cell: base, peak, terminal, gain with its intervals, verdicts, cost."""
    facts: CellFacts = {
        "name": cell.name,
        "axes": {name: cell.axis(name) for name in AXES},
        "seeds": cell.seeds,
        "unfinished": len(cell.unfinished),
        "pages": {},
    }
    facts["alarms"] = alarms(cell, notes)
    if not cell.runs or len({run.scores.shape[1] for run in cell.runs}) > 1:
        reason = "its seeds have different numbers of items" if cell.runs else "no finished run"
        no_falls = {"runs": 0, "of": 0, "seeds": [], "p_value": 1.0}
        no_cliff = {"verdict": None, "why": reason}
        return facts | {"gain": None, "cliff": no_cliff, "fell": no_falls, "captures": []}
    cliff, reason = cliff_of(cell.runs)
    first, last = cell.item_means(slice(0, 1)), cell.item_means(slice(-1, None))
    gain = paired_gain(first.tolist(), last.tolist())
    mean, low, high = mean_over_seeds(cell.gains)
    enough = min(len(run.steps) for run in cell.runs) >= ENOUGH
    policies = cell.runs[0].policies
    return facts | {
        "items": gain.n,
        "evaluations": len(cell.runs[0].steps),
        "gain": gain._asdict(),
        "gain_seeds": {"mean": mean, "low": low, "high": high, "values": cell.gains},
        "base": cell.level(slice(0, 1)),
        "last": cell.level(slice(-1, None)),
        "terminal": cell.level(slice(-LAST, None)) if enough else None,
        "cliff": cliff_facts(cliff, reason, more_evaluations(cell.runs[0])),
        "fell": _fallen_runs(cell, notes),
        "captures": captures(cell, notes),
        "shares": len(set(policies.values())) < len(policies),
        "tokens": _mean(cell, "tokens/total"),
        "minutes": _mean(cell, "time/total") / 60,
        "courses": [
            [
                [step, level]
                for step, level in zip(run.steps, run.scores.mean(axis=1).tolist(), strict=True)
            ]
            for run in cell.runs
        ],
    }


def captures(cell: CellData, notes: Notes) -> list[CellFacts]:
    """Number of seeds in which role `by` captured role `of`, of those tested, by pair of roles."""
    verdicts = [
        verdict
        for run in cell.runs
        for verdict in notes.get(run.name, {"captures": ()})["captures"]
    ]
    pairs: dict[tuple[str, str], list[bool]] = {}
    for pair in (pair for verdict in verdicts for pair in verdict["pairs"]):
        pairs.setdefault((pair["by"], pair["of"]), []).append(pair["captured"])
    return [
        {"by": by, "of": of, "captured": sum(seeds), "tested": len(seeds)}
        for (by, of), seeds in pairs.items()
    ]


def _fallen_runs(cell: CellData, notes: Notes) -> CellFacts:
    # Of the runs with a verdict; `p_value` is that of as many false alarms.
    verdicts = [
        (seed, notes[run.name]["cliff"]["verdict"])
        for seed, run in zip(cell.seeds, cell.runs, strict=True)
        if run.name in notes and notes[run.name]["cliff"]["verdict"] is not None
    ]
    seeds = [seed for seed, verdict in verdicts if verdict in FELL]
    chance = at_least(len(seeds), len(verdicts), FALSE_FALLS)
    return {"runs": len(seeds), "of": len(verdicts), "seeds": seeds, "p_value": chance}


def alarms(cell: CellData, notes: Notes) -> CellFacts:
    """Seeds with each problem (`broken`), and number of runs without any (`clean`)."""
    titles = [
        (seed, notes[run.name].get("alarms", ()))
        for seed, run in zip(cell.seeds, cell.runs, strict=True)
        if run.name in notes
    ]
    broken: dict[str, list[int]] = {}
    for seed, title in ((seed, title) for seed, of_run in titles for title in of_run):
        broken.setdefault(title, []).append(seed)
    order = sorted(broken.items(), key=lambda item: (-len(item[1]), item[0]))
    return {
        "of": len(titles),
        "clean": sum(not of_run for _, of_run in titles),
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


def _mean(cell: CellData, metric: str) -> float:
    return float(np.mean([run.rows[-1].get(metric, 0.0) for run in cell.runs]))
