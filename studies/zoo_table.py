"""The tables of docs/failure-modes.md, from the runs of the matrix `zoo`.

    flowzoo matrix zoo
    python -m studies.zoo_table [runs/zoo]
    python -m studies.zoo_table FOLDER FILE      # another matrix, as zoo_more.toml of 51e36686

What counts as a failure, and which findings of a run's page call it, stands in [[failures]] of
flowzoo/baselines/matrix/bundled/zoo.toml. Of every failure: its cells, in how many seeds it is
there, in how many of these and of the others it is called, how many are clean (neither there nor
called), and how its figure began, was at its best and ended, one value a seed, in percent; then the
team's accuracy at the end, behind a stroke that of its own first attempts where it makes several.
Also, of a cell named as another with more behind it: by how much it ends above that, by seed.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from flowzoo.baselines.matrix.failures import FailureMode
from flowzoo.baselines.matrix.file import load_matrix
from flowzoo.baselines.report.cells import CellData, group_cells
from flowzoo.baselines.report.failures import failure_facts
from flowzoo.baselines.report.findings import Facts
from flowzoo.baselines.report.reading import read_runs
from flowzoo.baselines.report.run_facts import run_facts
from flowzoo.baselines.run.reading import RunData, cell_label
from flowzoo.baselines.stats import mean_over_seeds

WORDS = {
    "shows": "",
    "remedies": "remedy",
    "failed_remedies": "no remedy",
    "comparisons": "for comparison",
}


def in_percent(values: Sequence[float | None]) -> str:
    """One value a seed."""
    return " ".join("-" if value is None else f"{100 * value:.0f}" for value in values)


def team(run: RunData) -> str:
    """Accuracy of the last evaluation, and of the first attempts in it."""
    last = run.evaluations[-1]
    first = last.get("eval/fact/first_correct")
    return f"{100 * run.scores[-1].mean():.0f}" + ("" if first is None else f"/{100 * first:.0f}")


def line(row: Facts, cell: CellData) -> str:
    """One cell of one failure."""
    seeds, there, said = row["seeds"], set(row["there"]), set(row["called"])
    others = len(seeds) - len(there)
    courses = [[value for value in course if value is not None] for course in row["courses"]]
    starts = in_percent(sorted({course[0] for course in courses}))
    best = in_percent([max(course) for course in courses])
    ends = in_percent([course[-1] for course in row["courses"]])
    parts = (
        row["label"], WORDS[row["part"]], f"{len(there)}/{len(seeds)}",
        f"{len(there & said)}/{len(there)}" if there else "–",
        f"{len(said - there)}/{others}" if others else "–",
        f"{len(row['clean'])}/{len(seeds)}", starts, best, ends, " ".join(map(team, cell.runs)),
    )  # fmt: skip
    return f"| {' | '.join(parts)} |"


def table(failure: FailureMode, fact: Facts, cells: Mapping[str, CellData]) -> str:
    """A failure's table as Markdown; `cells` by the names of their folders."""
    rows = fact["cells"]
    there = {(row["cell"], seed) for row in rows for seed in row["there"]}
    said = {(row["cell"], seed) for row in rows for seed in row["called"]}
    seeds = sum(len(row["seeds"]) for row in rows)
    lines = [
        f"{failure.name}: {failure.rule}",
        "",
        "| cell | | there | called, where there | called, where not | clean "
        "| start | best | end | team |",
        "|---|---|---:|---:|---:|---:|---:|---|---|---|",
        *(line(row, cells[row["cell"]]) for row in rows),
        "",
        f"All cells: there in {len(there)} of {seeds}, of these called in {len(there & said)}.",
    ]
    return "\n".join(lines) + "\n"


def paired(one: CellData, other: CellData) -> str:
    """By how much the last accuracy of `other` is above that of `one`, with a t interval."""
    ends = [{s: r.scores[-1].mean() for s, r in zip(c.seeds, c.runs, strict=True)}
            for c in (one, other)]  # fmt: skip
    seeds = sorted(ends[0].keys() & ends[1].keys())
    mean, low, high = mean_over_seeds(
        [100 * float(ends[1][seed] - ends[0][seed]) for seed in seeds]
    )
    said = f"{mean:+.1f} points (95 % t interval {low:+.1f} to {high:+.1f}, {len(seeds)} seeds)"
    return f"{other.name} ends {said} above {one.name}."


def main(root: Path, name: str) -> None:
    """Print a table a failure, of the runs that are finished."""
    matrix = load_matrix(name)
    cells = group_cells(read_runs([root]))
    done = [run for cell in cells for run in cell.runs]
    facts = failure_facts(matrix.failures, cells, {run.name: run_facts(run) for run in done})
    named = {cell_label(run.folder): cell for cell in cells for run in cell.runs}
    known = {failure.name: failure for failure in matrix.failures}
    for fact in facts:
        print(table(known[fact["name"]], fact, named))
    for one in cells if name != "zoo" else []:
        for other in cells:
            if other.name.startswith(f"{one.name}-"):
                print(paired(one, other))
    print(f"{len(done)} of {len(matrix.cells) * len(matrix.seeds)} runs are finished.")


if __name__ == "__main__":
    given = sys.argv[1:] + ["runs/zoo", "zoo"][len(sys.argv) - 1 :]
    main(Path(given[0]), given[1])
