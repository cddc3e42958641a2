"""Differences between equal runs on one device: the same twice, and one that is resumed.

    python -m benchmarks.gpu.repeat --json repeat.json

Trains a workflow's pocket model with transformers. On a CPU nothing differs.
"""

from __future__ import annotations

import json
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

from safetensors.torch import load_file

from benchmarks.gpu.common import report
from flowzoo.arguments import read_arguments
from flowzoo.baselines.run.directory import VOLATILE
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


def metrics(run: Path) -> list[dict[str, Any]]:
    """The rows of a run, less what depends on the machine's speed."""
    rows = map(json.loads, (run / "metrics.jsonl").read_bytes().splitlines())
    return [{k: v for k, v in row.items() if not k.startswith(VOLATILE)} for row in rows]


def _tensors(run: Path, below: str = "") -> list[Path]:
    last = max((run / "checkpoints").glob("step-*"))
    return sorted((last / below).rglob("*.safetensors"))


class Gap(NamedTuple):
    """How far a run is from another."""

    metric: float
    """Largest difference of a metric, of a scale of 1 or its own."""
    which: str
    """The metric with it."""
    weight: float
    same: bool
    """True if all transcripts are equal."""


def gap(one: Path, other: Path) -> Gap:
    """What is apart in two runs, but for proofs of engines, which ask other tokens."""
    apart, which = 0.0, ""
    for left, right in zip(metrics(one), metrics(other), strict=True):
        for name in sorted(left | right):
            a, b = left.get(name), right.get(name)
            if name.startswith("sync/") or repr(a) == repr(b):
                continue
            numbers = isinstance(a, float) and isinstance(b, float)
            found = abs(a - b) / max(1.0, abs(b)) if numbers else float("inf")
            if not found <= apart:
                apart, which = found, name
    pairs = zip(_tensors(one, "policies"), _tensors(other, "policies"), strict=True)
    files = [(load_file(mine), load_file(theirs)) for mine, theirs in pairs]
    weights = [
        float((mine[name] - value).abs().max())
        for mine, theirs in files
        for name, value in theirs.items()
    ]
    spoken = [
        {path.name: path.read_bytes() for path in run.glob("transcripts/*.jsonl")}
        for run in (one, other)
    ]
    return Gap(apart, which, max(weights, default=float("inf")), spoken[0] == spoken[1] != {})


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
