"""What the GPU scripts share: models of random weights, the card's limits, JSON.

Everything here also runs on a CPU at tiny size (`--size tiny`), where the numbers mean nothing but
the code is the same. Limits of a card are what it is rated for, not what was measured.
"""

from __future__ import annotations

import json
import platform
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch

from benchmarks.harness.record import machine_facts, write_results


class Card(NamedTuple):
    """Memory bandwidth in bytes/s and dense bf16 arithmetic in FLOP/s of one GPU."""

    bandwidth: float
    flops: float


CARDS = {"H200": Card(4.0e12, 788e12), "H100": Card(3.35e12, 788e12), "A100": Card(2.0e12, 312e12)}
"""By a part of the name the driver reports. The H200's are those of spec sheets less what kernels
never reach."""

SHAPES: dict[str, dict[str, Any]] = {
    "tiny": {"hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 3,
             "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32,
             "vocab_size": 768},
    "0.6B": {"hidden_size": 1024, "intermediate_size": 3072, "num_hidden_layers": 28,
             "num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 128,
             "vocab_size": 151936},
    "1.7B": {"hidden_size": 2048, "intermediate_size": 6144, "num_hidden_layers": 28,
             "num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 128,
             "vocab_size": 151936},
    "4B": {"hidden_size": 2560, "intermediate_size": 9728, "num_hidden_layers": 36,
           "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128,
           "vocab_size": 151936},
}  # fmt: skip
"""Shapes of Qwen3; the weights are random, so nothing is downloaded."""


@dataclass(frozen=True)
class Shape:
    """The sizes that a roofline needs."""

    parameters: int
    """Without the input embedding, which is looked up and not multiplied."""
    kv_bytes: int
    """Bytes of key-value cache per token, in bf16."""
    layers: int
    attention: int
    """Width of the attention: heads times head size."""

    def decode_limit(self, card: Card, batch: int, context: int) -> float:
        """Tokens/s at which reading weights and cache fills the card's bandwidth."""
        moved = 2 * self.parameters + batch * context * self.kv_bytes
        return batch / max(moved / card.bandwidth, 2 * batch * self.parameters / card.flops)

    def train_flops(self, tokens: int, length: int, *, frozen: bool = False) -> float:
        """Forward and backward FLOPs of `tokens` in rows of `length`; a frozen base needs 2/3.

        Source: 6 N per token plus causal attention, as in arXiv 2204.02311, appendix B.
        """
        attention = 6 * self.layers * self.attention * length
        per_token = (4 if frozen else 6) * self.parameters + attention
        return per_token * tokens


def model_config(size: str) -> Any:
    """The Qwen3 config of a size; the real ones have their embedding as output head."""
    from transformers import Qwen3Config

    if size not in SHAPES:
        sys.exit(f"size must be one of {', '.join(SHAPES)}, got {size!r}")
    shape = SHAPES[size]
    return Qwen3Config(
        **shape,
        layer_types=["full_attention"] * shape["num_hidden_layers"],
        max_position_embeddings=4096 if size == "tiny" else 40960,
        rope_parameters={"rope_type": "default", "rope_theta": 1e6},
        tie_word_embeddings=size != "tiny",
        eos_token_id=2,
    )


def shape_of(size: str) -> Shape:
    """The sizes of a model."""
    config = model_config(size)
    heads = config.num_attention_heads * config.head_dim
    kv = config.num_key_value_heads * config.head_dim
    layer = config.hidden_size * (2 * heads + 2 * kv) + 3 * config.hidden_size * (
        config.intermediate_size
    )
    layers = config.num_hidden_layers
    return Shape(
        parameters=layers * layer + config.vocab_size * config.hidden_size,
        kv_bytes=layers * 2 * kv * 2,
        layers=layers,
        attention=heads,
    )


def write_config(size: str, folder: Path) -> None:
    """Config and tokenizer (the pocket model's) for an engine with `load_format="dummy"`."""
    from transformers import AutoTokenizer

    from flowzoo.agents.pocket import pocket_path

    model_config(size).save_pretrained(folder)
    config = json.loads((folder / "config.json").read_text())
    config["architectures"] = ["Qwen3ForCausalLM"]
    (folder / "config.json").write_text(json.dumps(config))
    tokenizer: Any = AutoTokenizer.from_pretrained(pocket_path())
    tokenizer.save_pretrained(folder)


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
    """The card or processor, its limits if known, and versions."""
    limits = card()
    gpu = torch.cuda.get_device_name(0) if torch.cuda.is_available() else None
    return {
        **machine_facts(),
        "device": gpu or f"CPU {platform.machine()}",
        "limits": limits._asdict() if limits else None,
        "command": sys.argv,
    }


def card() -> Card | None:
    """Limits of the first GPU; None where they are not listed."""
    if not torch.cuda.is_available():
        return None
    name = torch.cuda.get_device_name(0)
    return next((limits for part, limits in CARDS.items() if part in name), None)


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
