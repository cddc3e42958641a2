"""Cost of a training step of a small pretrained model: this tree, earlier ones, TRL and vLLM.

    python -m benchmarks.laptop_step --model MODEL --clones CLONE --trl PYTHON --json out.json

A step samples generated problems of `math`, four replies each, grades them and updates the model by
GRPO with AdamW. The reward is a reply's length, so that every group has something to learn from.
Sides are processes that take a step each in turns, on one thread; a unit is a sampled token. Times
of the learner and of all else, which is sampling but for grading, are apart. Clones of earlier
commits run with their own defaults and must ask the same prompts; their missing packages may be on
PYTHONPATH. `exact` is this tree in float32, `default` with what it chooses by itself, `int8` with
`--engine-dtype int8`, `vllm` with vLLM as its sampler, in the same process. TRL samples with
transformers' `generate`, in bfloat16 mixed precision where the hardware has it; its environment
needs peft for adapters. Peak memory is of the whole process. On a GPU, all time is wall time,
memory is the GPU's, and shares are of its rated bfloat16 products.

The share of a limit is the arithmetic that no implementation can leave out, over what matrix
products alone would do in the same time. A prompt is read once for all its replies: with N weights
in layers and H in the output head, sampling takes 2 N for a token read and 2 (N + H) for a token
sampled, learning three times as much, and two times with an adapter; attention is not counted.
"""

from __future__ import annotations

import contextlib
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch

from benchmarks.gpu.common import card
from benchmarks.harness.record import machine_facts, write_results
from benchmarks.harness.timing import Lap, digits, in_turns, summary
from benchmarks.laptop_worker import OURS, SAMPLES
from benchmarks.speed.learner import LearnerSide
from flowzoo.agents.hf.matmul_speed import matmul_speeds
from flowzoo.agents.model_files import model_source
from flowzoo.agents.traits import has_bfloat16
from flowzoo.arguments import read_arguments

HERE = Path(__file__).resolve().parent


@dataclass(frozen=True)
class Options:
    """Model, amount of work, sides and output of the benchmark."""

    model: str
    """Folder, GGUF file or name of the model."""
    clones: tuple[Path, ...] = ()
    """Clones of earlier commits; the first is the reference."""
    trl: str = ""
    """Python of an environment with TRL (`make env-trl`); empty: without that side."""
    sides: tuple[str, ...] = ("exact", "default", "int8", "vllm", "TRL")
    """Sides beside the clones."""
    weights: tuple[str, ...] = ("all", "adapter")
    """Weights that are trained; an adapter has rank 16."""
    stored: str = "float32"
    """Number format of the weights."""
    rows: tuple[int, ...] = (16, 64)
    """Rows of a step."""
    tokens: int = 32
    """Most tokens of a reply."""
    leave_memory: bool = False
    """Sides return free memory between steps, and leave the rest to swap if there is any, for
    models that do not fit beside each other. This project's sides, which keep free memory
    otherwise, are slower then."""
    rounds: int = 5
    """Steps of every side that are timed."""
    json: Path | None = None
    """File for the figures; rows of other models, weights and sizes stay."""


def messages(rows: int) -> list[list[dict[str, str]]]:
    """Messages of as many problems as a step has, as the sides of this project ask them."""
    from flowzoo.envs import make_env

    env = make_env("single", "math", level=2, texts="short")
    chats = []
    for index in range(rows // SAMPLES):
        env.reset(seed=index)
        chats.append(list(env.unwrapped.observe(env.agent_selection)["messages"]))
    return chats


class Side(LearnerSide):
    """A process that does one step per command, with the learner's share of each."""

    def __init__(self, options: Options, name: str, tree: Path, weights: str, rows: int) -> None:
        self.results: list[Mapping[str, Any]] = []
        """Results of the steps."""
        job = {
            "side": name, "mode": "whole", "model": str(model_source(options.model)),
            "weights": weights, "stored": options.stored, "rows": rows, "samples": SAMPLES,
            "max_tokens": options.tokens, "microbatch": 16, "lr": 1e-6, "reward": "length",
            "leave_memory": options.leave_memory,
            "given": [], "prompts": [], "bf16": torch.cuda.is_available() or has_bfloat16("cpu"),
        }  # fmt: skip
        command = [sys.executable, str(HERE / "laptop_worker.py")]
        if name == "TRL":
            job["prompts"] = [{"messages": chat} for chat in messages(rows)]
            command = [options.trl, str(HERE / "speed" / "trl_worker.py")]
        path = os.pathsep.join(filter(None, [str(tree), os.environ.get("PYTHONPATH")]))
        with patch.dict(os.environ, PYTHONPATH=path):
            super().__init__(command, job)

    def step(self) -> dict[str, float]:
        """Do one step, and keep its result."""
        result = super().step()
        self.results.append(result)
        return result


def short_commit(clone: Path) -> str:
    """Hash of a clone's commit, shortened."""
    command = ["git", "-C", str(clone), "rev-parse", "--short=8", "HEAD"]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def phases(laps: dict[str, list[Lap]], sides: dict[str, Side]) -> dict[str, Any]:
    """Laps of the learner and of all else, of the sides that tell them apart."""
    learner, rest = {}, {}
    for name, side in sides.items():
        spent = [result.get("learner", 0.0) for result in side.results[-len(laps[name]) :]]
        if any(spent):
            pairs = list(zip(laps[name], spent, strict=True))
            learner[name] = [Lap(lap.units, cpu, cpu) for lap, cpu in pairs]
            rest[name] = [Lap(lap.units, lap.cpu - cpu, lap.wall - cpu) for lap, cpu in pairs]
    return {"learner": summary(learner), "rollout": summary(rest)}


def layer_weights(model: str) -> tuple[int, int]:
    """Weights of a model's linear layers and of its output head."""
    from transformers import AutoConfig, AutoModelForCausalLM

    with torch.device("meta"):
        module = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(model_source(model)))
    head = module.get_output_embeddings().weight.numel()
    linears = (layer for layer in module.modules() if isinstance(layer, torch.nn.Linear))
    return sum(layer.weight.numel() for layer in linears) - head, head


