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

from benchmarks.gpu.common import report
from benchmarks.harness.runs import gap, metrics
from flowzoo.arguments import read_arguments
from flowzoo.baselines.settings.config import TrainConfig
from flowzoo.baselines.training.build import start_run
from flowzoo.baselines.training.trainer import Trainer


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


def train(options: Options, folder: Path, stop: int = 0) -> None:
    """Train in `folder`, or go on there; until step `stop`, if it is not 0."""
    config = TrainConfig(
        workflow=options.workflow, steps=options.steps, problems=4, samples=4, eval_problems=4,
        compute=options.compute, engine_dtype=options.engine_dtype, lora_rank=options.lora_rank,
        checkpoint_every=max(1, options.steps // 2), transcripts_every=1, warmup=0,
        out=str(folder),
    )  # fmt: skip
    trainer = Trainer(start_run(config))

    def note(row: dict[str, Any]) -> None:
        if stop and row["step"] == stop:
            raise _StopError

    try:
        trainer.train(note)
    except _StopError:
        pass
    finally:
        trainer.close()


def main(options: Options) -> int:
    """Compare, and print one JSON object."""
    with tempfile.TemporaryDirectory() as name:
        whole, again, resumed = (Path(name) / run for run in ("whole", "again", "resumed"))
        train(options, whole)
        train(options, again)
        train(options, resumed, stop=max(1, options.steps // 2))
        train(options, resumed)
        report(
            {
                "benchmark": "repeat",
                "options": asdict(options),
                "rows": len(metrics(whole)),
                "twice": gap(again, whole)._asdict(),
                "resumed": gap(resumed, whole)._asdict(),
            },
            options.json,
        )
    return 0


if __name__ == "__main__":
    sys.exit(main(read_arguments(Options, __doc__)))
