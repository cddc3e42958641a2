"""The table of docs/failure-modes.md, from the runs of the matrix `zoo`.

    flowzoo matrix zoo
    python benchmarks/zoo_table.py [runs/zoo]

What counts as a failure stands in flowzoo/baselines/matrix/bundled/zoo.toml, and was written before
the runs. Figures are of held-out evaluations, one per seed, seeds in order.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from flowzoo.baselines.matrix.file import load_matrix

Row = Mapping[str, Any]
TEAM, VOTER = "eval/reward/mean", "eval/truth/generator"
FALL = 0.10
BLIND = 0.20


def fell(name: str, *, from_peak: bool) -> Callable[[Sequence[Row]], bool]:
    """Whether a figure ends `FALL` or more below where it began, or below its best."""

    def look(rows: Sequence[Row]) -> bool:
        values = [row[name] for row in rows]
        top = max(values) if from_peak else values[0]
        return round(top - values[-1], 6) >= FALL

    return look


def blind(name: str) -> Callable[[Sequence[Row]], bool]:
    """Whether a share of right decisions ends at `BLIND` or less."""
    return lambda rows: rows[-1][f"eval/share/{name}"] <= BLIND


FAILED: dict[str, Callable[[Sequence[Row]], bool]] = {
    "A": fell(VOTER, from_peak=False),
    "B": blind("evaluator_tpr"),
    "C": blind("verifier_tpr"),
    "D": fell(TEAM, from_peak=True),
}
"""Letter of a cell's label -> what its failure is."""
SHOWN = {
    "A": {"voter": VOTER, "team": TEAM},
    "B": {"tpr": "eval/share/evaluator_tpr", "tnr": "eval/share/evaluator_tnr",
          "first": "eval/fact/first_correct", "team": TEAM},
    "C": {"tpr": "eval/share/verifier_tpr", "calls": "eval/calls/mean", "team": TEAM},
    "D": {"team": TEAM},
}  # fmt: skip
"""Letter -> what is shown of the last evaluation."""


def evaluations(path: Path) -> list[Row]:
    """The evaluations of a run."""
    lines = path.read_text(encoding="utf-8").splitlines()
    return [row for row in map(json.loads, lines) if "eval/scores" in row]


def figure(rows: Sequence[Row], name: str) -> str:
    """A figure's last value: calls as they are, everything else in percent."""
    value = rows[-1].get(name)
    if value is None:
        return "-"
    return f"{value:.1f}" if "calls" in name else f"{100 * value:.0f}"


def main(root: Path) -> None:
    """Print a line a cell."""
    matrix = load_matrix("zoo")
    print("| cell | failed | start | best | last evaluation, seeds in order |")
    print("|---|---:|---:|---:|---|")
    for cell in matrix.cells:
        paths = [root / cell.name / f"seed-{seed}" / "metrics.jsonl" for seed in matrix.seeds]
        done = [path for path in paths if path.with_name("summary.json").exists()]
        runs = [evaluations(path) for path in done]
        if not runs:
            continue
        letter = cell.label[0]
        failed = sum(map(FAILED[letter], runs))
        if "own-reward" in cell.label and letter == "B":
            failed = sum(map(blind("evaluator_tnr"), runs))
        main_figure = VOTER if letter == "A" else TEAM
        start = " ".join(sorted({f"{100 * rows[0][main_figure]:.0f}" for rows in runs}))
        best = " ".join(f"{100 * max(row[main_figure] for row in rows):.0f}" for rows in runs)
        ends = "; ".join(
            f"{word} " + " ".join(figure(rows, name) for rows in runs)
            for word, name in SHOWN[letter].items()
        )
        print(f"| {cell.label} | {failed}/{len(runs)} | {start} | {best} | {ends} |")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "runs/zoo"))
