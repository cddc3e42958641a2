"""Measure speed next to other libraries, in turns; `--list` names the benchmarks.

    python -m benchmarks.speed [NAME ...] [--out FILE]

Without names, all benchmarks run that need no other package, environment or finished run.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.harness.record import Row
from benchmarks.harness.timing import Workload
from benchmarks.speed.benches import (
    BENCHES,
    bench_named,
    check_names,
    read_benches,
    run_bench,
    usual_benches,
    write_benches,
)
from flowzoo.errors import FlowzooError, UsageError


def parser() -> argparse.ArgumentParser:
    """Command line of the speed benchmarks."""
    options = argparse.ArgumentParser(
        "python -m benchmarks.speed", description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    add = options.add_argument
    add("names", nargs="*", metavar="NAME", help="benchmarks to run")
    add("--list", action="store_true", help="list the benchmarks and exit")
    out = "JSON file that grows with every row; other benchmarks in it stay"
    add("--out", type=Path, metavar="FILE", help=out)
    add("--rounds", type=int, default=7, help="rounds in which contenders take turns")
    scale = "share of the usual work of a round; below 1 the figures are less reliable"
    add("--scale", type=float, default=1.0, help=scale)
    wait = "longest wait for a quiet machine before each benchmark"
    add("--wait", type=float, default=60.0, metavar="SECONDS", help=wait)
    data = "folder with math_cases.jsonl, gsm8k/ and math500/, for math"
    add("--data", metavar="FOLDER", help=data)
    trl = "Python of an environment with TRL (make env-trl), for learner"
    add("--trl", metavar="PYTHON", help=trl)
    return options


def main(args: Sequence[str] | None = None) -> int:
    """Run the command line; the exit status is 0, or 2 after a user's mistake."""
    options = parser().parse_args(args)
    if options.list:
        for name, description in BENCHES.items():
            print(f"{name:13s} {description}")
        return 0
    try:
        run(options)
    except FlowzooError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


def run(options: argparse.Namespace) -> None:
    """Measure, print and write.

    Raises:
        UsageError: a name is unknown, or a number is out of range.
    """
    check_names(options.names)
    if options.rounds < 1 or not 0 < options.scale <= 1 or options.wait < 0:
        raise UsageError(
            "--rounds must be at least 1, --scale above 0 and at most 1, --wait at least 0; got "
            f"{options.rounds}, {options.scale:g}, {options.wait:g}"
        )
    workload = Workload(options.rounds, options.scale, options.data, options.trl)
    written = {} if options.out is None else read_benches(options.out)
    for name in options.names or usual_benches():

        def save(results: dict[str, Any], name: str = name) -> None:
            if options.out is not None:
                write_benches(options.out, written | {name: results})

        print(f"== {name}: {BENCHES[name]}", flush=True)
        results = run_bench(name, bench_named(name), workload, options.wait, show, save)
        written[name] = results
        print(duration(results), flush=True)


def duration(results: dict[str, Any]) -> str:
    """Time of a benchmark, and the cores that other processes used."""
    seconds = f"{results.get('seconds', 0):.0f} s"
    before, during = results["others_before"], results.get("others_during")
    if before is None or during is None:
        return seconds
    return (
        f"{seconds}; others used {before:.2f} cores before and {during:.2f} during the "
        f"measurement, of {results['machine']['cores']}"
    )


def show(row: Row) -> None:
    """Print a row as a few lines."""
    print(row["case"], flush=True)
    for name, times in row.get("contenders", {}).items():
        ratios = ""
        if "beside" in times:
            cpu, wall = between(times["cpu_ratio"]), between(times["wall_ratio"])
            ratios = f"  {cpu} × {times['beside']} (wall {wall})"
        cpu, wall = (times[clock]["median"] for clock in ("cpu_us", "wall_us"))
        print(f"  {name:28s} {cpu:12,.4g} µs CPU {wall:12,.4g} µs wall per {row['unit']}{ratios}")
    for name, reason in row.get("absent", {}).items():
        print(f"  {name:28s} {reason}")
    for key, value in row.items():
        if key not in ("case", "unit", "contenders", "absent"):
            print(f"  {key}: {value}")


def between(values: dict[str, float]) -> str:
    """A median with its quartiles."""
    return f"{values['median']:.3g} ({values['low']:.3g} to {values['high']:.3g})"


if __name__ == "__main__":
    sys.exit(main())
