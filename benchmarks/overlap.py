"""What does it save to sample the next batch while the learner works? A step with and without.

    OMP_NUM_THREADS=1 python benchmarks/overlap.py     # two cores: one samples, the other learns

Two runs of one setting, `max_staleness` 0 and 1, each with a vLLM engine in a process of its own,
take turns step by step, so that other programs on the machine slow both alike. Printed are the
medians over the steps, the first of each left out (it has nothing to overlap with), and the ratio
of wall time for every pair of steps. `hidden` is the share of the shorter of sampling and learning
that the overlap took off the step.
"""

from __future__ import annotations

import json
import statistics
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tyro

PARTS = ("time/rollout", "time/learn", "time/wait", "time/sync", "time/sync_check")


@dataclass(frozen=True)
class Options:
    """What is measured."""

    workflow: str = "voting"
    """Workflow that is played, on its own task."""
    model: str = "pocket"
    """Model that is trained."""
    problems: int = 16
    """Problems of a step."""
    samples: int = 8
    """Episodes of a problem."""
    steps: int = 8
    """Timed steps of each run, after one that is not timed."""
    json: Path | None = None
    """File for the numbers."""


def timed_step(trainer: Any, step: int) -> dict[str, float]:
    """Wall seconds of a step and of its parts."""
    began = time.perf_counter()
    row = trainer.iterate(step)
    seconds = time.perf_counter() - began
    return {"step": seconds} | {name: row.get(name, 0.0) for name in PARTS}


def measure(options: Options, folder: str) -> list[list[dict[str, float]]]:
    """The timed steps without and with overlap, in turns."""
    from flowzoo.baselines.settings.config import TrainConfig
    from flowzoo.baselines.trainer import Trainer

    trainers: list[Any] = []
    found: list[list[dict[str, float]]] = [[], []]
    try:
        for staleness in (0, 1):
            config = TrainConfig(
                workflow=options.workflow, model=options.model, problems=options.problems,
                samples=options.samples, steps=10_000, eval_problems=1, truncated="train",
                transcripts_every=10_000, engine="vllm", placement="split", probe_every=0,
                max_staleness=staleness, threads=1, out=f"{folder}/{staleness}",
            )  # fmt: skip
            trainers.append(Trainer(config))
        for step in range(1, options.steps + 2):
            for trainer, rows in zip(trainers, found, strict=True):
                rows.append(timed_step(trainer, step))
    finally:
        for trainer in trainers:
            trainer.close()
    return [rows[1:] for rows in found]


def table(found: Sequence[Sequence[dict[str, float]]]) -> str:
    """The medians, one line a run, and the ratio of the pairs."""
    names = ("step", *PARTS)
    lines = ["max_staleness  " + "  ".join(f"{name:>15}" for name in names)]
    middle = [
        {name: statistics.median(row[name] for row in rows) for name in names} for rows in found
    ]
    for staleness, row in enumerate(middle):
        cells = "  ".join(f"{row[name]:13.2f} s" for name in names)
        lines.append(f"{staleness:13d}  {cells}")
    ratios = sorted(plain["step"] / ahead["step"] for plain, ahead in zip(*found, strict=True))
    shorter = min(middle[0]["time/rollout"], middle[0]["time/learn"])
    hidden = (middle[0]["step"] - middle[1]["step"]) / shorter
    lines.append(
        f"without / with overlap: {statistics.median(ratios):.2f} ({ratios[0]:.2f} to "
        f"{ratios[-1]:.2f} over {len(ratios)} pairs); hidden {100 * hidden:.0f} %"
    )
    return "\n".join(lines)


def main() -> None:
    """Measure and print."""
    options = tyro.cli(Options)
    with tempfile.TemporaryDirectory() as folder:
        found = measure(options, folder)
    print(table(found))
    if options.json is not None:
        options.json.write_text(json.dumps(found, indent=1), encoding="utf-8")


if __name__ == "__main__":  # the engines' processes import this file again
    main()
