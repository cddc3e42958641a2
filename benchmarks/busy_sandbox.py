"""Verdicts beside processes that never rest: do the references get the same ones on every tier?

    python benchmarks/busy_sandbox.py FILE... [--tiers docker,namespaces] [--loops 9] [--every 4]

Prints JSON: verdicts by file and tier, lines on which tiers differ, seconds and the load. A busy
loop is a session of its own, so that the kernel gives it a share as it does to any user's program.
Exit status 1 if tiers differ, or time ran out.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import resource
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

from flowzoo.envs.tasks.code.layouts import with_prelude
from flowzoo.envs.tasks.code.task import CodeTask, grading_tests
from flowzoo.sandbox.program import Program, Verdict
from flowzoo.sandbox.sandbox import Sandbox

BATCH = 64
"""Programs between two looks at the time."""


@contextlib.contextmanager
def busy_loops(count: int, seconds: int) -> Iterator[None]:
    """So many busy processes; each also ends by itself once it has used its CPU time."""

    def bound() -> None:
        resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))

    command = [sys.executable, "-I", "-S", "-c", "while True: pass"]
    loops = [
        subprocess.Popen(command, start_new_session=True, preexec_fn=bound) for _ in range(count)
    ]
    try:
        yield
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()


def judge(tier: str, task: CodeTask, every: int, end: float) -> dict[int, Verdict]:
    """Verdicts of the references by line, of every so many rows, until the time is over."""
    rows = [task.problem(row, "all") for row in range(0, task.size("all") or 0, every)]
    found: dict[int, Verdict] = {}
    with Sandbox(tier, packages=task.packages.split()) as sandbox:  # pyrefly: ignore[bad-argument-type]
        for first in range(0, len(rows), BATCH):
            if time.monotonic() > end:
                break
            part = rows[first : first + BATCH]
            verdicts = sandbox.run_sync(
                [
                    Program(with_prelude(p.meta["solution"], p.meta["prelude"]), p.meta["entry"])
                    for p in part
                ],
                [grading_tests(problem) for problem in part],
                task.limits(),
                on_error="verdict",
            )
            found |= {p.meta["row"]: v for p, v in zip(part, verdicts, strict=True)}
    return found


def summary(verdicts: dict[int, Verdict], seconds: float) -> dict[str, Any]:
    """Counts, the rows without AC and why, and seconds."""
    others = {
        line: f"{v.status}: {next(c.detail for c in v.cases if c.status != 'AC')}"
        for line, v in verdicts.items()
        if v.status != "AC"
    }
    counts = Counter(verdict.status for verdict in verdicts.values())
    return {"verdicts": dict(counts), "others": others, "seconds": round(seconds, 1)}


def main() -> int:
    """Run what was asked for; the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("files", nargs="+", metavar="FILE")
    parser.add_argument("--tiers", default="docker,namespaces")
    parser.add_argument("--loops", type=int, default=9)
    parser.add_argument("--every", type=int, default=1, help="every so many rows of a file")
    parser.add_argument("--seconds", type=int, default=300, help="of all, about")
    options = parser.parse_args()
    tasks = {file: CodeTask(data=file, packages="numpy") for file in options.files}
    end = time.monotonic() + options.seconds
    report: dict[str, Any] = {"loops": options.loops, "files": {}}
    whole = True
    with busy_loops(options.loops, options.seconds):
        for file, task in tasks.items():
            by_tier: dict[str, dict[int, Verdict]] = {}
            entry = report["files"][os.path.basename(file)] = {}
            for tier in options.tiers.split(","):
                start = time.monotonic()
                by_tier[tier] = judge(tier, task, options.every, end)
                entry[tier] = summary(by_tier[tier], time.monotonic() - start)
            lines = set.intersection(*(set(found) for found in by_tier.values()))
            entry["differ"] = [
                line
                for line in sorted(lines)
                if len({found[line].status for found in by_tier.values()}) > 1
            ]
            whole &= not entry["differ"] and time.monotonic() < end
    report |= {"load": os.getloadavg()[0], "cores": os.cpu_count(), "whole": whole}
    print(json.dumps(report, indent=1))
    return 0 if whole else 1


if __name__ == "__main__":
    sys.exit(main())
