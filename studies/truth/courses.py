"""Tables of accuracies over time: `cliff` and `falls`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple, get_args

import numpy as np
import numpy.typing as npt

from flowzoo.aliases import Floats
from flowzoo.baselines.diagnostics.cliff import (
    FELL,
    LAST,
    THRESHOLD,
    Cliff,
    CliffVerdict,
    find_cliff,
)
from flowzoo.baselines.diagnostics.watch import fall_alarms
from flowzoo.baselines.stats import ends_after
from studies.truth.common import EVALUATIONS, PLANTED, RESAMPLES, Options, error, upper_bound
from studies.truth.simulation import (
    course,
    simulate,
    simulate_seeds,
)

WATCHED = 24
"""Evaluations of a run that is watched."""
Truth = Callable[[np.random.Generator], Sequence[Floats]]


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
    """More than the noise of the items: seeds that differ, and runs that wobble, some of which
    truly end below their own peak.
    """
    rows = [Row(f"levels differ by {d:.0%}", 3, _levels(d)) for d in (0.05, 0.1)]
    rows += [Row(f"seeds differ by {d:.0%}", 3, _differing(d)) for d in (0.05, 0.1)]
    rows += [Row(f"wobbles by {d:.0%}", 1, _wobbling(d)) for d in (0.01, 0.02, 0.03)]
    return rows + [Row(f"wobbles by {d:.0%}, kept", 1, _kept(_wobbling(d))) for d in (0.02, 0.03)]


def _falling(seeds: int, drop: float) -> list[Floats]:
    return [course(drop, EVALUATIONS)] * seeds


def _levels(deviation: float) -> Truth:
    """Three seeds that rise to levels of their own and stay: none of them falls."""
    return lambda rng: [
        course(0.0, EVALUATIONS, float(np.clip(0.6 + apart, 0.25, 0.95)))
        for apart in deviation * rng.standard_normal(3)
    ]


def _differing(deviation: float) -> Truth:
    """Three seeds that rise, stay, and end higher or lower."""
    return lambda rng: [
        course(float(np.clip(fall, -0.35, 0.55)), EVALUATIONS)
        for fall in deviation * rng.standard_normal(3)
    ]


def _kept(truth: Truth) -> Truth:
    """Those of single runs that lost too little for a call to be right; else they are few."""

    def draw(rng: np.random.Generator) -> Sequence[Floats]:
        while true_drop((found := truth(rng))[0]) >= THRESHOLD / 2:
            pass
        return found

    return draw


def _wobbling(deviation: float) -> Truth:
    """A plateau whose true accuracy differs from evaluation to evaluation."""
    return lambda rng: [0.6 + deviation * rng.standard_normal(EVALUATIONS)]


def cliff_table(options: Options) -> Iterator[str]:
    """Yield the lines of the table."""
    yield (
        f"{'items':>5} {'seeds':>5} {'truth':20} {'lost <2.5':>9} {'called':>6} {'<':>6} "
        f"{'2.5 to 5':>9} {'5 or more':>9} {'untold':>6} {'peak error':>14} {'naive peak':>14} "
        f"{'se':>6} {'true':>6} {'covers':>6}"
    )
    for rows, count in (
        (noise_rows(), options.simulations),
        (falling_rows(), options.power_simulations),
        (differing_rows(), options.simulations),
    ):
        for items in options.items:
            for row in rows:
                rng = np.random.default_rng([options.seed, items])
                yield cliff_line(row, items, count, rng)


def cliff_line(row: Row, items: int, simulations: int, rng: np.random.Generator) -> str:
    """One row of the table."""
    cells: list[Cliff] = []
    tops: list[float] = []
    falls: list[float] = []
    for number in range(simulations):
        truth = row.truth(rng)
        tops.append(float(np.mean([np.max(one) for one in truth])))
        falls.append(round(float(np.mean([true_drop(one) for one in truth])), 9))
        scores = simulate_seeds(truth, items, rng)
        cells.append(find_cliff(scores, range(EVALUATIONS), resamples=RESAMPLES, seed=number))
    called = np.array([cell.verdict in FELL for cell in cells])
    lost = np.array(falls)
    little, much = lost < THRESHOLD / 2, lost >= THRESHOLD
    untold = sum(cell.verdict.startswith("not enough") for cell in cells)
    peak = np.array([cell.peak for cell in cells]) - tops
    naive = np.array([cell.naive_peak for cell in cells]) - tops
    drops = np.array([cell.drop for cell in cells])
    covers = np.mean([c.low <= fall <= c.high for c, fall in zip(cells, falls, strict=True)])
    false, of = int(called[little].sum()), int(little.sum())
    rates = f"{false / of:6.1%} {upper_bound(false, of):6.1%}" if of else f"{'-':>6} {'-':>6}"
    return (
        f"{items:5} {row.seeds:5} {row.name:20} {counted(called, little)} {rates} "
        f"{counted(called, ~little & ~much)} {counted(called, much)} "
        f"{untold / simulations:6.1%} {error(peak)} {error(naive)} "
        f"{np.mean([cell.se for cell in cells]):6.2%} {drops.std(ddof=1):6.2%} {covers:6.1%}"
    )


def counted(called: npt.NDArray[np.bool_], of: npt.NDArray[np.bool_]) -> str:
    """Number of some cells that were called fallen."""
    return f"{f'{called[of].sum()}/{of.sum()}' if of.any() else '-':>9}"


def true_drop(course: Floats) -> float:
    """Loss of a course after its peak, by the definition of the verdict."""
    return float(course.max() - course @ ends_after(len(course), LAST)[:, course.argmax()])


def falls_table(options: Options) -> Iterator[str]:
    """Yield the lines of the table."""
    yield (
        f"{'items':>5} {'truth':28} {'cliff':>6} {'falling':>8} {'fell':>6} {'<':>6} "
        f"{'too few evaluations':>20} {'items':>6} {'none':>6}"
    )
    count = options.power_simulations
    for items in (60, 160):
        for place, (name, course_of) in enumerate(PLANTED["courses"].items()):
            rng = np.random.default_rng([options.seed, items, place])
            verdicts: list[str] = []
            for number in range(count):
                scores = simulate(course_of, items, rng)
                steps = range(len(scores))
                found = find_cliff([scores], steps, resamples=RESAMPLES, seed=number)
                verdicts.append(found.verdict)
            fell = sum(verdict in FELL for verdict in verdicts)
            share = {name: verdicts.count(name) / count for name in get_args(CliffVerdict)}
            yield (
                f"{items:5} {name:28} {share['cliff']:6.1%} {share['falling']:8.1%} "
                f"{fell / count:6.1%} {upper_bound(fell, count):6.1%} "
                f"{share['not enough evaluations']:20.1%} {share['not enough items']:6.1%} "
                f"{share['no cliff']:6.1%}"
            )


QUIET: dict[str, Truth] = {
    "flat": lambda rng: [np.full(WATCHED, 0.6)],
    "rises": lambda rng: [np.linspace(0.3, 0.8, WATCHED)],
    "rises and stays": lambda rng: [course(0.0, WATCHED)],
    "noisy, deviation 2 points": lambda rng: [0.6 + 0.02 * rng.standard_normal(WATCHED)],
    "noisy, deviation 4 points": lambda rng: [0.6 + 0.04 * rng.standard_normal(WATCHED)],
}
"""Courses without a fall, by name."""


def watch_table(options: Options) -> Iterator[str]:
    """Yield the lines of the table."""
    yield f"{'items':>5} {'truth':28} {'runs':>6} {'alarm':>7} {'<':>6} {'later':>6}"
    alarmed = runs = 0
    for items in (60, 200):
        for place, (name, truth) in enumerate(QUIET.items()):
            rng = np.random.default_rng([options.seed, items, place])
            found = [first_alarm(truth(rng)[0], items, rng) for _ in range(options.simulations)]
            false = sum(step is not None for step in found)
            alarmed, runs = alarmed + false, runs + len(found)
            yield watch_line(items, name, found, None)
    yield watch_rate("all without a fall", alarmed, runs)
    for items in (60, 200, 500):
        for drop in (0.1, 0.15, 0.2, 0.3):
            for name, way in (("at once", np.ones(8)), ("slowly", np.linspace(1 / 8, 1, 8))):
                rng = np.random.default_rng([options.seed, items, round(100 * drop)])
                falls = np.r_[np.linspace(0.4, 0.7, 8), np.full(8, 0.7), 0.7 - drop * way]
                runs_of = range(options.power_simulations)
                found = [first_alarm(falls, items, rng) for _ in runs_of]
                yield watch_line(items, f"falls by {100 * drop:.0f} {name}", found, 16)


def first_alarm(truth: Floats, items: int, rng: np.random.Generator) -> int | None:
    """The evaluation of the first alarm of a simulated run."""
    scores = simulate(np.clip(truth, 0.01, 0.99), items, rng)
    rows = [{"step": n, "eval/scores": one.tolist()} for n, one in enumerate(scores)]
    alarms = fall_alarms(rows)
    return alarms[0].step if alarms else None


def watch_line(items: int, name: str, found: Sequence[int | None], onset: int | None) -> str:
    """A row of the table: how many runs have an alarm, and how long after the onset."""
    steps = [step for step in found if step is not None]
    later = f"{np.median(steps) - onset:6.1f}" if steps and onset is not None else f"{'-':>6}"
    return f"{items:5} {watch_rate(name, len(steps), len(found)).strip()} {later}"


def watch_rate(name: str, alarmed: int, runs: int) -> str:
    """Number of runs, and the rate of alarms with its bound."""
    rate = f"{alarmed / runs:7.2%} {upper_bound(alarmed, runs):6.2%}"
    return f"{'':5} {name:28} {runs:6} {rate}"
