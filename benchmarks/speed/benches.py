"""The speed benchmarks by name, and the file of their results."""

from __future__ import annotations

import importlib
import json
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from benchmarks.harness.machine_load import Others, load, wait_until_quiet
from benchmarks.harness.record import Row, machine_facts, write_results
from benchmarks.harness.timing import Workload, digits
from flowzoo.errors import DataError, unknown
from flowzoo.files import reading

BENCHES = {
    "environments": "steps of an environment, guarded and not, and PettingZoo's bookkeeping",
    "rollout": "calls of a rollout, candidates of a tree, and PettingZoo's bookkeeping",
    "forks": "copies of an episode in progress",
    "scaling": "growth of rollouts with problems, samples, agents, turns, lengths, candidates",
    "advantages": "advantages of a batch: flowzoo, NumPy, plain Python, pandas",
    "math": "math reward and Math-Verify: time of a reply",
    "math_batches": "math reward by size of the batch: Python, compiled, and loading that",
    "search": "queries of the search task's index, and rank_bm25",
    "worlds": "boards graded and made: compiled, and plain Python",
    "sandbox": "programs through the sandbox, fork+exec, and Docker's own commands",
    "checks": "tests that call a program many times, and one subprocess",
    "learner": "a learning step and TRL's GRPOTrainer, on the same tokens",
    "vllm": "rollouts through vLLM, and vLLM's own `generate`",
    "overlap": "steps with and without rollouts that overlap learning (vLLM)",
    "diagnostics": "cost of gradient norms and probes per step",
}
"""Description by name."""
ON_REQUEST = ("learner", "vllm", "overlap", "diagnostics")
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
