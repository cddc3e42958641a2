"""Cost of a learner's update by number format of its matrix products, and what rounding changes.

    python -m benchmarks.learner_formats --model MODEL --json out.json

Each contender updates its copy of the model with the same rows, in turns: all weights, or an
adapter of rank 16. Rows are the model's replies to problems of `math`; a unit is a trained token.
Beside the times: the cosine of the first gradients of bfloat16 and float32, and their difference
relative to the norm of float32's.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from benchmarks.harness.record import machine_facts, write_results
from benchmarks.harness.timing import Contender, digits, race
from flowzoo.agents.hf.decode import DecodeRequest, decode
from flowzoo.agents.hf.policy import load_model
from flowzoo.agents.policy import Sampling
from flowzoo.baselines.learner.config import LearnerConfig
from flowzoo.baselines.learner.lora import LoraBase, LoraSettings
from flowzoo.baselines.learner.update import Learner
from flowzoo.commands.arguments import read_arguments
from flowzoo.envs import Call
from flowzoo.envs.tasks.math import MathTask

FORMATS = ("float32", "bfloat16")
WEIGHTS = ("all", "adapter")


@dataclass(frozen=True)
class Options:
    """Model, amount of work and output of the benchmark."""

    model: str
    """Folder, GGUF file or name of the model."""
    weights: tuple[str, ...] = WEIGHTS
    """Weights that are trained."""
    rows: tuple[int, ...] = (16, 64)
    """Rows of an update: four replies to each problem."""
    tokens: int = 48
    """Tokens of a reply."""
    rounds: int = 5
    """Turns of every format."""
    json: Path | None = None
    """File for the figures."""


def calls(options: Options, model: Any, tokenizer: Any, count: int) -> list[Call]:
    """Rows of generated problems with the model's replies."""
    task = MathTask(level=2)
    texts = [task.prompt(task.problem(index, "train")) for index in range(count // 4)]
    chats = [
        tokenizer.apply_chat_template(
            [{"role": "user", "content": text}], add_generation_prompt=True, return_dict=False
        )
        for text in texts
    ]
    requests = [DecodeRequest(tuple(chats[row // 4]), row, options.tokens) for row in range(count)]
    replies, _ = decode(model, requests, Sampling(), frozenset(), lambda: False)
    return [
        Call(
            problem=f"p{row // 4}", episode=f"p{row // 4}#{row % 4}", agent="generator_0",
            role="generator", slot=0, turn=0, phase=0, messages=(), reply="", strict=True,
            lenient=True, role_score=None, parts={}, reward=0.0, state_hash="", prompts="",
            prompt_ids=request.prompt, output_ids=tuple(reply.tokens), logps=tuple(reply.logps),
        )
        for row, (request, reply) in enumerate(zip(requests, replies, strict=True))
    ]  # fmt: skip


def learner(options: Options, model: Any, name: str) -> Learner:
    """A learner of a copy of `model`, by the name `FORMAT, WEIGHTS`."""
    compute, weights = name.split(", ")
    mine = copy.deepcopy(model)
    adapter = LoraBase(mine, "", LoraSettings()).add("a", 0) if weights == "adapter" else None
    return Learner(adapter or mine, LearnerConfig(lr=1e-6, compute=compute))  # type: ignore[arg-type]


def first_gradient(one: Learner, rows: list[Call]) -> torch.Tensor:
    """The gradient of the first update, flat; the optimizer's step is taken with it."""
    one.update(rows, advantages(rows))
    return torch.cat([state["exp_avg"].flatten() for state in one.optimizer.state.values()])


def advantages(rows: list[Call]) -> list[float]:
    """One for every other row, minus one for the rest."""
    return [1.0 if number % 2 else -1.0 for number in range(len(rows))]


def compare(options: Options, model: Any, rows: list[Call], weights: str) -> dict[str, Any]:
    """Race the formats over `rows`, and compare their first gradients."""

    def work(mine: Learner) -> int:
        mine.update(rows, advantages(rows))
        return sum(len(row.output_ids or ()) for row in rows)

    learners = {name: learner(options, model, f"{name}, {weights}") for name in FORMATS}
    exact, rounded = (first_gradient(mine, rows).double() for mine in learners.values())
    cosine = torch.nn.functional.cosine_similarity(exact, rounded, dim=0)
    error = (exact - rounded).norm() / exact.norm()
    contenders = [Contender(name, partial(work, mine)) for name, mine in learners.items()]
    return {
        "cosine": digits(float(cosine)),
        "relative_error": digits(float(error)),
        "formats": race(contenders, options.rounds)["contenders"],
    }


def main(options: Options) -> None:
    """Race, and print trained tokens per CPU second."""
    torch.set_num_threads(1)
    model, tokenizer = load_model(options.model, "float32")
    samples = {count: calls(options, model, tokenizer, count) for count in options.rows}
    results: dict[str, Any] = {"machine": machine_facts(), "weights": {}}
    for weights in options.weights:
        results["weights"][weights] = {}
        for count, rows in samples.items():
            row = compare(options, model, rows, weights)
            for name, figures in row["formats"].items():
                figures["tok_per_cpu_s"] = digits(1e6 / figures["cpu_us"]["median"])
                print(weights, count, name, figures["tok_per_cpu_s"], figures.get("cpu_ratio"))
            print(weights, count, "cosine", row["cosine"], "error", row["relative_error"])
            results["weights"][weights][str(count)] = row
    if options.json:
        write_results(options.json, results)


if __name__ == "__main__":
    main(read_arguments(Options))
