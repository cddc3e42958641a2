"""A side of `benchmarks.laptop_step`: a training step for each line of input.

It imports what the tree on PYTHONPATH has, which may be an earlier one, and leaves out settings
that are not there yet: `prompts` and `examples` ask for the only prompts of that time. On a GPU,
all time is wall time and memory is the GPU's.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import resource
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

SAMPLES = 4
"""Replies to each problem."""
OURS: Mapping[str, Mapping[str, Any]] = {
    "exact": {"engine_dtype": "float32", "compute": "float32"},
    "default": {},
    "int8": {"engine_dtype": "int8", "sync_tolerance": 1.0},
    "vllm": {"engine": "vllm", "engine_memory": 1.0},
}
"""Settings of the sides of this tree."""


def settings(job: Mapping[str, Any]) -> dict[str, Any]:
    """Settings of a run."""
    lower = {"compute": "bfloat16"} if job["stored"] == "bfloat16" else {}
    return {
        "workflow": "single", "task": "math", "options": ("level=2",), "model": job["model"],
        "prompts": "short", "examples": 0, "problems": job["rows"] // SAMPLES, "samples": SAMPLES,
        "max_tokens": job["max_tokens"], "steps": 10_000, "eval_problems": 1, "lr": 1e-6,
        "lora_rank": 16 if job["weights"] == "adapter" else 0, "truncated": "train",
        "reward": f"{Path(__file__).resolve()}:length", "weights": job["stored"],
        "transcripts_every": 10_000, "threads": 1, **lower, **OURS.get(job["side"], {}),
        "out": job["folder"],
    }  # fmt: skip


def length(episode: Any) -> float:
    """Kilobytes of the last reply, a reward that differs whatever the model can."""
    return len(episode.replies[-1][1]) / 1000


def work_of(calls: Sequence[Any]) -> dict[str, Any]:
    """Tokens that are read once and those that are sampled, and a digest of the prompts."""
    prompts = sorted({tuple(call.prompt_ids) for call in calls})
    return {
        "read": sum(map(len, prompts)),
        "prompts": hashlib.sha256(repr(prompts).encode()).hexdigest(),
    }


def serve(job: Mapping[str, Any]) -> None:
    """Take a step per line of input; print a line of JSON for each."""
    import torch
    from speed.resting import leave_memory, reclaim_memory  # pyrefly: ignore[missing-import]

    from flowzoo.baselines.learner.update import Learner
    from flowzoo.baselines.settings.config import TrainConfig
    from flowzoo.baselines.training.build import start_run
    from flowzoo.baselines.training.trainer import Trainer

    fields = {field.name for field in dataclasses.fields(TrainConfig)}
    run = Trainer(start_run(TrainConfig(**{k: v for k, v in settings(job).items() if k in fields})))
    update, result = Learner.update, dict[str, Any]()
    gpu = torch.cuda.is_available()

    def clock() -> float:
        if gpu:
            torch.cuda.synchronize()
            return time.perf_counter()
        return time.process_time()

    def timed(learner: Any, calls: Any, advantages: Any) -> Any:
        start = clock()
        metrics = update(learner, calls, advantages)
        result["learner"] = clock() - start
        result.update(work_of(calls))
        return metrics

    Learner.update = timed  # type: ignore[method-assign]
    for _ in sys.stdin:
        if job["leave_memory"]:
            reclaim_memory()
        before = run.run.state.tokens
        wall, cpu = time.perf_counter(), clock()
        run.run.state.step += 1
        run.iterate(run.run.state.step)
        result["seconds"], result["cpu"] = time.perf_counter() - wall, clock() - cpu
        peak = torch.cuda.max_memory_allocated() / 1024 if gpu else 0
        result["peak"] = (peak or resource.getrusage(resource.RUSAGE_SELF).ru_maxrss) / 1024
        result["tokens"] = run.run.state.tokens - before
        if job["leave_memory"]:
            leave_memory()
        sys.stdout.write(json.dumps(result) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    serve(json.loads(Path(sys.argv[1]).read_text()))
