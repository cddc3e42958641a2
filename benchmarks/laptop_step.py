"""Cost of a training step of a small pretrained model: this tree, an earlier one, TRL and vLLM.

    python -m benchmarks.laptop_step --model MODEL --before CLONE --trl PYTHON --json out.json

A step samples generated problems of `math`, four replies each, grades them and updates the model by
GRPO with AdamW. The reward is a reply's length, so that every group has something to learn from.
Sides are processes that take a step each in turns, on one thread; a unit is a sampled token. Times
of the learner and of all else, which is sampling but for grading, are apart. `before` is a clone of
an earlier commit, run with its own defaults; `exact` is this tree in float32, `default` with what
it chooses by itself, `int8` with `--engine-dtype int8`, `vllm` with vLLM as its sampler. TRL
samples with transformers' `generate`, in bfloat16 mixed precision; its environment needs peft for
adapters. Peak memory is of the whole process.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

from benchmarks.harness.record import machine_facts, write_results
from benchmarks.harness.timing import Lap, digits, in_turns, summary
from benchmarks.speed.learner import LearnerSide, answer
from flowzoo.agents.model_files import model_source
from flowzoo.commands.arguments import read_arguments

if TYPE_CHECKING:
    from flowzoo.envs import FinishedEpisode

HERE = Path(__file__).resolve().parent
SAMPLES = 4
OURS: dict[str, dict[str, Any]] = {
    "before": {},
    "exact": {"engine_dtype": "float32", "compute": "float32"},
    "default": {},
    "int8": {"engine_dtype": "int8", "sync_tolerance": 1.0},
    "vllm": {"engine": "vllm", "engine_memory": 0.5},
}
"""Settings of the sides of this project."""


@dataclass(frozen=True)
class Options:
    """Model, amount of work, sides and output of the benchmark."""

    model: str
    """Folder, GGUF file or name of the model."""
    before: str = ""
    """Clone of an earlier commit; empty: without that side."""
    trl: str = ""
    """Python of an environment with TRL (`make env-trl`); empty: without that side."""
    sides: tuple[str, ...] = ("before", "exact", "default", "int8", "vllm", "TRL")
    """Sides, of which the first is the reference."""
    weights: tuple[str, ...] = ("all", "adapter")
    """Weights that are trained; an adapter has rank 16."""
    rows: tuple[int, ...] = (16, 64)
    """Rows of a step."""
    tokens: int = 32
    """Most tokens of a reply."""
    rounds: int = 5
    """Steps of every side that are timed."""
    json: Path | None = None
    """File for the figures; rows of other models, weights and sizes stay."""


def settings(job: dict[str, Any]) -> dict[str, Any]:
    """Settings of a run; every name was there before too."""
    return {
        "workflow": "single", "task": "math", "options": ("level=2",), "model": job["model"],
        "prompts": "short", "examples": 0, "problems": job["rows"] // SAMPLES, "samples": SAMPLES,
        "max_tokens": job["max_tokens"], "steps": 10_000, "eval_problems": 1, "lr": 1e-6,
        "lora_rank": 16 if job["weights"] == "adapter" else 0, "truncated": "train",
        "reward": f"{HERE / 'laptop_step.py'}:length",
        "transcripts_every": 10_000, "threads": 1, **OURS[job["side"]], "out": job["folder"],
    }  # fmt: skip


def length(episode: FinishedEpisode) -> float:
    """Kilobytes of the last reply, a reward that differs whatever the model can."""
    return len(episode.replies[-1][1]) / 1000


def serve(job_file: str) -> None:
    """Be a side of this project: a step per line of input, a line of JSON for each."""
    job = json.loads(Path(job_file).read_text())
    from flowzoo.baselines.learner.update import Learner
    from flowzoo.baselines.settings.config import TrainConfig
    from flowzoo.baselines.training.trainer import Trainer

    run = Trainer(TrainConfig(**settings(job)))
    update, spent = Learner.update, {"learner": 0.0}

    def timed(*args: Any) -> Any:
        start = time.process_time()
        result = update(*args)
        spent["learner"] += time.process_time() - start
        return result

    Learner.update = timed  # type: ignore[method-assign]
    for _ in sys.stdin:
        spent["learner"], before = 0.0, run.state.tokens
        wall, cpu = time.perf_counter(), time.process_time()
        run.state.step += 1
        run.iterate(run.state.step)
        seconds, cpu = time.perf_counter() - wall, time.process_time() - cpu
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        result = {"seconds": seconds, "cpu": cpu, "tokens": run.state.tokens - before, "peak": peak}
        answer(json.dumps({**spent, **result}))


def prompts(rows: int) -> list[list[dict[str, str]]]:
    """Messages of as many problems as a step has, as the sides of this project ask them."""
    from flowzoo.envs import make_env

    env = make_env("single", "math", level=2, texts="short")
    messages = []
    for index in range(rows // SAMPLES):
        env.reset(seed=index)
        messages.append(list(env.unwrapped.observe(env.agent_selection)["messages"]))
    return messages


class Side(LearnerSide):
    """A process that does one step per command, with the learner's share of each."""

    def __init__(self, options: Options, name: str, weights: str, rows: int) -> None:
        model = str(model_source(options.model))
        self.learner: list[float] = []
        """CPU seconds of the learner of each timed step."""
        tree = options.before if name == "before" else str(HERE.parent)
        job = {
            "side": name, "mode": "whole", "model": model, "weights": weights, "rows": rows,
            "samples": SAMPLES, "max_tokens": options.tokens, "microbatch": 16, "lr": 1e-6,
            "bf16": True, "given": [], "prompts": [],
        }  # fmt: skip
        command = [sys.executable, str(HERE / "laptop_step.py"), "--serve"]
        if name == "TRL":
            job["prompts"] = [{"messages": chat} for chat in prompts(rows)]
            command = [options.trl, str(HERE / "speed" / "trl_worker.py")]
        with patch.dict(os.environ, PYTHONPATH=tree):
            super().__init__(command, job)

    def step(self) -> dict[str, float]:
        """Do one step, and keep the learner's time."""
        result = super().step()
        self.learner.append(result.get("learner", 0.0))
        return result


