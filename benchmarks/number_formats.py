"""Sampling speed of a learner's own model by number format, and its share of the CPU's limit.

    python -m benchmarks.number_formats --model MODEL --json out.json

Every format continues the same rows by the same number of tokens, in turns; a unit is a sampled
token. `converted` formats convert the learner's weights for every token, which is what autocast
does; others have kept copies (`flowzoo.agents.hf.kept_linears`).
"""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from benchmarks.harness.record import machine_facts, write_results
from benchmarks.harness.timing import Contender, digits, race
from flowzoo.agents.hf.decode import DecodeRequest, decode
from flowzoo.agents.hf.kept_linears import KeptLinears
from flowzoo.agents.hf.matmul_speed import matmul_speeds
from flowzoo.agents.hf.policy import load_model
from flowzoo.agents.policy import Sampling
from flowzoo.commands.arguments import read_arguments

FORMATS = ("converted bfloat16", "float32", "bfloat16", "int8")


@dataclass(frozen=True)
class Options:
    """Model, amount of work and output of the benchmark."""

    model: str
    """Folder, GGUF file or name of the model."""
    formats: tuple[str, ...] = FORMATS
    """Number formats; ratios are to the first."""
    rows: tuple[int, ...] = (16, 64)
    """Rows that are decoded together."""
    prompt: int = 8
    """Tokens of a prompt."""
    tokens: int = 24
    """Tokens that are sampled for every row."""
    rounds: int = 5
    """Turns of every format."""
    json: Path | None = None
    """File for the figures."""


def requests(options: Options, count: int) -> list[DecodeRequest]:
    """Rows with random prompts, none of which end early."""
    generator = random.Random(0)
    return [
        DecodeRequest(
            tuple(generator.randrange(10, 60) for _ in range(options.prompt)), key,
            options.tokens,
        )
        for key in range(count)
    ]  # fmt: skip


def context(model: Any, name: str) -> Callable[[], AbstractContextManager[Any]]:
    """The context in which `model` computes in a number format."""
    if name == "float32":
        return nullcontext
    dtype: Any = name.removeprefix("converted ")
    kept = nullcontext if name != dtype else KeptLinears(model, dtype).active

    def enter() -> ExitStack:
        stack = ExitStack()
        stack.enter_context(kept())
        stack.enter_context(torch.autocast("cpu", torch.bfloat16, enabled=dtype != "int8"))
        return stack

    return enter


def contender(options: Options, model: Any, name: str, count: int) -> Contender:
    """A number format, warm, that continues `count` rows."""
    rows, enter = requests(options, count), context(model, name)

    def work(rows: list[DecodeRequest]) -> int:
        with enter():
            outputs, _ = decode(model, rows, Sampling(), frozenset(), lambda: False)
        return sum(len(output.tokens) for output in outputs)

    work(rows[:1])
    return Contender(name, partial(work, rows))


def refresh_seconds(model: Any, dtype: Any) -> float:
    """CPU seconds in which all layers take the learner's weights over again, and are checked."""
    kept = KeptLinears(model, dtype)
    began = time.process_time()
    kept.refresh()
    assert not kept.differing()
    return digits(time.process_time() - began)


def main(options: Options) -> None:
    """Race, and print tokens and shares."""
    torch.set_num_threads(1)
    model, _ = load_model(options.model, "float32")
    head = model.get_output_embeddings()
    linears = [part for part in model.modules() if type(part) is torch.nn.Linear]
    body = sum(part.weight.numel() for part in linears if part is not head)
    work = 2e-9 * (body * (1 + options.prompt / options.tokens) + head.weight.numel())
    results: dict[str, Any] = {
        "machine": machine_facts(),
        "refresh_and_check_cpu_s": {
            name: refresh_seconds(model, name) for name in ("bfloat16", "int8")
        },
        "rows": {},
    }
    for count in options.rows:
        limits = matmul_speeds(2.0)
        contenders = [contender(options, model, name, count) for name in options.formats]
        race_row = race(contenders, options.rounds)["contenders"]
        for name, row in race_row.items():
            row["tok_per_cpu_s"] = speed = digits(1e6 / row["cpu_us"]["median"])
            limit = limits[name.removeprefix("converted ")]  # type: ignore[index]
            row["share_of_limit"] = digits(speed * work / limit)
            print(count, name, speed, row["share_of_limit"], row.get("cpu_ratio"), flush=True)
        results["rows"][str(count)] = {"limits_gflop_per_cpu_s": limits, "formats": race_row}
    print(json.dumps(results["refresh_and_check_cpu_s"]))
    if options.json:
        write_results(options.json, results)


if __name__ == "__main__":
    main(read_arguments(Options))
