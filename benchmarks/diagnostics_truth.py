"""How often are the verdicts of `flowzoo.baselines.diagnostics` wrong, on runs of known truth?

    OMP_NUM_THREADS=1 python benchmarks/diagnostics_truth.py                  # all, some minutes
    OMP_NUM_THREADS=1 python benchmarks/diagnostics_truth.py --parts cliff --simulations 1000

`cliff`: cells of 20 evaluations. First without a fall (every cliff is a false positive), then with
a true fall from 60 %. Columns: cliffs called, their rate with the upper end of its exact 95 %
interval (Clopper and Pearson, Biometrika 26 (1934) 404), cells without verdict, mean error of the
cross-fitted and of the naive peak against the true one with its standard error, the standard error
as reported and as found over the simulations, and how often the reported interval has the truth.
The last rows have more than the noise of the items: seeds whose falls differ (mean 0, standard
deviation given), and single runs whose true accuracy wobbles from evaluation to evaluation.

`amplification`: probes of 8 blocks, one or ten pooled; gradients of slots have the lengths given,
in directions of one cosine. Signal to noise is that of the root mean square of the slots. Columns:
the value expected, medians of the corrected and of the naive value, how often the 95 % interval has
the truth, how often it is bounded, its median width where it is; how often the interval of the sum
over that of orthogonal slots has its truth; the effective number of slots, and its median where the
interval is bounded. Rows `turned` pool probes of three runs, in each of which another slot is the
longest.

`capture`: 100 updates of three voters and an aggregator, 200 replies each at both ends, planted
with neither, one or both halves of the definition. Columns: runs in which the voters captured the
aggregator, with the bound as above; how often either half was found; captures the other way.

Simulated verdicts take 200 resamples instead of 2000; `cliff` begins with what that changes.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt
import tyro
from scipy.special import betaincinv

from flowzoo.baselines.diagnostics.amplification import Amplification, amplification
from flowzoo.baselines.diagnostics.capture import find_captures
from flowzoo.baselines.diagnostics.cliff import FELL, LAST, Cliff, find_cliff
from flowzoo.baselines.diagnostics.cross_fit import ends_after
from flowzoo.baselines.diagnostics.simulation import (
    course,
    simulate_capture,
    simulate_gram,
    simulate_seeds,
)

Floats = npt.NDArray[np.float64]
Truth = Callable[[np.random.Generator], Sequence[Floats]]
EVALUATIONS = 20
LENGTHS = ((1, 1, 1), (16, 4, 1), (1, 1, 0), (1, 1, 1, 1, 1), (16, 8, 4, 2, 1))
"""Relative lengths of the slots' expected gradients."""
RESAMPLES = 200


@dataclass(frozen=True)
class Options:
    """What is simulated."""

    parts: tuple[Literal["cliff", "amplification", "capture"], ...] = (
        "cliff", "amplification", "capture",
    )  # fmt: skip
    """Tables to print."""
    simulations: int = 1000
    """Cells of each row of noise; runs of each row of the other tables."""
    power_simulations: int = 300
    """Cells of each other row of the cliff table."""
    items: tuple[int, ...] = (100, 500, 1412)
    """Held-out items of the cliff table."""
    seed: int = 0
    """Of everything random."""


class Row(NamedTuple):
    """One row of the cliff table before it is simulated."""

    name: str
    seeds: int
    truth: Truth


def noise_rows() -> list[Row]:
    """Nothing but the noise of the items."""
    flat = np.full(EVALUATIONS, 0.6)
    rising = np.linspace(0.4, 0.6, EVALUATIONS)
    noise = {"constant": flat, "rises and stays": course(0.0, EVALUATIONS), "rises": rising}
    return [
        Row(name, seeds, lambda _, s=seeds, c=accuracy: [c] * s)
        for seeds in (1, 3)
        for name, accuracy in noise.items()
    ]


def falling_rows() -> list[Row]:
    """A true fall."""
    return [
        Row(f"falls by {drop:.0%}", seeds, lambda _, s=seeds, d=drop: _falling(s, d))
        for seeds in (1, 3)
        for drop in (0.05, 0.10, 0.15, 0.20)
    ]


def differing_rows() -> list[Row]:
    """No fall on average, but more than the noise of the items."""
    rows = [Row(f"seeds differ by {d:.0%}", 3, _differing(d)) for d in (0.05, 0.1)]
    return rows + [Row(f"wobbles by {d:.0%}", 1, _wobbling(d)) for d in (0.01, 0.02, 0.03)]


def _falling(seeds: int, drop: float) -> list[Floats]:
    return [course(drop, EVALUATIONS)] * seeds


def _differing(deviation: float) -> Truth:
    """Three seeds that rise, stay, and end higher or lower."""
    return lambda rng: [
        course(float(np.clip(fall, -0.35, 0.55)), EVALUATIONS)
        for fall in deviation * rng.standard_normal(3)
    ]