def phases(laps: dict[str, list[Lap]], sides: dict[str, Side]) -> dict[str, Any]:
    """Laps of the learner and of all else, of the sides that tell them apart."""
    learner, rest = {}, {}
    for name, side in sides.items():
        spent = side.learner[-len(laps[name]) :]
        if any(spent):
            pairs = list(zip(laps[name], spent, strict=True))
            learner[name] = [Lap(lap.units, cpu, cpu) for lap, cpu in pairs]
            rest[name] = [Lap(lap.units, lap.cpu - cpu, lap.cpu - cpu) for lap, cpu in pairs]
    return {"learner": summary(learner), "rollout": summary(rest)}


def compare(options: Options, names: list[str], weights: str, rows: int) -> dict[str, Any]:
    """Steps of all sides in turns."""
    with contextlib.ExitStack() as stack:
        sides: dict[str, Side] = {}
        for name in names:
            side = Side(options, name, weights, rows)
            sides[name] = stack.enter_context(contextlib.closing(side))
            side.step()
        laps = in_turns(sides, options.rounds, LearnerSide.lap)
        peaks = {name: round(side.peak) for name, side in sides.items()}
    return {"peak_mib": peaks, "step": summary(laps), **phases(laps, sides)}


def main(options: Options) -> None:
    """Take steps, and print tokens per CPU second and ratios to the first side."""
    absent = {"before": not options.before, "TRL": not options.trl}
    names = [name for name in options.sides if not absent.get(name)]
    results: dict[str, Any] = {"machine": machine_facts(), "models": {}}
    if options.json and options.json.exists():
        results["models"] = json.loads(options.json.read_text())["models"]
    cells = results["models"].setdefault(Path(options.model).name.split(".Q")[0], {})
    for weights in options.weights:
        for rows in options.rows:
            cell = compare(options, names, weights, rows)
            cells[f"{weights}, {rows} rows"] = cell
            for phase in ("step", "rollout", "learner"):
                for name, row in cell[phase].items():
                    ratio = row.get("cpu_ratio", {}).get("median")
                    speed = digits(1e6 / row["cpu_us"]["median"])
                    print(weights, rows, phase, name, speed, "tok/CPU-s", ratio, flush=True)
            print(weights, rows, "peak MiB", cell["peak_mib"], flush=True)
            if options.json:
                write_results(options.json, results)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--serve"]:
        serve(sys.argv[2])
    else:
        main(read_arguments(Options))
