"""Attention over packed rows, for any transformers model whose layers are all full attention.

The model computes projections, norms and feed-forward layers on the packed sequence as on any
other; only this function, registered with the library as an attention implementation, looks at the
`Packing` that the model hands through. Each bucket is one call of sdpa. The query heads of a group
stand in the place of query positions, so keys and values are not copied per head (except for long
whole rows). Rows that are not packed take the library's own way.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional
from transformers import AttentionInterface, PreTrainedModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import AttentionMaskInterface, sdpa_mask

from flowzoo.agents.hf.attention import LEARNING, text_config
from flowzoo.baselines.learner.prefix_tree import AttentionBucket, Packing
from flowzoo.errors import UsageError


def packed_attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    *,
    packing: Packing | None = None,
    scaling: float | None = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """Attention of each token to its path.

    Args:
        module: the attention layer.
        query: (1, heads, N, head_dim).
        key: (1, groups, N, head_dim).
        value: as `key`.
        attention_mask: nothing that is looked at where there is a packing.
        packing: of these tokens, stacked for this model; None: rows are not packed and go to sdpa.
        scaling: factor on the scores.
        kwargs: passed on.

    Raises:
        UsageError: the layer has a window or a cap, which packed rows do not support.
    """
    if packing is None:
        return sdpa_attention_forward(
            module, query, key, value, attention_mask, scaling=scaling, **kwargs
        )
    refused = ("sliding_window", "softcap", "s_aux")
    extra = [name for name in refused if kwargs.get(name) is not None]
    if extra or kwargs.get("dropout"):
        raise UsageError(f"{type(module).__name__} attends with {', '.join(extra) or 'dropout'}")
    _, heads, count, head_dim = query.shape
    groups = key.shape[1]
    # (N, heads * head_dim): a gathered token is one contiguous piece of memory.
    queries, keys, values = (x.transpose(1, 2).reshape(count, -1) for x in (query, key, value))
    shape = (groups, heads // groups, head_dim)
    parts = [_attend(queries, keys, values, one, shape, scaling) for one in packing.buckets]
    out = functional.embedding(packing.places, torch.cat(parts))
    return out.view(1, count, heads, -1), None


def _attend(
    queries: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    bucket: AttentionBucket,
    shape: tuple[int, int, int],
    scaling: float | None,
) -> torch.Tensor:
    """The output of a bucket's queries, (segments * Q, heads * head_dim)."""
    groups, rep, head_dim = shape
    count, width = bucket.queries.shape
    # `embedding` gathers as indexing does, and sums quickly what was gathered more than once.
    query = functional.embedding(bucket.queries, queries)
    query = query.view(count, width, groups, rep, head_dim).permute(0, 2, 3, 1, 4)
    key, value = (
        functional.embedding(bucket.keys, part).unflatten(-1, (groups, -1)).transpose(1, 2)
        for part in (keys, values)
    )
    if bucket.bias is None:
        key, value = key.repeat_interleave(rep, 1), value.repeat_interleave(rep, 1)
        query = query.flatten(1, 2)
    else:
        query = query.flatten(2, 3)
    out = functional.scaled_dot_product_attention(
        query, key, value, attn_mask=bucket.bias, is_causal=bucket.bias is None, scale=scaling
    )
    out = out.reshape(count, groups, rep, width, -1).permute(0, 3, 1, 2, 4)
    return out.reshape(count * width, -1)


AttentionInterface.register(LEARNING, packed_attention)
AttentionMaskInterface.register(LEARNING, sdpa_mask)


def use_packed_attention(model: PreTrainedModel) -> None:
    """Make `model` compute attention with `packed_attention`.

    Raises:
        UsageError: it has layers of another kind than full attention.
    """
    config = text_config(model)
    kinds = set(getattr(config, "layer_types", None) or ["full_attention"])
    if kinds != {"full_attention"}:
        raise UsageError(f"its layers are {', '.join(sorted(kinds))}, and not full_attention alone")
    config._attn_implementation = LEARNING
