"""Size of a KV cache. Imports neither vLLM nor torch."""

from __future__ import annotations

from typing import Any

BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
"""Bytes of a number by number format."""
_WITHOUT = ("linear_attention", "mamba", "conv", "recurrent")
"""Kinds of layers whose memory does not grow with the context."""


def cache_numbers(config: Any) -> int:
    """Numbers in the cache for one token: keys and values of every attention layer.

    Layers that look back only so far count as if they looked back all the way, as vLLM's cache of
    mixed layers does at worst.
    """
    text = config.get_text_config(decoder=True)
    queries = getattr(text, "num_attention_heads", None) or 0
    if not queries:  # a family without attention
        return 0
    heads = getattr(text, "num_key_value_heads", None) or queries
    width = getattr(text, "head_dim", None) or text.hidden_size // queries
    kinds = getattr(text, "layer_types", None)
    layers = text.num_hidden_layers
    if kinds:
        layers = sum(not any(part in kind for part in _WITHOUT) for kind in kinds)
    return 2 * layers * heads * width


def cache_bytes(config: Any, dtype: str, tokens: int, block: int) -> int:
    """Bytes that vLLM needs to hold one sequence of `tokens` in blocks of `block` tokens.

    One block more than the sequence fills: vLLM keeps an empty one.
    """
    blocks = -(-tokens // block) + 1
    return blocks * block * cache_numbers(config) * BYTES[dtype]
