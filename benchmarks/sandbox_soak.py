"""Many mixed programs through the sandbox: do verdicts hold, and what do they leave behind?

    python benchmarks/sandbox_soak.py [--backend docker] [--count 10000]

Exit status 1 if a program got an unexpected verdict. How fast it is: `flowzoo bench sandbox`.
"""

from __future__ import annotations

import argparse
import gc
import os
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from flowzoo.baselines.bench.sandbox import SOURCE, TEST, pooled, usable_tiers
from flowzoo.provenance import usable_cores
from flowzoo.sandbox.docker.engine import connect
from flowzoo.sandbox.docker.reaper import NONCE
from flowzoo.sandbox.program import Limits, Program
from flowzoo.sandbox.sandbox import Sandbox

# Source -> verdict, with a weight: most programs are honest, as they are in training.
MIXED: tuple[tuple[str, str, int], ...] = (
    (SOURCE, "AC", 60),
    ("n = int(input()); print(sum(range(n + 2)) - sum(range(n + 1)))", "AC", 20),
    ("print(int(input()) + 2)", "WA", 7),
    ("raise ValueError(input())", "RE", 4),
    ("print(", "CE", 3),
    ("import os; os._exit(7)", "RE", 2),
    ("print('x' * 10**6)", "OLE", 1),
    ("data = bytearray(10**10)", "MLE", 1),
    ("import os, threading, time\n"
     "for _ in range(8): threading.Thread(target=time.sleep, args=(9,)).start()\n"
     "os._exit(3)", "RE", 1),
    ("while True: pass", "TLE", 1),
)  # fmt: skip


def soak(name: str, count: int, workers: int) -> bool:
    """Run `count` mixed programs; print what was before, what is after; whether all is well."""
    kinds = [row for row in MIXED for _ in range(row[2])]
    limits = Limits(cpu_s=0.3, wall_s=3.0, memory_mb=128)
    ok = True
    with counted_containers(name) as containers:
        with Sandbox(name, workers=workers) as sandbox:  # pyrefly: ignore[bad-argument-type]
            pooled(sandbox, 4 * workers)
            before = (*load(), containers())
            print(f"{name}: {count} programs, {workers} boxes; {sandbox.trust}")
            print_load("before", before)
            start = time.perf_counter()
            for first in range(0, count, 1000):
                picked = [
                    kinds[i * 37 % len(kinds)] for i in range(first, min(first + 1000, count))
                ]
                programs = [Program(source) for source, _, _ in picked]
                verdicts = sandbox.run_sync(programs, [[TEST]] * len(picked), limits)
                wrong = Counter(
                    f"{row[1]} came as {verdict.status}"
                    for row, verdict in zip(picked, verdicts, strict=True)
                    if row[1] != verdict.status
                )
                if wrong:
                    ok = False
                    print(f"unexpected verdicts: {dict(wrong)}")
            rate = count / (time.perf_counter() - start)
            print_load("after", (*load(), containers()))
        print_load("closed", (*load(), containers()))
    print(f"{rate:,.0f} programs/s")
    return ok


@contextmanager
def counted_containers(name: str) -> Iterator[Callable[[], int]]:
    """What counts the engine's containers that carry the sandbox's labels."""
    if name != "docker":
        yield lambda: 0
        return
    client, _ = connect()
    try:
        yield lambda: len(client.api.containers(all=True, filters={"label": NONCE}))
    finally:
        client.close()


def load() -> tuple[int, int, float]:
    """Processes of the machine, descriptors of this process, its resident memory in MB."""
    gc.collect()
    processes = sum(entry.name.isdigit() for entry in Path("/proc").iterdir())
    descriptors = len(os.listdir("/proc/self/fd"))
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return processes, descriptors, pages * os.sysconf("SC_PAGE_SIZE") / 1e6


def print_load(when: str, facts: tuple[int, int, float, int]) -> None:
    """One line."""
    processes, descriptors, memory, containers = facts
    print(
        f"  {when:7s} {processes} processes, {descriptors} descriptors, {memory:.0f} MB, "
        f"{containers} containers"
    )


def main() -> int:
    """Soak every backend."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--backend", action="append", help="of the sandbox; may be repeated")
    parser.add_argument("--workers", type=int, default=2 * usable_cores(), help="in flight")
    parser.add_argument("--count", type=int, default=10_000)
    options = parser.parse_args()
    names = options.backend or usable_tiers()
    return max(int(not soak(name, options.count, options.workers)) for name in names)


if __name__ == "__main__":
    sys.exit(main())
