"""Differences between equal runs on one device: the same twice, and one that is resumed.

    python -m benchmarks.gpu.repeat --json repeat.json

Trains a workflow's pocket model with transformers. On a CPU nothing differs.
"""

from __future__ import annotations

import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import torch

from benchmarks.gpu.common import report
from flowzoo.baselines.settings.config import TrainConfig
from flowzoo.baselines.training.build import start_run
from flowzoo.baselines.training.trainer import Trainer
from flowzoo.commands.arguments import read_arguments


@dataclass(frozen=True)
class Options:
    """What is compared."""

    workflow: str = "voting"
    """Workflow that is trained."""
    steps: int = 6
    """Steps of every run; the resumed one is stopped after half of them."""
    compute: Literal["float32", "bfloat16"] = "float32"
    """Number format of the learner's products."""
    engine_dtype: Literal["float32", "bfloat16"] = "float32"
    """Number format of sampling."""
    lora_rank: int = 0
    """0 trains all weights."""
    json: Path | None = None
    """File for the results."""


class _StopError(Exception):
    """The run has done its first half."""


Metrics = dict[str, float]


def run(options: Options, folder: Path, stop: int = 0) -> tuple[list[Metrics], list[torch.Tensor]]:
    """Metrics of the steps of a run, without times, and the weights at its end."""
    config = TrainConfig(
        workflow=options.workflow, steps=options.steps, problems=4, samples=4, eval_problems=4,
        compute=options.compute, engine_dtype=options.engine_dtype, lora_rank=options.lora_rank,
        checkpoint_every=max(1, options.steps // 2), warmup=0, out=str(folder),
    )  # fmt: skip
    trainer, rows = Trainer(start_run(config)), list[Metrics]()
    learners: list[Any] = list(trainer.run.learners.values())

    def keep(row: dict[str, Any]) -> None:
        rows.append(
            {
                name: float(value)
                for name, value in row.items()
                if isinstance(value, (int, float)) and not name.startswith(("time/", "perf/"))
            }
        )
        if stop and row["step"] == stop:
            raise _StopError

    try:
        trainer.train(keep)
    except _StopError:
        pass
    finally:
        weights = [
            weight.detach().cpu().clone() for learner in learners for weight in learner.parameters
        ]
        trainer.close()
    return rows, weights


def differences(
    first: tuple[list[Metrics], list[torch.Tensor]],
    second: tuple[list[Metrics], list[torch.Tensor]],
) -> dict[str, Any]:
    """First row that differs with the names of its metrics, and the largest gap of weights."""
    rows = enumerate(zip(first[0], second[0], strict=True))
    changed = (
        {
            "row": number,
            "metrics": {
                name: [left.get(name), right.get(name)]
                for name in sorted({*left, *right})
                if repr(left.get(name)) != repr(right.get(name))
            },
        }
        for number, (left, right) in rows
        if repr(left) != repr(right)
    )
    gaps = [float((a - b).abs().max()) for a, b in zip(first[1], second[1], strict=True)]
    return {"first_difference": next(changed, None), "largest_weight_gap": max(gaps)}


def main(options: Options) -> int:
    """Compare, and print one JSON object."""
    half = max(1, options.steps // 2)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        whole, again = run(options, folder / "whole"), run(options, folder / "again")
        stopped, _ = run(options, folder / "resumed", stop=half)
        resumed, weights = run(options, folder / "resumed")
    report(
        {
            "benchmark": "repeat",
            "options": asdict(options),
            "rows": len(whole[0]),
            "twice": differences(whole, again),
            "resumed": differences(whole, (stopped + resumed, weights)),
        },
        options.json,
    )
    return 0


if __name__ == "__main__":
    sys.exit(main(read_arguments(Options, __doc__)))
