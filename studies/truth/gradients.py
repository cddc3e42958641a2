"""Tables of gradients and of what they do: `spikes`, `amplification` and `capture`."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np

from flowzoo.aliases import Floats
from flowzoo.baselines.diagnostics.amplification import Amplification, amplification
from flowzoo.baselines.diagnostics.capture import find_captures
from flowzoo.baselines.training.metrics import spike
from studies.truth.common import PLANTED, Options, upper_bound
from studies.truth.simulation import (
    simulate_capture,
    simulate_gram,
)


def spikes_table(options: Options) -> Iterator[str]:
    """Yield the lines of the table."""
    yield (
        f"{'norms':36} {'runs with one':>13} {'<':>6} {'planted found':>14} {'by 5 medians':>13}"
    )
    for name, spread, solved, planted in (
        ("learns", 0.3, False, 0), ("learns, wide norms", 0.6, False, 0),
        ("learns, very wide norms", 1.0, False, 0), ("solved after 40 steps", 0.3, True, 0),
        ("learns, 3 spikes", 0.3, False, 3), ("learns, wide norms, 3 spikes", 0.6, False, 3),
        ("solved after 40 steps, 3 spikes", 0.3, True, 3),
    ):  # fmt: skip
        rng = np.random.default_rng([options.seed, int(solved)])
        runs = hits = alone = 0
        for _ in range(options.simulations):
            norms = np.exp(spread * rng.standard_normal(100))
            if solved:  # most steps have no lesson left; some have one as large as ever
                quiet = (np.arange(100) >= 40) & (rng.random(100) < 0.85)
                norms = np.where(quiet, 0.01 * norms, norms)
            places = 10 + rng.permutation(90)[:planted]
            norms[places] = 12 * np.exp(0.1 * rng.standard_normal(planted))
            called = {n for n in range(100) if spike(norms[n], norms[:n].tolist())}
            runs += bool(called - set(places.tolist()))
            medians = [np.median(norms[max(0, n - 50) : n]) for n in range(5, 100)]
            alone += bool(set(np.flatnonzero(norms[5:] > 5 * np.array(medians)) + 5) - set(places))
            hits += len(called & set(places.tolist()))
        found = f"{hits / (planted * options.simulations):14.1%}" if planted else "             -"
        count = options.simulations
        yield (
            f"{name:36} {runs / count:13.1%} {upper_bound(runs, count):6.1%} {found} "
            f"{alone / count:13.1%}"
        )


LENGTHS = ((1, 1, 1), (16, 4, 1), (1, 1, 0), (1, 1, 1, 1, 1), (16, 8, 4, 2, 1))
"""Relative lengths of the slots' expected gradients."""


def amplification_table(options: Options) -> Iterator[str]:
    """Yield the lines of the table."""
    yield (
        f"{'lengths':12} {'slots are':10} {'SNR':>5} {'probes':>6} {'truth':>6} {'value':>6} "
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
                    yield amplification_line(title, means, snr, probes, options)
    apart = np.array([16, 4, 1]) / math.sqrt(91)
    for snr in (10.0, 1.0, 0.3):
        means = [np.roll(apart, run)[:, None] * np.eye(1, 3) for run in range(3)]
        yield amplification_line(f"{'16:4:1':12} {'turned':10}", means, snr, 12, options)


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


def capture_table(options: Options) -> Iterator[str]:
    """Yield the lines of the table."""
    yield (
        f"{'planted':26} {'captured by voters':>20} {'<':>6} {'mass':>6} {'form':>6} "
        f"{'by aggregator':>14}"
    )
    for place, (name, planted) in enumerate(PLANTED["captures"].items()):
        rng = np.random.default_rng([options.seed, place])
        voters, others = [], []
        for _ in range(options.simulations):
            run = simulate_capture(rng=rng, **planted)
            for one in find_captures(*run, draws=200):
                (voters if one.by == "generator" else others).append(one)
        found = sum(one.captured for one in voters)
        yield (
            f"{name:26} {found:6}/{len(voters):<5} {found / len(voters):6.1%} "
            f"{upper_bound(found, len(voters)):6.1%} "
            f"{np.mean([one.dominant for one in voters]):6.1%} "
            f"{np.mean([one.moved for one in voters]):6.1%} "
            f"{np.mean([one.captured for one in others]):14.1%}"
        )
