"""Growth of the first gradient with the number of agents, on seeds that `magnitude` had not.

    python -m studies.magnitude_more [runs/magnitude-more]

Trains the first step of the cells `sgd-mean` of the matrix `magnitude` under seeds 6 to 17 and
writes docs/data/magnitude-more.json. The loss is averaged over agents; the gradient of the summed
loss is N times as long. Ratios are to the run of one agent with the same seed: geometric means over
seeds with the t interval of their logarithms. Verdicts are by the rule of the matrix's file.
"""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from flowzoo.baselines.matrix.file import load_matrix
from flowzoo.baselines.report.reading import read_runs
from flowzoo.baselines.run.reading import RunData, cell_label
from flowzoo.baselines.settings.config import TrainConfig
from flowzoo.baselines.stats import mean_over_seeds
from flowzoo.baselines.training.trainer import train
from flowzoo.files import write_json
from studies.magnitude_table import AGENTS, NORM, Interval, first_step, times

SEEDS = range(6, 18)
OUT = Path("docs/data/magnitude-more.json")


def growth(n: int, log_ratio: Interval) -> str:
    """Growth of a length: by N, by its root, or none."""
    _, low, high = log_ratio
    rates = {"by N": math.log(n), "by sqrt(N)": math.log(n) / 2, "not at all": 0.0}
    inside = [words for words, value in rates.items() if low <= value <= high]
    if len(inside) == 1:
        return inside[0]
    if inside:
        return "undecided: " + " or ".join(inside)
    if low > math.log(n):
        return "by more than N"
    if low > math.log(n) / 2:
        return "between sqrt(N) and N"
    return "between 1 and sqrt(N)" if low > 0 else "it shrank"


def configs(root: Path) -> Iterator[TrainConfig]:
    """Settings of every run: the matrix's, for one step."""
    for cell in load_matrix("magnitude").cells:
        if cell.label.startswith("sgd-mean"):
            for seed in SEEDS:
                config = cell.run(seed, root)
                # The first step does not depend on evaluations, which take most of its time.
                yield replace(config, steps=1, eval_every=1, eval_problems=2, checkpoint_every=1)


def norms(runs: list[RunData]) -> dict[int, dict[int, float]]:
    """Norm of the first gradient by number of agents and seed."""
    lengths: dict[int, dict[int, float]] = {n: {} for n in AGENTS}
    for run in runs:
        label = re.search(r"n(\d+)$", cell_label(run.folder))
        if label and run.summary is not None:
            lengths[int(label[1])][int(run.settings["seed"])] = first_step(run, NORM)
    return lengths


def table(lengths: dict[int, dict[int, float]]) -> list[list[str]]:
    """Rows of every number of agents above one."""
    rows: list[list[str]] = []
    for n in AGENTS[1:]:
        logs = [math.log(n * lengths[n][seed] / lengths[1][seed]) for seed in SEEDS]
        ratio: Interval = mean_over_seeds(logs)
        rows.append([str(n), str(len(logs)), times(ratio), growth(n, ratio)])
    return rows


def main(root: Path) -> None:
    """Train what is not trained yet, and write and print the table."""
    for config in configs(root):
        train(config)
    lengths = norms(read_runs([root]))
    data: dict[str, Any] = {
        "command": "python -m studies.magnitude_more",
        "columns": ["N", "fresh seeds", "norm of the summed gradient in one agent's", "grows"],
        "align": "|---:|---:|---|---|",
        "rows": table(lengths),
        "norms of the averaged gradient by N and seed": lengths,
    }
    write_json(OUT, data)
    print("\n".join(" | ".join(row) for row in data["rows"]))


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "runs/magnitude-more"))
