"""Contenders that take turns, so that other work on the machine slows all of them alike.

In every round each contender works once, in the order given and in the next round backwards. Times
are per unit of work; ratios are taken within a round and then summed up, which is what makes them
comparable between machines. Medians are given with the quartiles over the rounds.
"""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from flowzoo.baselines.bench.quiet import tree_seconds

Clock = Callable[[], float]


@dataclass(frozen=True, slots=True)
class Plan:
    """How much is measured."""

    rounds: int = 7
    scale: float = 1.0
    """Share of the usual work of a round; below 1 figures are worth less."""
    data: str | None = None
    """Folder with GSM8K, MATH-500 and the labelled cases."""
    runs: str | None = None
    """Folder of a finished matrix."""
    trl: str | None = None
    """Python of an environment with TRL."""

    def of(self, units: int, least: int = 1) -> int:
        """So many units at this scale."""
        return max(least, round(units * self.scale))


@dataclass(frozen=True, slots=True)
class Contender:
    """Something to time."""

    name: str
    work: Callable[[], int]
    """Does the work and returns how many units it was."""


@dataclass(frozen=True, slots=True)
class Lap:
    """One contender in one round."""

    units: int
    cpu: float
    """Seconds of all threads, and of other processes where the clock sees them."""
    wall: float


def lap(work: Callable[[], int], clock: Clock) -> Lap:
    """Do the work once."""
    gc.collect()
    cpu, wall = clock(), time.perf_counter()
    units = work()
    wall = time.perf_counter() - wall
    return Lap(units, clock() - cpu, wall)


def race(contenders: Sequence[Contender], rounds: int, *, tree: bool = False) -> dict[str, Any]:
    """Let them take turns; a row with the laps of each, and its ratios to the first.

    `tree`: CPU time is that of all processes started from here, for work that they do.
    """
    clock = tree_seconds if tree else time.process_time
    laps: dict[str, list[Lap]] = {one.name: [] for one in contenders}
    for number in range(rounds):
        for one in contenders if number % 2 == 0 else list(reversed(contenders)):
            laps[one.name].append(lap(one.work, clock))
    return {"contenders": summary(laps)}


def summary(laps: dict[str, list[Lap]]) -> dict[str, Any]:
    """Medians and quartiles of every contender: microseconds a unit, and beside the first one."""
    reference = next(iter(laps))
    found: dict[str, Any] = {}
    for name, own in laps.items():
        row: dict[str, Any] = {
            "cpu_us": spread([1e6 * one.cpu / one.units for one in own]),
            "wall_us": spread([1e6 * one.wall / one.units for one in own]),
        }
        if name != reference:
            pairs = list(zip(own, laps[reference], strict=True))
            row["beside"] = reference
            row["cpu_ratio"] = spread([ratio(a.cpu / a.units, b.cpu / b.units) for a, b in pairs])
            row["wall_ratio"] = spread([a.wall / a.units / (b.wall / b.units) for a, b in pairs])
        row["laps"] = [[one.units, round(one.cpu, 6), round(one.wall, 6)] for one in own]
        found[name] = row
    return found


def ratio(one: float, other: float) -> float:
    """Their ratio; a clock that did not tick counts as its smallest step."""
    return one / max(other, 1e-9)


def spread(values: Sequence[float]) -> dict[str, float]:
    """Median and quartiles, to four digits."""
    several = values if len(values) > 1 else [values[0]] * 2
    low, middle, high = statistics.quantiles(several, n=4, method="inclusive")
    return {"median": digits(middle), "low": digits(low), "high": digits(high)}


def digits(value: float) -> float:
    """Four of them."""
    return float(f"{value:.4g}")
