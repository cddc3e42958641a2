"""CPU time of int8 products in the order that this CPU multiplies best, beside torch's product.

    python -m benchmarks.int8_products --json out.json

Both scale the same sums. Every product has weights that are in no cache, as in a model's layers; a
unit is a product. The default shapes are those of SmolLM2-135M's and Qwen2.5-0.5B's layers.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import torch

from benchmarks.harness.record import machine_facts, write_results
from benchmarks.harness.timing import Contender, race
from flowzoo.agents.hf.int8_kernels import has_dot_products
from flowzoo.agents.hf.int8_levels import Levels, PackedLevels, PlainLevels, quantize
from flowzoo.commands.arguments import read_arguments
from flowzoo.errors import UsageError


@dataclass(frozen=True)
class Options:
    """Sizes and output of the benchmark."""

    shapes: tuple[str, ...] = (
        "192x576", "576x576", "1536x576", "576x1536", "49152x576", "4864x896", "896x4864",
    )  # fmt: skip
    """Sizes of weights, out_features x in_features."""
    rows: tuple[int, ...] = (4, 16, 64, 256)
    """Rows of inputs."""
    weights: int = 60_000_000
    """Number of weights that are cycled through."""
    rounds: int = 7
    """Turns of both."""
    json: Path | None = None
    """File for the figures."""


def copies(options: Options, kind: Any, weight: torch.Tensor) -> list[Levels]:
    """Equal layers, of which each is out of the cache when its turn comes."""
    layers = []
    for _ in range(max(2, options.weights // weight.numel())):
        layers.append(kind())
        layers[-1].take(weight)
    return layers


def multiply(layers: list[Levels], inputs: tuple[Any, Any], count: int) -> int:
    """Multiply by `count` layers in turns; the number of products."""
    for layer in islice(cycle(layers), count):
        layer.multiply(*inputs)
    return count


def main(options: Options) -> None:
    """Race, and print microseconds and ratios."""
    if not has_dot_products():
        raise UsageError("this CPU has no AVX-512 VNNI, or matrix instructions, which torch uses")
    torch.set_num_threads(1)
    torch.manual_seed(0)
    results: dict[str, Any] = {"machine": machine_facts(), "products": {}}
    for shape in options.shapes:
        size = tuple(map(int, shape.split("x")))
        weight = torch.randn(size)
        layers = {
            "torch._int_mm": copies(options, PlainLevels, weight),
            "packed": copies(options, partial(PackedLevels, *size), weight),
        }
        for rows in options.rows:
            inputs = quantize(torch.randn(rows, size[1]))
            count = max(4, int(2e9 / (rows * weight.numel())))
            contenders = [
                Contender(name, partial(multiply, kept, inputs, count))
                for name, kept in layers.items()
            ]
            for kept in layers.values():
                multiply(kept, inputs, 1)
            row = race(contenders, options.rounds)["contenders"]
            ratio = row["packed"]["cpu_ratio"]
            times = {name: lap["cpu_us"]["median"] for name, lap in row.items()}
            print(shape, rows, times, ratio, flush=True)
            results["products"][f"{shape}, {rows} rows"] = row
    if options.json:
        write_results(options.json, results)


if __name__ == "__main__":
    main(read_arguments(Options))
