"""New weights into an engine in processes of its own, each way that this machine has, with proof.

    python -m benchmarks.gpu.transfer --size 1.7B --json transfer.json
    python -m benchmarks.gpu.transfer --size tiny                     # any CPU: file alone

Everything is what `flowzoo train --engine vllm --placement split --weight-transfer WAY` does:
`file` in shared memory, `ipc` on one GPU, `nccl` to a second one. The engine's log-probs must be
the learner's after each transfer, or the script stops. Then an engine is killed while it takes
weights, and one is stopped: how long it is until that is an error, and until a new engine has
proved its weights. The file of results is written anew after each way.
"""

from __future__ import annotations

import os
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import torch

from benchmarks.gpu.common import device_name, report
from benchmarks.gpu.step import write_model
from benchmarks.harness.memory import peak_gib
from flowzoo.commands.arguments import read_arguments

Way = Literal["file", "ipc", "nccl"]
KILL_AFTER_S = 2.0
"""From the beginning of a transfer; the engine stands still meanwhile, so it has not taken it."""


@dataclass(frozen=True)
class Options:
    """What is measured."""

    size: str = "tiny"
    """tiny, 0.6B, 1.7B or 4B."""
    ways: tuple[Way, ...] = ()
    """None: those that this machine has."""
    repeats: int = 3
    """Times that all weights go across, after one that also connects."""
    limit: float = 20.0
    """Seconds that an engine which stands still may take; a run allows ten minutes."""
    faults: bool = True
    """Kill an engine, and stop one."""
    json: Path | None = None
    """File for the results."""


def possible() -> tuple[list[Way], list[str]]:
    """The ways that this machine has, and why it has no others."""
    if device_name() == "cpu":
        return ["file"], ["ipc: it takes a GPU", "nccl: it takes two GPUs"]
    if torch.cuda.device_count() < 2:
        return ["file", "ipc"], ["nccl: it takes two GPUs"]
    return ["file", "ipc", "nccl"], []


def second_gpu() -> str:
    """As CUDA_VISIBLE_DEVICES writes it."""
    seen = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    return seen.split(",")[1] if seen else "1"


@contextmanager
def opened(way: Way, folder: Path) -> Iterator[tuple[Any, Any]]:
    """The engines of a run with one policy, and its learner."""
    from flowzoo.agents import Sampling
    from flowzoo.baselines.engines.hf import load_policies
    from flowzoo.baselines.engines.vllm import VLLMEngines
    from flowzoo.baselines.learner.config import LearnerConfig
    from flowzoo.baselines.learner.update import Learner
    from flowzoo.baselines.settings.config import TrainConfig
    from flowzoo.baselines.settings.rules import check, scale_rules
    from flowzoo.envs import make_workflow

    dtype = "bfloat16" if device_name() == "cuda" else "float32"
    config = TrainConfig(
        model=str(folder), engine="vllm", placement="split", weight_transfer=way,
        engine_devices=second_gpu() if way == "nccl" else "", engine_dtype=dtype, compute=dtype,
        max_batch=64, max_prompt=1024, max_tokens=64, engine_restarts=1,
    )  # fmt: skip
    check(scale_rules(config))
    policies = load_policies(config, ["shared"], "math")
    learner = Learner(policies["shared"].weights, LearnerConfig(compute=dtype))
    task = make_workflow("voting", "math").task
    problems = [task.problem(index, "validation") for index in range(4)]
    sampling = {"shared": Sampling(max_tokens=64)}
    engines = VLLMEngines(config, policies, {"shared": learner}, sampling, sampling, problems)
    try:
        yield engines, learner
    finally:
        engines.close()


def move(learner: Any) -> None:
    """Give every weight another value, so that old ones would be seen."""
    with torch.no_grad():
        for weight in learner.parameters:
            weight.add_(0.01 * torch.randn_like(weight))


def measure(way: Way, options: Options, folder: Path) -> dict[str, Any]:
    """Seconds of every transfer, and what the proof said; then what becomes of lost engines."""
    with opened(way, folder) as (engines, learner):
        seconds, gaps = [], []
        for _ in range(1 + options.repeats):
            move(learner)
            row = engines.sync()
            seconds.append(row["time/sync"])
            gaps.append(row["sync/gap_max/shared"])
        numbers = sum(one.numel() for one in learner.weights.state().values())
        sent = numbers * (2 if device_name() == "cuda" else 4)
        best = min(seconds[1:] or seconds)
        found: dict[str, Any] = {
            "way": way, "bytes": sent, "first_seconds": seconds[0], "seconds": best,
            "gib_per_second": sent / best / 2**30, "largest_sync_gap": max(gaps),
            "peak_gib": peak_gib(),
        }  # fmt: skip
        if options.faults:
            found["killed"] = lost(engines, learner, kill=True, limit=options.limit)
            found["stopped"] = lost(engines, learner, kill=False, limit=options.limit)
    return found


def lost(engines: Any, learner: Any, *, kill: bool, limit: float) -> dict[str, Any]:
    """What became of a transfer whose engine stood still and, with `kill`, was killed then."""
    from flowzoo.agents.vllm import async_engine
    from flowzoo.agents.vllm.backend import EngineDeadError

    engines.before_learning()  # the restarts of another step
    (engine,) = engines._engines.values()
    (process,) = engine.backend._engine.engine_core.resources.engine_manager.processes
    move(learner)
    os.kill(process.pid, signal.SIGSTOP)
    killer = threading.Timer(KILL_AFTER_S, os.kill, (process.pid, signal.SIGKILL))
    usual = async_engine.CHANGED_WITHIN_S
    began = time.perf_counter()
    if kill:
        killer.start()
    else:
        async_engine.CHANGED_WITHIN_S = limit
    try:
        engine.load_weights(learner.weights.state())
    except EngineDeadError as error:
        seconds, died = time.perf_counter() - began, error
    else:
        raise RuntimeError("an engine that stands still took weights")
    finally:
        async_engine.CHANGED_WITHIN_S = usual
    began = time.perf_counter()
    engines.recover(died)  # starts it again and proves that it has the weights, or raises
    return {
        "error": str(died), "seconds_until_error": seconds,
        "seconds_until_proved_again": time.perf_counter() - began,
    }  # fmt: skip


def main(options: Options) -> int:
    """Measure every way that this machine has and print one JSON object after each."""
    ways, left_out = possible()
    results: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "model"
        write_model(options.size, folder)
        for way in options.ways or ways:
            results.append(measure(way, options, folder))
            report(
                {
                    "benchmark": "transfer",
                    "options": asdict(options),
                    "results": results,
                    "left_out": left_out,
                },
                options.json,
            )
    return 0


if __name__ == "__main__":
    sys.exit(main(read_arguments(Options, __doc__)))