def _wobbling(deviation: float) -> Truth:
    """A plateau whose true accuracy differs from evaluation to evaluation."""
    return lambda rng: [0.6 + deviation * rng.standard_normal(EVALUATIONS)]


def cliff_table(options: Options) -> None:
    """Print the table."""
    resamples_check(options)
    print(
        f"\n{'items':>5} {'seeds':>5} {'truth':20} {'cliffs':>11} {'rate':>6} {'<':>6} "
        f"{'untold':>6} {'peak error':>14} {'naive peak':>14} {'se':>6} {'true':>6} {'covers':>6}"
    )
    for rows, count in (
        (noise_rows(), options.simulations),
        (falling_rows(), options.power_simulations),
        (differing_rows(), options.power_simulations),
    ):
        for items in options.items:
            for row in rows:
                rng = np.random.default_rng([options.seed, items])
                print(cliff_line(row, items, count, rng), flush=True)


def cliff_line(row: Row, items: int, simulations: int, rng: np.random.Generator) -> str:
    """One row of the table."""
    cells: list[Cliff] = []
    tops: list[float] = []
    falls: list[float] = []
    for number in range(simulations):
        truth = row.truth(rng)
        tops.append(float(np.mean([np.max(one) for one in truth])))
        falls.append(float(np.mean([true_drop(one) for one in truth])))
        scores = simulate_seeds(truth, items, rng)
        cells.append(find_cliff(scores, range(EVALUATIONS), resamples=RESAMPLES, seed=number))
    found = sum(cell.verdict in FELL for cell in cells)
    untold = sum(cell.verdict.startswith("not enough") for cell in cells)
    peak = np.array([cell.peak for cell in cells]) - tops
    naive = np.array([cell.naive_peak for cell in cells]) - tops
    drops = np.array([cell.drop for cell in cells])
    covers = np.mean([c.low <= fall <= c.high for c, fall in zip(cells, falls, strict=True)])
    return (
        f"{items:5} {row.seeds:5} {row.name:20} {found:5}/{simulations:<5} "
        f"{found / simulations:6.1%} {upper_bound(found, simulations):6.1%} "
        f"{untold / simulations:6.1%} {error(peak)} {error(naive)} "
        f"{np.mean([cell.se for cell in cells]):6.2%} {drops.std(ddof=1):6.2%} {covers:6.1%}"
    )


def true_drop(course: Floats) -> float:
    """What a course loses after its peak, by the definition of the verdict."""
    return float(course.max() - course @ ends_after(len(course), LAST)[:, course.argmax()])


def resamples_check(options: Options) -> None:
    """Print the standard error from few resamples beside that from as many as a verdict takes."""
    rng = np.random.default_rng(options.seed)
    for items in options.items:
        scores = simulate_seeds([course(0.05, EVALUATIONS)], items, rng)
        start = time.process_time()
        full = [find_cliff(scores, range(EVALUATIONS), seed=n).se for n in range(10)]
        middle = time.process_time()
        few = [
            find_cliff(scores, range(EVALUATIONS), resamples=RESAMPLES, seed=n).se
            for n in range(10)
        ]
        end = time.process_time()
        print(
            f"{items} items, 1 seed: se {np.mean(full):.3%} +- {np.std(full):.3%} in "
            f"{100 * (middle - start):.0f} ms with 2000 resamples, {np.mean(few):.3%} +- "
            f"{np.std(few):.3%} in {100 * (end - middle):.0f} ms with {RESAMPLES}"
        )


def amplification_table(options: Options) -> None:
    """Print the table."""
    print(
        f"\n{'lengths':12} {'slots are':10} {'SNR':>5} {'probes':>6} {'truth':>6} {'value':>6} "
        f"{'naive':>6} {'covers':>7} {'bounded':>8} {'width':>6} {'over':>7} {'eff.':>5} "
        f"{'found':>6}"
    )
    for lengths in LENGTHS:
        apart = np.array(lengths, np.float64)
        apart /= math.sqrt(np.mean(apart**2))
        for name, cosine in (("aligned", 1.0), ("cosine 0.5", 0.5), ("orthogonal", 0.0)):
            gram = cosine + (1 - cosine) * np.eye(len(apart))
            # Rows whose inner products are `gram`; the tiny diagonal keeps the root real.
            ways = np.linalg.cholesky(gram + 1e-12 * np.eye(len(apart))).astype(np.float64)
            title = f"{':'.join(map(str, lengths)):12} {name:10}"
            for snr in (10.0, 1.0, 0.3, 0.1):
                for probes in (1, 10):
                    means = [apart[:, None] * ways]
                    print(amplification_line(title, means, snr, probes, options), flush=True)
    apart = np.array([16, 4, 1]) / math.sqrt(91)
    for snr in (10.0, 1.0, 0.3):
        means = [np.roll(apart, run)[:, None] * np.eye(1, 3) for run in range(3)]
        print(amplification_line(f"{'16:4:1':12} {'turned':10}", means, snr, 12, options))


