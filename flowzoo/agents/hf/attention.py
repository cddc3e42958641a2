"""Cheap decoding with a transformers model: a cache in place, attention without copies."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from transformers import AttentionInterface, DynamicCache, PreTrainedModel
from transformers.cache_utils import DynamicLayer
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import AttentionMaskInterface, sdpa_mask

_NAME = "flowzoo_grouped"
LEARNING = "flowzoo_learning"
"""Name under which a learner registers its attention; for sampled rows it equals sdpa."""


def text_config(model: PreTrainedModel) -> Any:
    """The configuration of the part of `model` that reads and writes text."""
    return model.config.get_text_config(decoder=True)


def product_dtype(device: torch.device, dtype: torch.dtype) -> torch.dtype:
    """Number format of products of `dtype` on `device`: autocast's if it is on."""
    if torch.is_autocast_enabled(device.type):
        return torch.get_autocast_dtype(device.type)
    return dtype


_AT_ONCE = 2**18
"""Numbers that are converted at once: 1 MiB in float32."""


def cached_parts(tensor: torch.Tensor) -> Iterator[slice]:
    """Slices of rows of `tensor`, in multiples of 16, that fit into a CPU's cache."""
    rows = len(tensor)
    if tensor.device.type == "cpu":
        rows = max(16, _AT_ONCE // tensor[0].numel() // 16 * 16)
    return (slice(first, first + rows) for first in range(0, len(tensor), rows))


# The library's cache concatenates, hence copies itself, at every token, and its sdpa attention
# copies keys and values once per query head of a group. Measured without either on a 0.9 M Qwen3,
# 256 rows, one thread: 4.3 k tokens/s -> 10 k with prompts of 120 tokens, 13 k -> 17 k with 30.
class PreallocatedLayer(DynamicLayer):
    """Keys and values of one layer in a buffer with room for tokens to come."""

    def __init__(self) -> None:
        super().__init__()
        self._buffers: list[torch.Tensor] = []
        self._length = 0
        self._rows, self._of, self._first = slice(None), 0, 0

    def read_rows(self, rows: slice, of: int, first: int) -> None:
        """Until `whole`, act as these rows of a batch of `of`, without the pads before `first`."""
        self._rows, self._of, self._first, self._length = rows, of, first, first
        if self.is_initialized:
            self._publish()

    def whole(self) -> None:
        """Act as the whole batch again; all of its rows must have equal lengths."""
        self._rows, self._first = slice(None), 0
        self._publish()

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: object, **kwargs: object
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Append (rows, heads, new, head_dim) states; return all states so far as views."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
            rows = self._of or key_states.shape[0]
            self._buffers = [
                states.new_empty(rows, states.shape[1], 0, states.shape[3])
                for states in (key_states, value_states)
            ]
        start, self._length = self._length, self._length + key_states.shape[2]
        if self._length > self._buffers[0].shape[2]:
            room = self._length + max(64, self._length // 2)
            self._buffers = [_widen(buffer, room) for buffer in self._buffers]
        for buffer, states in zip(self._buffers, (key_states, value_states), strict=True):
            buffer[self._rows, :, start : self._length] = states
            if self._first == start > 0:  # what is masked has to be finite
                buffer[self._rows, :, :start] = 0
        return self._publish()

    def reorder_cache(self, beam_idx: torch.Tensor) -> None:
        """Keep, or repeat, the rows `beam_idx`."""
        self._buffers = [_rows_of(buffer, beam_idx, self._length) for buffer in self._buffers]
        self._publish()

    def _publish(self) -> tuple[torch.Tensor, torch.Tensor]:
        keys, values = (
            buffer[self._rows, :, self._first : self._length] for buffer in self._buffers
        )
        self.keys, self.values = keys, values
        return keys, values


def _widen(buffer: torch.Tensor, room: int) -> torch.Tensor:
    wide = buffer.new_empty(*buffer.shape[:2], room, buffer.shape[3])
    wide[:, :, : buffer.shape[2]] = buffer
    return wide


def _rows_of(buffer: torch.Tensor, rows: torch.Tensor, used: int) -> torch.Tensor:
    selected = buffer[:, :, :used].index_select(0, rows)
    if len(rows) > len(buffer):
        buffer = buffer.new_empty(len(rows), *buffer.shape[1:])
    buffer[: len(rows), :, :used] = selected
    return buffer[: len(rows)]


def new_cache(model: PreTrainedModel) -> DynamicCache:
    """An empty cache for `model`; layers other than plain full attention keep their own kind."""
    cache = DynamicCache(config=model.config)
    cache.layers = [
        PreallocatedLayer() if type(layer) is DynamicLayer else layer for layer in cache.layers
    ]
    return cache


def grouped_attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """Sdpa attention that shares keys and values within a group of heads for one-token queries.

    Args:
        module: the attention layer.
        query: (rows, heads, 1, head_dim).
        key: (rows, groups, length, head_dim).
        value: as `key`.
        attention_mask: (rows, 1, 1, length), or None.
        dropout: passed on.
        scaling: factor on the scores.
        kwargs: passed on.
    """
    rows, heads, queries, head_dim = query.shape
    groups = key.shape[1]
    if queries != 1 or groups == heads or "position_bias" in kwargs:
        return sdpa_attention_forward(
            module, query, key, value, attention_mask, dropout=dropout, scaling=scaling, **kwargs
        )
    # The query heads of a group take the place of query positions: the same sum without copies.
    out = torch.nn.functional.scaled_dot_product_attention(
        query.reshape(rows, groups, heads // groups, head_dim),
        key,
        value,
        attn_mask=attention_mask,
        dropout_p=dropout,
        scale=scaling,
    )
    return out.reshape(rows, 1, heads, value.shape[3]), None


AttentionInterface.register(_NAME, grouped_attention)
AttentionMaskInterface.register(_NAME, sdpa_mask)


@contextmanager
def decoding(model: PreTrainedModel) -> Iterator[None]:
    """`model` in eval mode with grouped attention (in place of sdpa); restored afterwards."""
    # The module may be the one that a learner trains, so its mode and attention are given back.
    config = text_config(model)
    training, attention = model.training, config._attn_implementation
    model.eval()
    # Falcon and others ask for sdpa by name, and would take their slow path with another mask.
    if attention in ("sdpa", LEARNING) and model._supports_attention_backend:
        config._attn_implementation = _NAME
    try:
        yield
    finally:
        config._attn_implementation = attention
        model.train(training)
