"""The verdicts of the matrix `magnitude`, by the rules in its file.

    flowzoo matrix magnitude
    python -m studies.magnitude_table [runs/magnitude]

Ratios are to the run of one agent with the same seed, geometric means over seeds with the t
interval of their logarithms; accuracies are the voters' own at the last evaluation. How the norm
grows with N is a question for more seeds: docs/failure-modes.md has the answer.
"""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Sequence
from pathlib import Path

from flowzoo.baselines.report.reading import read_runs
from flowzoo.baselines.run.reading import RunData, cell_label
from flowzoo.baselines.stats import mean_over_seeds

NORM, KL, OWN = (
    "grad/norm/generator/generator",
    "learn/update_kl/generator",
    "eval/role_score/generator",
)
KINDS = ("sgd-sum", "sgd-mean", "adamw-sum")
AGENTS = (1, 3, 6, 12)
BROKEN = 0.10
"""Accuracy that N = 12 loses against N = 1 where it breaks."""

Key = tuple[str, int, int]
Interval = tuple[float, float, float]


def read(root: Path) -> dict[Key, RunData]:
    """Finished runs by kind, number of agents and seed."""
    found: dict[Key, RunData] = {}
    for run in read_runs([root]):
        named = re.search(rf"({'|'.join(KINDS)})-n(\d+)$", cell_label(run.folder))
        if named and run.summary is not None:
            found[named[1], int(named[2]), int(run.settings["seed"])] = run
    return found


def first_step(run: RunData, metric: str) -> float:
    """A metric of the first training step; NaN where it was not measured."""
    return float(next((row[metric] for row in run.rows if metric in row), math.nan))


def breaks(loss: Interval) -> str:
    """Verdict on many agents that lose more than one does."""
    mean, low, high = loss
    if mean >= BROKEN and low > 0:
        return "yes"
    return "no" if high < BROKEN else "undecided"


def spread(values: Sequence[float]) -> Interval:
    """Mean and t interval over seeds."""
    mean, low, high = mean_over_seeds(list(values))
    return mean, low, high


def times(interval: Interval) -> str:
    """A ratio of which the logarithm has this interval."""
    if math.isnan(interval[0]):
        return "not measured"
    mean, low, high = map(math.exp, interval)
    return f"{mean:.2f} ({low:.2f} to {high:.2f})"


def points(interval: Interval) -> str:
    """A difference of accuracies in points."""
    mean, low, high = (100 * value for value in interval)
    return f"{mean:+.1f} ({low:+.1f} to {high:+.1f})"


def main(root: Path) -> None:
    """Print the table."""
    runs = read(root)
    seeds = sorted({seed for _, _, seed in runs})
    full = [
        seed for seed in seeds if all((kind, n, seed) in runs for kind in KINDS for n in AGENTS)
    ]
    print(f"{len(runs)} finished runs; all {len(KINDS) * len(AGENTS)} cells have seeds {full}\n")
    heads = (
        "loss", "N", "norm at step 1 / N = 1", "KL of step 1 / N = 1", "ends at, %",
        "loses against N = 1", "breaks",
    )  # fmt: skip
    print(f"| {' | '.join(heads)} |")
    print("|---|---:|---|---|---|---|---|")
    for kind in KINDS:
        for n in AGENTS:
            mine = [runs[kind, n, seed] for seed in full]
            ones = [runs[kind, 1, seed] for seed in full]
            pairs = list(zip(mine, ones, strict=True))
            norm, kl = (
                spread([math.log(first_step(a, name) / first_step(b, name)) for a, b in pairs])
                for name in (NORM, KL)
            )
            ends = [run.evaluations[-1][OWN] for run in mine]
            loss = spread([b.evaluations[-1][OWN] - a.evaluations[-1][OWN] for a, b in pairs])
            parts = [
                kind, str(n), "1" if n == 1 else times(norm), "1" if n == 1 else times(kl),
                " ".join(f"{100 * end:.0f}" for end in ends), "" if n == 1 else points(loss),
                breaks(loss) if n == max(AGENTS) else "",
            ]  # fmt: skip
            print(f"| {' | '.join(parts)} |")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "runs/magnitude"))
