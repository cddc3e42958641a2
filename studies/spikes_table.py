"""Spikes of global and of role-wise advantages, from the runs of the matrix `spikes`.

    flowzoo matrix spikes
    python -m studies.spikes_table [runs/spikes]

Two figures of every run, each added up or averaged over its policies (one a role):

* steps above 5 medians: steps after the fifth whose gradient norm is above five times the median of
  the 50 before (those below a twentieth of the median of the largest tenth left out); what the
  trainer called a spike when the rule was fixed. `grad/spike` asks for more (docs/diagnostics.md);
* swing: the largest norm of the steps after the fifth over their median, as a natural logarithm.

The verdict of a workflow and figure, global less role-wise: the mean difference over seeds with a
95 % interval (10,000 bootstrap resamples of the seeds, which pair the runs). Shown if it lies above
0, not shown if below, else undecided. Fixed before the runs.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import median

import numpy as np

from flowzoo.baselines.report.cells import CellData, group_cells
from flowzoo.baselines.report.reading import read_runs
from flowzoo.baselines.run.reading import RunData

FIRST = 5
"""Steps that no figure looks at: the trainer calls no spike in them."""
RESAMPLES = 10_000


def policies(run: RunData) -> list[str]:
    """Names of the policies whose norms a run recorded."""
    start = "learn/grad_norm/"
    return sorted(
        {name.removeprefix(start) for row in run.rows for name in row if name.startswith(start)}
    )


def spikes(run: RunData) -> float:
    """Steps with a spike, added up over policies."""
    found = 0
    for name in policies(run):
        norms = [row[n] for row in run.rows if (n := f"learn/grad_norm/{name}") in row]
        for place in range(FIRST, len(norms)):
            earlier = norms[:place]
            largest = sorted(earlier)[-max(FIRST, place // 10) :]
            usual = [one for one in earlier if one > 0 and one >= 0.05 * median(largest)][-50:]
            found += bool(usual) and norms[place] > 5 * median(usual)
    return float(found)


def swing(run: RunData) -> float:
    """Largest norm over the median one, as a logarithm, mean over policies that have norms."""
    found: list[float] = []
    for name in policies(run):
        norms = [row.get(f"learn/grad_norm/{name}") for row in run.rows][FIRST:]
        known = [norm for norm in norms if norm]
        if known:
            found.append(math.log(max(known) / float(np.median(known))))
    return float(np.mean(found)) if found else math.nan


def interval(differences: Sequence[float]) -> tuple[float, float]:
    """95 % percentile interval of the mean over resampled seeds."""
    values = np.asarray(differences)
    draws = np.random.default_rng(0).integers(len(values), size=(RESAMPLES, len(values)))
    low, high = np.quantile(values[draws].mean(axis=1), [0.025, 0.975])
    return float(low), float(high)


def verdict(low: float, high: float) -> str:
    """Verdict of the interval on global advantages being the worse ones."""
    return "shown" if low > 0 else "not shown" if high < 0 else "undecided"


def lines(whole: CellData, split: CellData) -> list[str]:
    """The rows of one workflow."""
    by_seed = dict(zip(split.seeds, split.runs, strict=True))
    pairs = [
        (run, by_seed[seed])
        for seed, run in zip(whole.seeds, whole.runs, strict=True)
        if seed in by_seed
    ]
    rows: list[str] = []
    for title, figure in (("steps above 5 medians", spikes), ("swing", swing)):
        values = [(figure(one), figure(other)) for one, other in pairs]
        means = np.mean(values, axis=0)
        low, high = interval([one - other for one, other in values])
        rows.append(
            f"| {whole.axis('workflow')} | {title} | {len(pairs)} | {means[0]:.2f} | {means[1]:.2f}"
            f" | {means[0] - means[1]:+.2f} ({low:+.2f} to {high:+.2f}) | {verdict(low, high)} |"
        )
    return rows


def main() -> None:
    """Print the table."""
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else "runs/spikes")
    cells = group_cells(read_runs([folder]))
    print("| workflow | figure | seeds | global | role-wise | difference (95 %) | verdict |")
    print("|---|---|---:|---:|---:|---|---|")
    for cell in cells:
        for other in cells:
            same = cell.axis("workflow") == other.axis("workflow")
            if same and cell.settings.get("advantage") and not other.settings.get("advantage"):
                print("\n".join(lines(cell, other)))


if __name__ == "__main__":
    main()
