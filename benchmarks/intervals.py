"""Intervals of evaluations checked by simulation, and beside the package `errorbars`.

    python -m benchmarks.intervals                        # coverage, rejections, planned numbers
    python -m benchmarks.intervals --peer PEER/bin/python # the same scores by `errorbars`

A problem has an accuracy, drawn from a beta distribution, and its episodes are right with this
probability: a cluster. `icc` is the correlation of two episodes of a problem.
"""

from __future__ import annotations

import argparse
import json
import subprocess
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from flowzoo.agents.evaluation import power
from flowzoo.agents.evaluation.intervals import (
    Z,
    mean_interval,
    number_interval,
    paired_interval,
    share_interval,
)
from flowzoo.aliases import Floats

SIMULATIONS = 1000
SEED = 0


@dataclass(frozen=True, slots=True)
class Options:
    """Arguments of the benchmark."""

    peer: str
    out: Path | None


@dataclass(frozen=True, slots=True)
class Design:
    """A simulated evaluation."""

    name: str
    problems: int
    samples: int
    right: float
    """Mean accuracy."""
    icc: float

    def draw(self, rng: np.random.Generator) -> Floats:
        """Scores (problems, samples)."""
        weight = 1 / self.icc - 1
        chances = rng.beta(self.right * weight, (1 - self.right) * weight, self.problems)
        return (rng.random((self.problems, self.samples)) < chances[:, None]).astype(np.float64)


DESIGNS = (
    Design("50 clusters of 10", 50, 10, 0.5, 0.574),
    Design("50 clusters of 10, even difficulties", 50, 10, 0.5, 1 / 3),
    Design("100 clusters of 10", 100, 10, 0.3, 0.5),
    Design("20 clusters of 10", 20, 10, 0.5, 0.5),
    Design("AIME: 30 x 16", 30, 16, 0.4, 0.5),
    Design("AIME, hard: 30 x 16", 30, 16, 0.1, 0.5),
    Design("MATH-500: 500 x 4", 500, 4, 0.7, 0.5),
)


def holds(ends: tuple[float, float], truth: float) -> bool:
    """True if an interval holds the truth."""
    return ends[0] <= truth <= ends[1]


def coverage(design: Design) -> dict[str, float]:
    """Shares of intervals that hold the true accuracy: clustered, and of independent episodes."""
    rng = np.random.default_rng(SEED)
    clustered = naive = 0
    for _ in range(SIMULATIONS):
        scores = design.draw(rng)
        clustered += holds(mean_interval(scores.tolist()), design.right)
        wilson = share_interval(float(scores.mean()), scores.size)
        naive += holds((wilson.low, wilson.high), design.right)
    return {"clustered": clustered / SIMULATIONS, "naive": naive / SIMULATIONS}


def rejections(design: Design) -> dict[str, float]:
    """Shares of tests that find a difference between two policies that do not differ in accuracy.

    Both play their own 10 episodes of every problem, and have accuracies of their own on it.
    """
    rng = np.random.default_rng(SEED + 1)
    paired = naive = 0
    for _ in range(SIMULATIONS):
        first, second = design.draw(rng), design.draw(rng)
        ends = paired_interval(first.mean(axis=1).tolist(), second.mean(axis=1).tolist())
        paired += ends is not None and not holds(ends, 0.0)
        difference = (second - first).ravel()
        half = Z * float(difference.std(ddof=1)) / difference.size**0.5
        naive += abs(float(difference.mean())) > half
    return {"paired by problem": paired / SIMULATIONS, "naive": naive / SIMULATIONS}


def planned_power(points: float, samples: int) -> dict[str, float]:
    """Share of simulated comparisons that find `points` with the planned number of problems.

    Accuracies are even from 0 to 1; for the planned correlation, that share of the problems has one
    accuracy for both policies. The better one also solves a share of what it would not.
    """
    problems = power.problem_count(points, power.EVEN, samples)
    rng = np.random.default_rng(SEED + 2)
    lift = 2 * points / 100
    found = 0
    for _ in range(SIMULATIONS):
        before = rng.random(problems)
        shared = rng.random(problems) < power.CORRELATION
        after = np.where(shared, before, rng.random(problems))
        after += lift * (1 - after)
        scores = [rng.binomial(samples, chances) / samples for chances in (before, after)]
        ends = paired_interval(scores[0].tolist(), scores[1].tolist())
        found += ends is not None and ends[0] > 0
    return {"problems": problems, "samples": samples, "found": found / SIMULATIONS}


_PEER = """
import json, sys
import numpy as np
from errorbars.power import questions_needed
from errorbars.stats import cluster_robust_se, t_for_confidence, wilson_ci
work = json.load(sys.stdin)
scores = np.array(work["scores"])
names = np.repeat(np.arange(len(scores)), scores.shape[1])
wilson = wilson_ci(int(scores[:, 0].sum()), len(scores))
plan = questions_needed(0.05, variance=work["variance"], rho=work["rho"])
print(json.dumps({
    "clustered SE": cluster_robust_se(scores.ravel(), names),
    "t": t_for_confidence(0.95, len(scores) - 1),
    "Wilson": [wilson.ci_low, wilson.ci_high],
    "problems for 5 points": plan.n_questions,
}))
"""


def beside_peer(python: str) -> dict[str, dict[str, object]]:
    """Figures of the same scores by flowzoo and by `errorbars`."""
    scores = DESIGNS[4].draw(np.random.default_rng(SEED))
    variance = 0.25
    # One sample, and one correlation of single scores there: `2 V (1 - rho)` of both designs.
    rho = 1 - power.difference_variance(power.EVEN, 1) / (2 * variance)
    work = json.dumps({"scores": scores.tolist(), "variance": variance, "rho": rho})
    peer = subprocess.run(
        [python, "-c", _PEER], input=work, capture_output=True, text=True, check=True
    )
    means = scores.mean(axis=1)
    low, high = number_interval(means)
    half = (high - low) / 2
    error = float(means.std(ddof=1)) / len(means) ** 0.5
    wilson = share_interval(float(scores[:, 0].mean()), len(scores))
    ours: dict[str, object] = {
        "clustered SE": error,
        "t": half / error,
        "Wilson": [wilson.low, wilson.high],
        "problems for 5 points": power.problem_count(5, power.EVEN, 1),
    }
    return {"flowzoo": ours, "errorbars": json.loads(peer.stdout)}


def read_options() -> Options:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--peer", default="", help="Python with the package errorbars")
    parser.add_argument("--out", type=Path, help="JSON file of the figures")
    given = parser.parse_args()
    return Options(given.peer, given.out)


def main() -> None:
    """Print the figures, and write them."""
    options = read_options()
    figures: dict[str, object] = {
        "simulations": SIMULATIONS,
        "coverage": {design.name: coverage(design) for design in DESIGNS},
        "true null rejected": {design.name: rejections(design) for design in DESIGNS[:2]},
        "planned power": [planned_power(*plan) for plan in ((10.0, 1), (5.0, 4), (5.0, 16))],
    }
    if options.peer:
        figures["beside errorbars"] = beside_peer(options.peer)
    text = json.dumps(figures, indent=1)
    print(text)
    if options.out:
        options.out.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
