"""Time of int8 products in the order that this CPU multiplies best, beside products of torch.

    python -m benchmarks.int8_products --json out.json

`torch._int_mm` gives the same sums, and both are scaled; `float32` is an exact layer. Products have
weights that are in no cache, as in a model's layers; a unit is a product. The default shapes are
those of SmolLM2-135M's and Qwen2.5-0.5B's layers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import torch

from benchmarks.harness.record import machine_facts, write_results
from benchmarks.harness.timing import Contender, race
from flowzoo.agents.hf.int8_levels import Levels, PackedLevels, PlainLevels, quantize
from flowzoo.agents.hf.int8_product import instructions
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
    threads: int = 1
    """Threads of torch."""
    weights: int = 60_000_000
    """Number of weights that are cycled through."""
    rounds: int = 7
    """Turns of all."""
    json: Path | None = None
    """File for the figures."""


def quantized(options: Options, kind: Any, weight: torch.Tensor) -> list[Levels]:
    """Equal layers, of which each is out of the cache when its turn comes."""
    layers = [kind() for _ in range(copies(options, weight))]
    for layer in layers:
        layer.take(weight)
    return layers


def copies(options: Options, weight: torch.Tensor) -> int:
    """Number of layers that are cycled through."""
    return max(2, options.weights // weight.numel())


def multiply(products: list[Callable[..., Any]], inputs: tuple[Any, ...], count: int) -> int:
    """Multiply by `count` layers in turns; the number of products."""
    for product in islice(cycle(products), count):
        product(*inputs)
    return count


def main(options: Options) -> None:
    """Race, and print microseconds and ratios."""
    kind = instructions()
    if kind is None:
        raise UsageError("this CPU has no AVX2, or matrix instructions, which torch uses")
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    results: dict[str, Any] = {"machine": machine_facts(), "instructions": kind, "products": {}}
    for shape in options.shapes:
        size = tuple(map(int, shape.split("x")))
        weight = torch.randn(size)
        exact = [weight.clone().t() for _ in range(copies(options, weight))]
        plain = quantized(options, PlainLevels, weight)
        packed = quantized(options, partial(PackedLevels, size[0], size[1], kind), weight)
        products = {
            "float32": [partial(torch.mm, mat2=layer) for layer in exact],
            "torch._int_mm": [layer.multiply for layer in plain],
            "packed": [layer.multiply for layer in packed],
        }
        for rows in options.rows:
            features = torch.randn(rows, size[1])
            inputs = {name: quantize(features) for name in products} | {"float32": (features,)}
            count = max(4, int(1e9 / (rows * weight.numel())))
            contenders = [
                Contender(name, partial(multiply, layers, inputs[name], count))
                for name, layers in products.items()
            ]
            for name, layers in products.items():
                multiply(layers, inputs[name], 1)
            row = race(contenders, options.rounds)["contenders"]
            times = {name: lap["wall_us"]["median"] for name, lap in row.items()}
            print(shape, rows, times, row["packed"]["wall_ratio"], flush=True)
            results["products"][f"{shape}, {rows} rows"] = row
    if options.json:
        write_results(options.json, results)


if __name__ == "__main__":
    main(read_arguments(Options))
