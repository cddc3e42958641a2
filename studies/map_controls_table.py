"""Teams of the matrix `map` beside lone agents with the same search or the same turns.

    flowzoo matrix studies/map_controls.toml --out runs/map-controls
    python -m studies.map_controls_table [runs/map-controls]

Writes docs/data/map-controls.json: the table, and of every run the course of its evaluations with
the result of every held-out problem at each (1: solved), so that the table can be computed again.
The rule is in the matrix's file.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from flowzoo.baselines.report.reading import read_runs
from flowzoo.baselines.run.reading import RunData
from flowzoo.baselines.stats import welch
from flowzoo.files import write_json

OUT = Path("docs/data/map-controls.json")
STEPS = 10
"""Steps of a team."""
Ends = Sequence[tuple[RunData, int]]
"""Runs of a cell, one a seed, each with the index of one of its evaluations."""


class Pair(NamedTuple):
    """A team, a lone agent, and words in the folders of their cells alone."""

    team: str
    lone: str
    team_folder: str
    lone_folder: str


PAIRS = (
    Pair("tool_planner", "planner alone", "tool_planner-plan_path", "PlannerAlone-plan_path"),
    Pair("search_team", "agent alone, one search", "search_team-search", "isolated-one-search"),
    Pair("search_team", "agent alone, two searches", "search_team-search", "isolated-two-searches"),
)


def runs_of(runs: Sequence[RunData], words: str) -> dict[int, RunData]:
    """Finished runs of the cell whose folder holds `words`, by seed."""
    cell = [run for run in runs if words in run.folder.parent.name and run.summary]
    return {int(run.settings["seed"]): run for run in cell}


def at_step(run: RunData, step: int) -> int:
    """Index of the evaluation at `step`."""
    return [row["step"] for row in run.evaluations].index(step)


def at_tokens(run: RunData, tokens: float) -> int:
    """Index of the first evaluation after `tokens` training tokens, or of the last one."""
    totals = [row["tokens/total"] for row in run.evaluations]
    return next((i for i, total in enumerate(totals) if total >= tokens), len(totals) - 1)


def mean_of(ends: Ends, name: str) -> float:
    """A metric of evaluations, mean over seeds."""
    return float(np.mean([run.evaluations[index][name] for run, index in ends]))


def row(pair: Pair, equal: str, team: Ends, lone: Ends) -> list[str]:
    """One line of the table: a team and a lone agent at an equal budget."""
    levels = [[float(run.scores[i].mean()) for run, i in side] for side in (lone, team)]
    low, high = welch(*levels)
    assert low is not None
    assert high is not None
    gap = float(np.mean(levels[1]) - np.mean(levels[0]))
    verdict = "pays" if low > 0 else "does not" if high < 0 else "undecided"
    budgets = [
        f"{mean_of(team, name):,.{digits}f}, {mean_of(lone, name):,.{digits}f}"
        for name, digits in (("tokens/total", 0), ("eval/calls/mean", 1), ("eval/tokens/mean", 1))
    ]
    difference = f"{100 * gap:+.1f} ({100 * low:+.1f} to {100 * high:+.1f})".replace("-", "−")
    ends = [f"{100 * float(np.mean(level)):.1f} %" for level in levels]
    return [
        pair.team, pair.lone, str(len(team)), equal, ends[1], ends[0], *budgets, difference, verdict
    ]  # fmt: skip


def rows_of(runs: Sequence[RunData], pair: Pair) -> list[list[str]]:
    """The lines of a pair: at equal steps, and where the lone agent has had the team's tokens."""
    team, lone = runs_of(runs, pair.team_folder), runs_of(runs, pair.lone_folder)
    seeds = sorted(team.keys() & lone.keys())
    ends = [(team[seed], at_step(team[seed], STEPS)) for seed in seeds]
    totals = [run.evaluations[index]["tokens/total"] for run, index in ends]
    steps = [(lone[seed], at_step(lone[seed], STEPS)) for seed in seeds]
    tokens = [
        (lone[seed], at_tokens(lone[seed], total))
        for seed, total in zip(seeds, totals, strict=True)
    ]
    return [row(pair, "steps", ends, steps), row(pair, "training tokens", ends, tokens)]


def course(run: RunData) -> dict[str, Any]:
    """What a run's evaluations measured, with the results of single problems."""
    names = ("step", "tokens/total", "eval/calls/mean", "eval/tokens/mean")
    evaluations = [
        {name: row[name] for name in names} | {"solved": "".join(map(str, scores.astype(int)))}
        for row, scores in zip(run.evaluations, run.scores, strict=True)
    ]
    cell = run.folder.parent.name.removeprefix("studies.teams.")
    return {"cell": cell, "seed": int(run.settings["seed"]), "evaluations": evaluations}


def main(root: Path) -> None:
    """Write the file and print the table."""
    runs = [run for run in read_runs([root]) if run.summary]
    rows = [line for pair in PAIRS for line in rows_of(runs, pair)]
    columns = [
        "team", "lone agent", "seeds", "equal", "team accuracy", "lone agent accuracy",
        "training tokens", "calls of an answer", "tokens of an answer", "team minus lone agent",
        "the team",
    ]  # fmt: skip
    data = {
        "command": "flowzoo matrix studies/map_controls.toml --out runs/map-controls; "
        "python -m studies.map_controls_table",
        "columns": columns,
        "align": "|---|---|---:|---|---:|---:|---:|---:|---:|---|---|",
        "rows": rows,
        "runs": [course(run) for run in runs],
    }
    write_json(OUT, data)
    print("\n".join(" | ".join(line) for line in [columns, *rows]))


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "runs/map-controls"))
