"""Measure speed next to other libraries, in turns; `--list` names the benchmarks.

    python -m benchmarks.speed [NAME ...] [--out FILE]

Without names, all benchmarks run that need no other package, environment or finished run.
"""

from __future__ import annotations

import argparse
import importlib
import json
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.harness.machine_load import Others, load, wait_until_quiet
from benchmarks.harness.record import Row, machine_facts, write_results
from benchmarks.harness.timing import Workload, digits
from flowzoo.errors import DataError, FlowzooError, UsageError, unknown
from flowzoo.files import reading

BENCHES = {
    "environments": "steps of an environment, guarded and not, and PettingZoo's bookkeeping",
    "rollout": "calls of a rollout, candidates of a tree, and PettingZoo's bookkeeping",
    "math": "math reward and Math-Verify: time of a reply",
    "sandbox": "programs through the sandbox, fork+exec, and Docker's own commands",
    "learner": "a learning step and TRL's GRPOTrainer, on the same tokens",
    "vllm": "rollouts through vLLM, and vLLM's own `generate`",
    "diagnostics": "cost of gradient norms and probes per step",
}
"""Description by name."""
ON_REQUEST = ("learner", "vllm", "diagnostics")
"""Benchmarks that need another environment, an extra of gigabytes or many minutes."""
PATHS = {"data": "math", "trl": "learner"}
"""Benchmark by the option whose path it reads."""
Measure = Callable[[Workload], Iterator[Row]]


def usual_benches() -> list[str]:
    """Benchmarks that run if none is named."""
    return [name for name in BENCHES if name not in ON_REQUEST]


def bench_named(name: str) -> Measure:
    """Return the function that measures a benchmark.

    Raises:
        UsageError: there is no benchmark of this name.
    """
    check_names([name])
    return importlib.import_module(module_of(name)).measure


def module_of(name: str) -> str:
    """Module of a benchmark; two would otherwise have the name of a module that they import."""
    file = {"math": "math_reward", "vllm": "vllm_rollout"}.get(name, name)
    return f"benchmarks.speed.{file}"


def check_names(names: Iterable[str]) -> None:
    """Check names before anything is measured.

    Raises:
        UsageError: there is no benchmark of one of these names.
    """
    for name in names:
        if name not in BENCHES:
            raise unknown("benchmark", name, BENCHES)


def read_benches(path: Path) -> dict[str, Any]:
    """Results by benchmark from a file; empty if the file does not exist.

    Raises:
        DataError: the file holds something else.
    """
    if not path.exists():
        return {}
    with reading(path):
        text = path.read_text(encoding="utf-8")
    try:
        return dict(json.loads(text)["benches"])
    except (ValueError, KeyError, TypeError) as error:
        raise DataError(
            f"{path}: expected a file that `python -m benchmarks.speed --out` wrote: {error}"
        ) from error


def write_benches(path: Path, benches: dict[str, Any]) -> None:
    """Write results, sorted by name."""
    write_results(path, {"benches": dict(sorted(benches.items()))})


def command_of(name: str, workload: Workload) -> str:
    """Command that repeats a measurement."""
    usual = Workload()
    options = [f"--rounds {workload.rounds}"] if workload.rounds != usual.rounds else []
    options += [f"--scale {workload.scale:g}"] if workload.scale != usual.scale else []
    options += [f"--{option} …" for option, reader in PATHS.items() if name == reader]
    return " ".join(["python -m benchmarks.speed", name, *options])


def run_bench(
    name: str,
    measure: Measure,
    workload: Workload,
    wait: float,
    show: Callable[[Row], None],
    save: Callable[[dict[str, Any]], None],
) -> dict[str, Any]:
    """Measure one benchmark.

    Args:
        name: its name.
        measure: its function.
        workload: how much is measured.
        wait: most seconds to wait for a quiet machine.
        show: called with every row.
        save: called with all results so far, after every row.
    """
    before = wait_until_quiet(wait)
    results: dict[str, Any] = {
        "command": command_of(name, workload),
        "rounds": workload.rounds,
        "scale": workload.scale,
        "machine": machine_facts(),
        "others_before": before,
        "load_before": load(),
        "rows": [],
    }
    others, began = Others.watch(), time.perf_counter()
    for row in measure(workload):
        results["rows"].append(row)
        results["seconds"] = digits(time.perf_counter() - began)
        results["others_during"] = others.cores()
        results["load_after"] = load()
        show(row)
        save(results)
    return results


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
