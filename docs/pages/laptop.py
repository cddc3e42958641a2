"""Steps of small models on a CPU: cost beside other trainers, learning with int8 rollouts."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from pages.figures import DATA, shown, span, table

NAMES = {
    "exact": "flowzoo, float32", "default": "flowzoo, default", "int8": "flowzoo, int8 rollouts",
    "vllm": "flowzoo, vLLM rollouts", "TRL": "TRL",
}  # fmt: skip
PHASES = ("step", "rollout", "learner")
MACHINES = {
    "laptop-step.json": "A CPU with AVX-512 and bfloat16",
    "laptop-step-avx2.json": "A CPU with AVX2",
}
SHARES = ("rollout, share", "learner, share")


def laptop_page() -> str:
    """The page, in Markdown."""
    learning = json.loads((DATA / "int8-learning.json").read_text(encoding="utf-8"))
    return (
        "# Steps of small models on a CPU\n"
        "CPU milliseconds a sampled token on one thread, medians over the rounds, with ratios to "
        "the first row of each block (quartiles in parentheses). Share: necessary "
        "arithmetic, against this CPU's float32 matrix products in the same time. GiB: most memory "
        "of the process.\n\n"
        + "\n\n".join(map(_machine, MACHINES))
        + "\n\n## Learning with int8 rollouts\n"
        "The same runs with exact and with int8 rollouts, three seeds each; intervals at 95 %.\n\n"
        f"```shell\n{learning['command']}\n```\n\n"
        + table(learning["columns"], learning["rows"])
        + "\n"
    )


def _machine(name: str) -> str:
    costs = json.loads((DATA / name).read_text(encoding="utf-8"))
    columns = ["", *(name for phase in PHASES for name in (f"{phase}, ms", "ratio")), *SHARES]
    columns.append("GiB")
    cells = [
        f"### {model}: {cell}\n{table(columns, list(_rows(figures)))}"
        for model, cells in costs["models"].items()
        for cell, figures in cells.items()
    ]
    head = f"## {MACHINES[name]}\n{costs['note']}\n\n```shell\n{costs['command']}\n```"
    return "\n\n".join([head, *cells])


def _rows(figures: Mapping[str, Any]) -> Iterator[list[str]]:
    for name, peak in figures["peak_mib"].items():
        cells = [NAMES.get(name, f"flowzoo, commit {name}")]
        for phase in PHASES:
            times = figures[phase].get(name)
            if times is None:
                cells += ["", ""]
            else:
                cells += [shown(times["cpu_us"]["median"] / 1000), span(times.get("cpu_ratio"))]
        speeds = figures.get("speeds", {}).get(name, {})
        cells += [
            f"{speeds[phase] / figures['limits']['float32']:.0%}" if phase in speeds else ""
            for phase in PHASES[1:]
        ]
        yield [*cells, f"{peak / 1024:.1f}"]
