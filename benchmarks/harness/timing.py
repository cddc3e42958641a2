"""Paired timing: contenders take turns, so that other work on the machine slows all of them alike.

In every round each contender works once, in the order given and in the next round backwards. Times
are per unit of work; ratios are taken within a round and then summarized, which makes them
comparable between machines. Medians come with the quartiles over the rounds.
"""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from benchmarks.harness.machine_load import tree_seconds

Clock = Callable[[], float]
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Workload:
    """Amount of work and inputs of a benchmark."""

    rounds: int = 7
    scale: float = 1.0
    """Share of the usual work of a round; below 1 the figures are less reliable."""
    data: str | None = None
    """Folder with GSM8K, MATH-500 and the labeled cases."""
    trl: str | None = None
    """Python of an environment with TRL."""

    def scaled(self, units: int, least: int = 1) -> int:
        """Number of units, scaled and at least `least`."""
        return max(least, round(units * self.scale))


@dataclass(frozen=True, slots=True)
class Contender:
    """Something to time."""

    name: str
    work: Callable[[], int]
    """Does the work and returns its number of units."""


@dataclass(frozen=True, slots=True)
class Lap:
    """Time of one contender in one round."""

    units: int
    cpu: float
    """Seconds of all threads, and of other processes if the clock sees them."""
    wall: float


def measure_lap(work: Callable[[], int], clock: Clock = time.process_time) -> Lap:
    """Time one run of the work."""
    gc.collect()
    cpu, wall = clock(), time.perf_counter()
    units = work()
    wall = time.perf_counter() - wall
    return Lap(units, clock() - cpu, wall)


def race(contenders: Sequence[Contender], rounds: int, *, tree: bool = False) -> dict[str, Any]:
    """Time contenders in turns; a row with the laps of each, and its ratios to the first.

    Args:
        contenders: what to time; the first is the reference.
        rounds: laps of each.
        tree: measure CPU time of this process and all its descendants.
    """
    clock = tree_seconds if tree else time.process_time
    works = {contender.name: contender.work for contender in contenders}
    return {"contenders": summary(in_turns(works, rounds, lambda work: measure_lap(work, clock)))}


def in_turns(
    contenders: Mapping[str, T], rounds: int, measure: Callable[[T], Lap]
) -> dict[str, list[Lap]]:
    """Laps by name; every second round goes backwards."""
    laps: dict[str, list[Lap]] = {name: [] for name in contenders}
    for number in range(rounds):
        names = list(contenders) if number % 2 == 0 else list(contenders)[::-1]
        for name in names:
            laps[name].append(measure(contenders[name]))
    return laps


def summary(laps: Mapping[str, Sequence[Lap]]) -> dict[str, Any]:
    """Medians and quartiles by contender: microseconds per unit, and ratios to the first one."""
    reference = next(iter(laps))
    rows: dict[str, Any] = {}
    for name, times in laps.items():
        row: dict[str, Any] = {
            "cpu_us": spread([1e6 * time.cpu / time.units for time in times]),
            "wall_us": spread([1e6 * time.wall / time.units for time in times]),
        }
        if name != reference:
            pairs = list(zip(times, laps[reference], strict=True))
            row["beside"] = reference
            row["cpu_ratio"] = spread([ratio(a.cpu / a.units, b.cpu / b.units) for a, b in pairs])
            row["wall_ratio"] = spread([a.wall / a.units / (b.wall / b.units) for a, b in pairs])
        row["laps"] = [[time.units, round(time.cpu, 6), round(time.wall, 6)] for time in times]
        rows[name] = row
    return rows


def ratio(a: float, b: float) -> float:
    """Ratio of two times; a clock that did not tick counts as its smallest step."""
    return a / max(b, 1e-9)


def spread(values: Sequence[float]) -> dict[str, float]:
    """Median and quartiles, to four digits."""
    several = values if len(values) > 1 else [values[0]] * 2
    low, middle, high = statistics.quantiles(several, n=4, method="inclusive")
    return {"median": digits(middle), "low": digits(low), "high": digits(high)}


def digits(value: float) -> float:
    """Round to four significant digits."""
    return float(f"{value:.4g}")