def shares(
    options: Options, weights: str, sides: dict[str, Side], cell: Mapping[str, Any]
) -> dict[str, Any]:
    """Arithmetic of each phase over the time it took, in 10⁹ operations a second, by side."""
    layers, head = layer_weights(options.model)
    passes = {"rollout": 2, "learner": 6 if weights == "all" else 4}
    speeds: dict[str, Any] = {name: {} for name in sides}
    for name, side in sides.items():
        read = [r["read"] / r["tokens"] for r in side.results[-options.rounds :] if "read" in r]
        for phase, factor in passes.items():
            if name in cell[phase]:
                work = factor * (layers * (1 + statistics.median(read)) + head)
                speeds[name][phase] = work / cell[phase][name]["cpu_us"]["median"] / 1e3
    return {name: speed for name, speed in speeds.items() if speed}


def limits_here() -> dict[str, float]:
    """Billions of operations a second of matrix products, by number format."""
    rated = card()
    return {"bfloat16": rated / 1e9} if rated else {**matmul_speeds()}


def compare(options: Options, weights: str, rows: int) -> dict[str, Any]:
    """Steps of all sides in turns."""
    trees = {short_commit(clone): clone.resolve() for clone in options.clones}
    trees |= {name: HERE.parent for name in options.sides if name != "TRL" or options.trl}
    limits = limits_here()
    with contextlib.ExitStack() as stack:
        sides: dict[str, Side] = {}
        for name, tree in trees.items():
            side = Side(options, name, tree, weights, rows)
            sides[name] = stack.enter_context(contextlib.closing(side))
            side.step()
        prompts = {name: side.results[0].get("prompts") for name, side in sides.items()}
        if len({digest for digest in prompts.values() if digest}) > 1:
            sys.exit(f"the sides ask different prompts: {prompts}")
        laps = in_turns(sides, options.rounds, LearnerSide.lap)
        peaks = {name: round(side.peak) for name, side in sides.items()}
    limits = {name: max(speed, limits[name]) for name, speed in limits_here().items()}
    cell = {"peak_mib": peaks, "step": summary(laps), **phases(laps, sides)}
    return {**cell, "limits": limits, "speeds": shares(options, weights, sides, cell)}


def show(title: str, cell: Mapping[str, Any]) -> None:
    """Print tokens per CPU second, ratios to the first side, speeds and memory."""
    for phase in ("step", "rollout", "learner"):
        for name, row in cell[phase].items():
            ratio = row.get("cpu_ratio", {}).get("median")
            speed = digits(1e6 / row["cpu_us"]["median"])
            print(title, phase, name, speed, "tok/CPU-s", ratio, flush=True)
    for part in ("limits", "speeds", "peak_mib"):
        print(title, part, cell[part], flush=True)


def main(options: Options) -> None:
    """Take steps, print the figures and write them."""
    results: dict[str, Any] = {"machine": machine_facts(), "models": {}}
    if options.json and options.json.exists():
        results["models"] = json.loads(options.json.read_text())["models"]
    cells = results["models"].setdefault(Path(options.model).name.split(".Q")[0], {})
    for weights in options.weights:
        for rows in options.rows:
            title = f"{weights}, {rows} rows"
            cells[title] = compare(options, weights, rows)
            show(title, cells[title])
            if options.json:
                write_results(options.json, results)


if __name__ == "__main__":
    unknown = set((options := read_arguments(Options)).sides) - {*OURS, "TRL"}
    if unknown:
        sys.exit(f"--sides: {', '.join(sorted(unknown))} is none of {', '.join(OURS)}, TRL")
    main(options)
