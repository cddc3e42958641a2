"""How busy a machine is with what is not ours, and waiting until it is less so."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path

LIMIT = 0.15
"""Cores that others may use on a machine that counts as quiet."""
LOOK = 1.0
"""Seconds of one look."""


def tree_seconds() -> float:
    """CPU seconds of this process and everything that it has started, in steps of 10 ms.

    Without /proc: of this process, and of those that it has waited for.
    """
    own = os.times()
    waited = own.children_user + own.children_system
    return time.process_time() + waited + sum(_of_descendants())


def _of_descendants() -> list[float]:
    """CPU seconds of every living descendant, with those of the processes it waited for."""
    parents: dict[int, int] = {}
    spent: dict[int, float] = {}
    ticks = os.sysconf("SC_CLK_TCK")
    for entry in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = entry.read_text(encoding="ascii", errors="replace").rpartition(")")[2].split()
        except OSError:  # it has just ended
            continue
        process = int(entry.parent.name)
        parents[process] = int(fields[1])
        spent[process] = sum(map(int, fields[11:15])) / ticks
    found, last = set[int](), {os.getpid()}
    while last:
        last = {process for process, parent in parents.items() if parent in last} - found
        found |= last
    return [spent[process] for process in found]


def machine_seconds() -> float | None:
    """CPU seconds that the machine has worked, or was not given; None where it does not say."""
    try:
        first = Path("/proc/stat").read_text(encoding="ascii").splitlines()[0].split()[1:]
    except OSError:
        return None
    user, nice, system, _, _, irq, softirq, steal = (int(field) for field in first[:8])
    return (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK")


@dataclass(slots=True)
class Others:
    """Cores that others use, from the moment that this is made."""

    began: float
    machine: float | None
    ours: float

    @classmethod
    def watch(cls) -> Others:
        """Begin."""
        return cls(time.perf_counter(), machine_seconds(), tree_seconds())

    def cores(self) -> float | None:
        """Cores in use by others since then, on average; None where the machine does not say."""
        now = machine_seconds()
        if now is None or self.machine is None:
            return None
        busy = now - self.machine - (tree_seconds() - self.ours)
        return round(max(0.0, busy / (time.perf_counter() - self.began)), 2)


def wait_until_quiet(seconds: float) -> float | None:
    """Wait for others to use less than `LIMIT` cores, at most so long; the cores at the end."""
    end = time.monotonic() + seconds
    while True:
        others = Others.watch()
        time.sleep(LOOK)
        cores = others.cores()
        if cores is None or cores < LIMIT or time.monotonic() >= end:
            return cores


def load() -> list[float]:
    """The system's load averages of 1, 5 and 15 minutes, where it has them."""
    return [round(value, 2) for value in os.getloadavg()] if hasattr(os, "getloadavg") else []
