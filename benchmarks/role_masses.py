"""How three measures of a role's part in an update agree, on short runs of the pocket model.

    python -m benchmarks.role_masses [docs/data/role-masses.json] [--seeds 10] [--steps 3]

Of every role, step and run: the role's share in the sum of gradient norms, in that of squared
norms, and of trained tokens times the size of the advantage. The table has Spearman's rank
correlations over the shares of the first roles (the last one's follows from them), and how often
two measures name the same largest role.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Sequence
from itertools import combinations
from pathlib import Path

import numpy as np
import torch
from scipy.stats import spearmanr

from benchmarks.harness.record import write_table
from flowzoo.baselines.settings.config import TrainConfig
from flowzoo.baselines.training.metrics import MetricRow
from flowzoo.baselines.training.trainer import train

MEASURES = {
    "grad/mass": "norms",
    "grad/mass_square": "squared norms",
    "advantage_mass": "tokens × advantage",
}
WORKFLOWS = {
    "voting": ("generator", "aggregator"),
    "orch_workers": ("orchestrator", "worker", "synthesizer"),
}
"""Workflows, and their roles."""
COLUMNS = ("measures", "workflow", "steps", "rank correlation", "same largest role")


def shares_of(workflow: str, seed: int, steps: int) -> list[np.ndarray]:
    """The shares of the roles by every measure, step by step, of one run."""
    shares: list[np.ndarray] = []
    roles = WORKFLOWS[workflow]

    def note(row: MetricRow) -> None:
        measured = [[row.get(f"{name}/{role}/shared") for role in roles] for name in MEASURES]
        if not any(share is None for line in measured for share in line):
            shares.append(np.array(measured, np.float64))

    with tempfile.TemporaryDirectory() as out:
        config = TrainConfig(
            workflow=workflow, sharing=("shared",), problems=4, samples=4, steps=steps, seed=seed,
            eval_problems=1, eval_every=steps, threads=1, probe_every=0, update_effect=False,
            transcripts_every=steps, max_tokens=64, out=f"{out}/run",
        )  # fmt: skip
        train(config, note)
    return shares


def table_rows(workflow: str, shares: Sequence[np.ndarray]) -> list[list[str]]:
    """The rows of a workflow; `shares` are by measure and role."""
    values = np.stack(shares, 1)  # (measures, steps, roles)
    rows: list[list[str]] = []
    for (i, left), (j, right) in combinations(enumerate(MEASURES.values()), 2):
        rank = spearmanr(values[i, :, :-1].ravel(), values[j, :, :-1].ravel()).statistic
        same = (values[i].argmax(1) == values[j].argmax(1)).mean()
        cells = [str(values.shape[1]), f"{rank:.2f}".replace("-", "−"), f"{100 * same:.0f} %"]
        rows.append([f"{left}, {right}", workflow, *cells])
    return rows


def main() -> None:
    """Print the table, and write it where the command line says."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("path", type=Path, nargs="?", help="file of the table")
    parser.add_argument("--seeds", type=int, default=10, help="runs of each workflow")
    parser.add_argument("--steps", type=int, default=3, help="steps of each run")
    words = parser.parse_args()
    torch.set_num_threads(1)
    rows: list[list[str]] = []
    for workflow in WORKFLOWS:
        runs = [shares_of(workflow, seed, words.steps) for seed in range(words.seeds)]
        rows += table_rows(workflow, [share for run in runs for share in run])
    for row in rows:
        print(" | ".join(row))
    if words.path:
        write_table(words.path, "python -m benchmarks.role_masses", COLUMNS, rows)


if __name__ == "__main__":
    main()
