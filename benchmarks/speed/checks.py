"""Tests that call a program many times, beside one subprocess that runs both together.

For 1, 3, 100 and 1,000 calls of a trivial function a loop of asserts is judged by the sandbox, one
program at a time, and run by `python -I` with the function in front of it, without any isolation.
CPU time does not see what a Docker engine does: read the wall time.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Iterator

from benchmarks.harness.record import Row
from benchmarks.harness.timing import Contender, Workload, race
from benchmarks.speed.sandbox import usable_tiers
from flowzoo.sandbox import CheckTest, Limits, Program, Sandbox

CALLS = (1, 3, 100, 1_000)
FUNCTION = "def f(x):\n    return x + 1\n"
LIMITS = Limits(cpu_s=60.0, wall_s=600.0)


def code_of(calls: int) -> str:
    """The code of a test that makes so many calls."""
    return f"for i in range({calls}):\n    assert f(i) == i + 1\n"


def judged(sandbox: Sandbox, calls: int) -> int:
    """Through the sandbox."""
    tests = [[CheckTest(code_of(calls))]]
    [verdict] = sandbox.run_sync([Program(FUNCTION, "f")], tests, LIMITS)
    if verdict.status != "AC":
        raise RuntimeError(f"{sandbox.tier}, {calls} calls: {verdict}")
    return 1


def alone(calls: int) -> int:
    """In one subprocess."""
    with tempfile.NamedTemporaryFile("w", suffix=".py") as file:
        file.write(FUNCTION + code_of(calls))
        file.flush()
        subprocess.run([sys.executable, "-I", file.name], check=True)
    return 1


def measure(workload: Workload) -> Iterator[Row]:
    """A row for every number of calls."""
    pools = {name: Sandbox(name, workers=1) for name in usable_tiers()}  # type: ignore[arg-type]
    try:
        for pool in pools.values():
            judged(pool, 1)  # starts the box of the test's half
        for calls in CALLS:
            contenders = [
                Contender("one subprocess", lambda calls=calls: alone(calls)),
                *(
                    Contender(f"sandbox, {name}", lambda p=pool, calls=calls: judged(p, calls))
                    for name, pool in pools.items()
                ),
            ]
            found = race(contenders, 2 * workload.rounds, tree=True)
            yield {"case": f"{calls:,} calls", "unit": "test", **found}
    finally:
        for pool in pools.values():
            pool.close_sync()