def amplification_line(
    title: str, of_run: Sequence[Floats], snr: float, probes: int, options: Options
) -> str:
    """One row of the table; `of_run` are the expected gradients of each run that is pooled."""
    means, slots = of_run[0], len(of_run[0])
    rng = np.random.default_rng([options.seed, slots, round(10 * snr), probes])
    runs = [probe % len(of_run) for probe in range(probes)]
    squares = np.sum(means**2, axis=1)
    total = math.sqrt(float(np.sum(means @ means.T)))
    truth, over = slots * total / np.sqrt(squares).sum(), total / math.sqrt(squares.sum())
    effective = np.sqrt(squares).sum() ** 2 / squares.sum()
    found: list[Amplification] = []
    for _ in range(options.simulations):
        grams = [simulate_gram(of_run[run], 1 / snr, 8, rng) for run in runs]
        found.append(amplification(grams, runs=runs, shuffles=0))
    values = np.array([one.value for one in found])
    widths = np.array([one.high - one.low for one in found])
    bounded = np.isfinite(widths)
    width = f"{np.median(widths[bounded]):6.2f}" if bounded.any() else "     -"
    number = np.array([one.effective for one in found])
    counted = f"{np.median(number[bounded]):6.2f}" if bounded.any() else "     -"
    return (
        f"{title} {snr:5g} {probes:6} {truth:6.2f} {np.nanmedian(values):6.2f} "
        f"{np.median([one.naive for one in found]):6.2f} "
        f"{np.mean([one.low <= truth <= one.high for one in found]):7.1%} "
        f"{bounded.mean():8.1%} {width} "
        f"{np.mean([one.over_low <= over <= one.over_high for one in found]):7.1%} "
        f"{effective:5.2f} {counted}"
    )


CAPTURES: dict[str, dict[str, float]] = {
    "mass and form": {"excess": 0.25, "moved": 0.8},
    "weak mass and form": {"excess": 0.15, "moved": 0.8},
    "mass, half the way": {"excess": 0.25, "moved": 0.5},
    "mass alone": {"excess": 0.25, "moved": 0.0},
    "mass alone, roles alike": {"excess": 0.25, "moved": 0.0, "apart": 0.0},
    "form alone": {"excess": 0.0, "moved": 0.8},
    "form, noisy mass": {"excess": 0.0, "moved": 0.8, "noise": 0.1},
    "noise alone": {"excess": 0.0, "moved": 0.0},
    "noise alone, roles alike": {"excess": 0.0, "moved": 0.0, "apart": 0.0},
}
"""What `simulate_capture` plants in each row."""


def capture_table(options: Options) -> None:
    """Print the table."""
    print(
        f"\n{'planted':26} {'captured by voters':>20} {'<':>6} {'mass':>6} {'form':>6} "
        f"{'by aggregator':>14}"
    )
    for place, (name, planted) in enumerate(CAPTURES.items()):
        rng = np.random.default_rng([options.seed, place])
        voters, others = [], []
        for _ in range(options.simulations):
            run = simulate_capture(planted["excess"], planted["moved"], rng,
                                   noise=planted.get("noise", 0.05),
                                   apart=planted.get("apart", 1.0))  # fmt: skip
            for one in find_captures(*run, draws=200):
                (voters if one.by == "generator" else others).append(one)
        found = sum(one.captured for one in voters)
        print(
            f"{name:26} {found:6}/{len(voters):<5} {found / len(voters):6.1%} "
            f"{upper_bound(found, len(voters)):6.1%} "
            f"{np.mean([one.dominant for one in voters]):6.1%} "
            f"{np.mean([one.moved for one in voters]):6.1%} "
            f"{np.mean([one.captured for one in others]):14.1%}",
            flush=True,
        )


def upper_bound(found: int, of: int) -> float:
    """Upper end of the exact two-sided 95 % interval of a rate."""
    return float(betaincinv(found + 1, of - found, 0.975)) if found < of else 1.0


def error(values: Floats) -> str:
    """Mean with its standard error, in points."""
    return f"{100 * values.mean():+6.2f} +-{100 * values.std(ddof=1) / math.sqrt(len(values)):5.2f}"


def main(options: Options) -> None:
    """Simulate and print."""
    tables = {
        "cliff": cliff_table, "amplification": amplification_table, "capture": capture_table,
    }  # fmt: skip
    for part in options.parts:
        tables[part](options)


if __name__ == "__main__":
    main(tyro.cli(Options))
