"""What the GPU scripts share: models of random weights, the card's rating, JSON.

Everything here also runs on a CPU at tiny size (`--size tiny`), where the numbers mean nothing but
the code is the same. A card's limit is what it is rated for, not what was measured.
"""

from __future__ import annotations

import json
import platform
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from benchmarks.harness.record import machine_facts, write_results
from benchmarks.plan.models import COMMON, QWEN3

CARDS = {"H200": 788e12, "H100": 788e12, "A100": 312e12}
"""Dense bf16 arithmetic in FLOP/s of one GPU, by a part of the name that the driver reports."""
TINY: dict[str, Any] = {
    "hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 3,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32, "vocab_size": 768,
    "max_position_embeddings": 4096, "tie_word_embeddings": False,
}  # fmt: skip
"""A Qwen3 that any CPU trains."""


def train_flops(size: str, tokens: int, length: int, *, frozen: bool = False) -> float:
    """Forward and backward FLOPs of `tokens` in rows of `length`; a frozen base needs 2/3.

    Source: 6 N per token plus causal attention, as in arXiv 2204.02311, appendix B. N is without
    the input embedding, which is looked up and not multiplied.
    """
    config = model_config(size)
    heads = config.num_attention_heads * config.head_dim
    groups = config.num_key_value_heads * config.head_dim
    layer = config.hidden_size * (2 * (heads + groups) + 3 * config.intermediate_size)
    layers = config.num_hidden_layers
    weights = layers * layer + config.vocab_size * config.hidden_size
    return tokens * ((4 if frozen else 6) * weights + 6 * layers * heads * length)


def model_config(size: str) -> Any:
    """The Qwen3 config of a size; its weights are random, so nothing is downloaded."""
    from transformers import Qwen3Config

    if size != "tiny" and size not in QWEN3:
        sys.exit(f"size must be one of tiny, {', '.join(QWEN3)}, got {size!r}")
    shape = TINY if size == "tiny" else {**COMMON, **QWEN3[size]}
    return Qwen3Config(
        **shape,
        layer_types=["full_attention"] * shape["num_hidden_layers"],
        rope_parameters={"rope_type": "default", "rope_theta": 1e6},
        eos_token_id=2,
    )


def random_model(size: str, device: str, dtype: torch.dtype = torch.float32) -> Any:
    """A model of random weights, made on its device."""
    from transformers import AutoModelForCausalLM

    torch.manual_seed(0)
    with torch.device(device):
        return AutoModelForCausalLM.from_config(model_config(size), dtype=dtype).eval()


def device_name() -> str:
    """`cuda` where there is a GPU, else `cpu`."""
    return "cuda" if torch.cuda.is_available() else "cpu"


def machine() -> dict[str, Any]:
    """The card or processor, its rating if known, and versions."""
    gpu = torch.cuda.get_device_name(0) if torch.cuda.is_available() else None
    return {
        **machine_facts(),
        "device": gpu or f"CPU {platform.machine()}",
        "rated_flops": card(),
        "command": sys.argv,
    }


def card() -> float | None:
    """Rated FLOP/s of the first GPU; None where they are not listed."""
    if not torch.cuda.is_available():
        return None
    name = torch.cuda.get_device_name(0)
    return next((flops for part, flops in CARDS.items() if part in name), None)


@contextmanager
def stopwatch(times: dict[str, float], name: str) -> Iterator[None]:
    """Add the seconds of the block to `times[name]`, the GPU's queue emptied before and after."""
    _synchronise()
    began = time.perf_counter()
    yield
    _synchronise()
    times[name] = times.get(name, 0.0) + time.perf_counter() - began


def report(results: dict[str, Any], file: Path | None) -> None:
    """Print the JSON, and write it if asked."""
    results = {"machine": machine(), **results}
    print(json.dumps(results, indent=1, default=str))
    if file is not None:
        write_results(file, results)


def _synchronise() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()
