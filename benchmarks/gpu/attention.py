"""Attention over packed rows: the learner's own, torch's flex attention and its varlen kernel.

    python -m benchmarks.gpu.attention --json attention.json       # one GPU
    python -m benchmarks.gpu.attention --lengths 128 --rows 2      # any CPU

A microbatch is groups of rows that share a prompt, as GRPO's samples do. `packed` computes each
prompt once (`flowzoo.baselines.learner.packing`), `flex` does the same with a block mask,
`varlen` computes every row whole. Time is of a forward and a backward pass of one layer's
attention; outputs are compared with those of rows alone.
"""

from __future__ import annotations

import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from benchmarks.gpu.common import device_name, report, stopwatch
from flowzoo.commands.arguments import read_arguments

HEADS, GROUPS, WIDTH = 16, 8, 128


@dataclass(frozen=True)
class Options:
    """What is measured."""

    lengths: tuple[int, ...] = (1024, 4096, 16384)
    """Tokens of a row, prompt and reply."""
    rows: int = 8
    """Rows that share a prompt."""
    shared: float = 0.75
    """Share of a row that is the prompt."""
    repeats: int = 5
    """Timed passes, after one that is not."""
    json: Path | None = None
    """File for the results."""


def alone(query: Any, key: Any, value: Any, paths: list[Any]) -> Any:
    """The exact output: every row by itself; (tokens, heads, width)."""
    out = torch.empty_like(query[0].transpose(0, 1))
    for path in paths:
        parts = (one[:, :, path] for one in (query, key, value))
        found = torch.nn.functional.scaled_dot_product_attention(
            *parts, is_causal=True, enable_gqa=True
        )
        out[path] = found[0].transpose(0, 1)
    return out


def ways(length: int, options: Options, device: str) -> tuple[dict[str, Any], Any, list[Any]]:
    """Each way, as a function of (query, key, value); number of tokens; where the rows' lie."""
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    from flowzoo.baselines.learner.packing import grow, lay_out, packed_attention

    prompt = int(length * options.shared)
    rows = [[1] * prompt + [2 + number] * (length - prompt) for number in range(options.rows)]
    tree = grow(rows)
    count = len(tree.ids)
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    packing = lay_out(tree).to(torch.device(device)).stacked(HEADS // GROUPS, dtype)
    paths = [torch.from_numpy(path).to(device) for path in tree.paths]
    row_of = torch.zeros(count, dtype=torch.int64, device=device)  # 0: the prompt's tokens
    for number, path in enumerate(paths, 1):
        row_of[path[prompt:]] = number
    place = packing.positions[0]

    def seen(_batch: Any, _head: Any, q: Any, k: Any) -> Any:
        return (place[k] <= place[q]) & ((row_of[k] == 0) | (row_of[k] == row_of[q]))

    mask = create_block_mask(seen, None, None, count, count, device=device)
    flex: Any = torch.compile(flex_attention) if device == "cuda" else flex_attention
    found: dict[str, Any] = {
        "packed": lambda q, k, v: packed_attention(
            torch.nn.Module(), q, k, v, None, packing=packing
        )[0][0],
        "flex": lambda q, k, v: flex(q, k, v, block_mask=mask, enable_gqa=True)[0].transpose(0, 1),
    }
    if device == "cuda":
        from torch.nn.attention.varlen import varlen_attn

        ends = torch.arange(0, (len(paths) + 1) * length, length, dtype=torch.int32, device=device)
        places = torch.cat(paths)

        def varlen(q: Any, k: Any, v: Any) -> Any:
            query, key, value = (one[0].transpose(0, 1)[places] for one in (q, k, v))
            # `enable_gqa` came after torch 2.11.
            key, value = (one.repeat_interleave(HEADS // GROUPS, 1) for one in (key, value))
            out: Any = varlen_attn(
                query, key, value, ends, ends, length, length, window_size=(-1, 0)
            )
            return torch.empty_like(q[0].transpose(0, 1)).index_copy(0, places, out)

        found["varlen"] = varlen
    return found, count, paths


def measure(length: int, options: Options) -> dict[str, Any]:
    """Seconds and differences of every way at one length."""
    device = device_name()
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    found, count, paths = ways(length, options, device)
    torch.manual_seed(0)
    given: list[Any] = [
        torch.randn(1, heads, count, WIDTH, device=device, dtype=dtype, requires_grad=True)
        for heads in (HEADS, GROUPS, GROUPS)
    ]
    with torch.no_grad():
        exact = alone(given[0], given[1], given[2], paths)
    results: dict[str, Any] = {"length": length, "rows": options.rows, "distinct_tokens": count}
    for name, way in found.items():
        one: dict[str, Any] = {}
        results[name] = one
        try:
            with torch.no_grad():
                out = way(*(part.detach() for part in given))
                one["largest_difference"] = float((out - exact).abs().max())
            way(*given).sum().backward()
            times: dict[str, float] = {}
            with stopwatch(times, name):
                for _ in range(options.repeats):
                    way(*given).sum().backward()
            one["seconds"] = times[name] / options.repeats
        except (RuntimeError, ValueError) as error:  # flex has no backward pass on a CPU
            one["error"] = str(error).splitlines()[0]
    return results


def main(options: Options) -> int:
    """Measure every length and print one JSON object."""
    report(
        {
            "benchmark": "attention",
            "options": asdict(options),
            "results": [measure(length, options) for length in options.lengths],
        },
        options.json,
    )
    return 0


if __name__ == "__main__":
    sys.exit(main(read_arguments(Options, __doc__)))
