"""Packed rows: what the rows of a microbatch have in common goes through the model once."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional
from transformers import AttentionInterface, PreTrainedModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import AttentionMaskInterface, sdpa_mask

from flowzoo.agents.hf.attention import LEARNING, text_config
from flowzoo.errors import UsageError

Ids = Sequence[int] | np.ndarray

_WASTE = 1.25
"""Segments share a bucket while its padded area is at most this times their own area …"""
_SLACK = 20_000  # … plus this: a bucket costs some time by itself
_SCORES_AT_ONCE = 2**18
"""Most attention scores that are computed at once: 1 MiB in float32."""
_FEW_SCORES = 2**16
"""Most scores of a segment and group that are computed in blocks."""
_ALIGNED = 16
"""Keys of a bucket come in multiples of this on a GPU, as its attention reads them."""
_LONG = 512  # whole rows longer than this go without a table of who sees whom, which would be large


class PackedSegment(NamedTuple):
    """The tokens that a row brings along."""

    start: int  # position of the first in the packed sequence
    length: int
    path: np.ndarray
    """Positions of all tokens that the last of them sees; the last `length` are the segment's own.
    """


@dataclass(frozen=True, slots=True)
class AttentionBucket:
    """Segments of like shape, padded to one another; Q is the longest, K the longest path."""

    queries: Tensor  # (segments, Q) positions in the packed sequence; fillers are 0
    keys: Tensor  # (segments, K) positions in the packed sequence; fillers are 0
    bias: Tensor | None
    """(segments, 1, Q, K) float32: 0 where a query sees a key, else -inf; a filler query sees the
    first key, so that no softmax is empty. None: Q is K, and attention is causal."""

    def to(self, device: torch.device) -> "AttentionBucket":
        """The same on `device`."""
        bias = None if self.bias is None else self.bias.to(device)
        return AttentionBucket(self.queries.to(device), self.keys.to(device), bias)

    def stacked(self, rep: int, dtype: torch.dtype) -> "AttentionBucket":
        """The same for `rep` query heads a group, one after another: (segments, 1, rep * Q, K)."""
        if self.bias is None:
            return self
        bucket = replace(self, bias=self.bias.to(dtype).repeat(1, 1, rep, 1))
        # torch would pad the bias in every layer
        return bucket if self.bias.device.type == "cpu" else aligned(bucket)


def aligned(bucket: AttentionBucket) -> AttentionBucket:
    """Bucket with as many keys as the attention of a GPU reads at once, the last of them unseen."""
    short = -bucket.keys.shape[1] % _ALIGNED
    if bucket.bias is None or not short:
        return bucket
    bias = functional.pad(bucket.bias, (0, short), value=float("-inf"))
    return replace(bucket, keys=functional.pad(bucket.keys, (0, short)), bias=bias)


@dataclass(frozen=True, slots=True)
class Packing:
    """Attention layout of a packed sequence of N tokens."""

    positions: Tensor  # (1, N): position of each token in its row, for position embeddings
    buckets: tuple[AttentionBucket, ...]
    places: Tensor
    """(N,): where the token stands among the queries of all buckets, one after another."""
    queries: Tensor
    """The queries of all buckets, one after another; (queries,) positions."""
    fillers: Tensor
    """True for queries that belong to no token; (queries, 1)."""

    def to(self, device: torch.device) -> "Packing":
        """The same on `device`."""
        buckets = tuple(bucket.to(device) for bucket in self.buckets)
        others = (self.places.to(device), self.queries.to(device), self.fillers.to(device))
        return Packing(self.positions.to(device), buckets, *others)

    def stacked(self, rep: int, dtype: torch.dtype) -> "Packing":
        """The same with stacked buckets: done once, since every layer keeps the bias it used."""
        return replace(self, buckets=tuple(bucket.stacked(rep, dtype) for bucket in self.buckets))


class PrefixTree(NamedTuple):
    """Rows packed into one sequence."""

    ids: np.ndarray  # (N,) tokens
    segments: list[PackedSegment]
    paths: list[np.ndarray]  # positions of each row's tokens, in the order of the rows


def _common_prefix(left: Ids, right: Ids) -> int:
    size = min(len(left), len(right))
    differ = np.flatnonzero(np.asarray(left[:size]) != np.asarray(right[:size]))
    return int(differ[0]) if len(differ) else size


def sorted_rows(rows: Sequence[Sequence[int]]) -> list[tuple[int, int]]:
    """Rows in the order of their tokens: (index, length of the prefix taken from the last)."""
    # A long row that shares less than a quarter takes nothing: whole, it needs no table of who sees
    # whom, which is worth more.
    order = sorted(range(len(rows)), key=lambda idx: tuple(rows[idx]))
    arrays = [np.asarray(rows[idx], np.int64) for idx in order]
    shared_lengths = [(order[0], 0)] if order else []
    for index in range(1, len(order)):
        shared, size = _common_prefix(arrays[index - 1], arrays[index]), len(arrays[index])
        shared_lengths.append((order[index], 0 if size > _LONG and 4 * shared < size else shared))
    return shared_lengths


def grow(rows: Sequence[Sequence[int]]) -> PrefixTree:
    """Pack `rows`, of at least one token each."""
    # A causal model computes the same for a prefix with any continuation, so rows that share one
    # need it once: 16.8 k tokens of 128 voting episodes have 5.7 k distinct prefixes.
    ids: list[np.ndarray] = []
    paths: list[np.ndarray] = [np.empty(0, np.int64)] * len(rows)
    segments: list[PackedSegment] = []
    path, count = np.empty(0, np.int64), 0
    for idx, shared in sorted_rows(rows):
        suffix = np.asarray(rows[idx][shared:], np.int64)
        path = np.concatenate([path[:shared], np.arange(count, count + len(suffix))])
        paths[idx] = path
        if len(suffix):
            segments.append(PackedSegment(count, len(suffix), path))
            ids.append(suffix)
            count += len(suffix)
    return PrefixTree(np.concatenate(ids), segments, paths)


def lay_out(tree: PrefixTree) -> Packing:
    """The packing of `tree`, on the CPU."""
    positions = np.empty(len(tree.ids), np.int64)
    places = np.empty(len(tree.ids), np.int64)
    buckets: list[AttentionBucket] = []
    base = 0
    for segments in _alike(tree.segments):
        bucket = _bucket(segments)
        width = bucket.queries.shape[1]
        for row, (start, length, path) in enumerate(segments):
            positions[start : start + length] = np.arange(len(path) - length, len(path))
            first = base + row * width
            places[start : start + length] = np.arange(first, first + length)
        base += bucket.queries.numel()
        buckets.append(bucket)
    queries = torch.cat([bucket.queries.flatten() for bucket in buckets])
    slots, fillers = torch.from_numpy(places), torch.ones(len(queries), 1, dtype=torch.bool)
    fillers[slots] = False
    return Packing(torch.from_numpy(positions)[None], tuple(buckets), slots, queries, fillers)


def _alike(segments: Sequence[PackedSegment]) -> list[list[PackedSegment]]:
    buckets: list[list[PackedSegment]] = []
    area = queries = keys = 0
    for segment in sorted(segments, key=lambda item: (_is_long(item), item.length, len(item.path))):
        size = segment.length * len(segment.path)
        queries, keys = max(queries, segment.length), max(keys, len(segment.path))
        other = buckets and _is_long(buckets[-1][0]) != _is_long(segment)
        room = _WASTE * (area + size) + _SLACK
        if buckets and not other and (len(buckets[-1]) + 1) * queries * keys <= room:
            buckets[-1].append(segment)
            area += size
        else:
            buckets.append([segment])
            area, queries, keys = size, segment.length, len(segment.path)
    return buckets


def _is_long(segment: PackedSegment) -> bool:
    return segment.length == len(segment.path) > _LONG


def _bucket(segments: Sequence[PackedSegment]) -> AttentionBucket:
    width = max(segment.length for segment in segments)
    longest = max(len(segment.path) for segment in segments)
    queries = np.zeros((len(segments), width), np.int64)
    keys = np.zeros((len(segments), longest), np.int64)
    last = np.zeros((len(segments), width), np.int64)  # the last key that a query sees
    for row, (start, length, path) in enumerate(segments):
        queries[row, :length] = np.arange(start, start + length)
        keys[row, : len(path)] = path
        last[row, :length] = np.arange(len(path) - length, len(path))
    bias = None
    if not _is_long(segments[0]):
        seen = np.arange(longest) <= last[:, None, :, None]
        bias = torch.from_numpy(np.where(seen, np.float32(0.0), np.float32("-inf")))
    return AttentionBucket(torch.from_numpy(queries), torch.from_numpy(keys), bias)


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
    """Attention of each token to its path: (1, heads, N, head_dim); others have (1, groups, …)."""
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
    kind = query.device.type
    lower = torch.is_autocast_enabled(
        kind
    )  # rotary embeddings leave float32, twice as much to move
    dtype = torch.get_autocast_dtype(kind) if lower else query.dtype
    # A gathered token is one contiguous piece of memory, and so are its keys and values.
    query, key, value = (x[0].to(dtype).transpose(0, 1) for x in (query, key, value))
    pairs = torch.cat((key, value), -1).flatten(1)
    to_slots = packing.queries, packing.places
    queries = _Rearranged.apply(query.reshape(count, -1), *to_slots, None)
    shape = (groups, heads // groups, head_dim)
    sizes = [bucket.queries.numel() for bucket in packing.buckets]
    parts = [
        _attend(part, pairs, bucket, shape, scaling)
        for part, bucket in zip(queries.split(sizes), packing.buckets, strict=True)
    ]
    out = _Rearranged.apply(torch.cat(parts), *reversed(to_slots), packing.fillers)
    return out.view(1, count, heads, -1), None


class _Rearranged(torch.autograd.Function):
    """Rows at `places`, whose gradient is looked up at `inverse`, and 0 where `fillers` is true."""

    # Every row counts once: torch would sort the places, to add up rows that it gathers again.

    @staticmethod
    def forward(
        ctx: Any, rows: Tensor, places: Tensor, inverse: Tensor, fillers: Tensor | None
    ) -> Tensor:
        ctx.save_for_backward(inverse, fillers)
        return rows.index_select(0, places)

    @staticmethod
    @once_differentiable  # which forgets the name of `ctx`
    def backward(  # pyrefly: ignore[bad-override]
        ctx: Any, *grad_outputs: Tensor
    ) -> tuple[Tensor | None, ...]:
        inverse, fillers = ctx.saved_tensors
        grad = grad_outputs[0].index_select(0, inverse)
        return grad if fillers is None else grad.masked_fill_(fillers, 0), None, None, None


def _attend(
    queries: torch.Tensor,
    pairs: torch.Tensor,
    bucket: AttentionBucket,
    shape: tuple[int, int, int],
    scaling: float | None,
) -> torch.Tensor:
    # (segments * Q, heads * head_dim)
    groups, rep, head_dim = shape
    count, width = bucket.queries.shape
    query = queries.view(count, width, groups, rep, head_dim).permute(0, 2, 3, 1, 4)
    # `embedding` gathers as indexing does, and sums quickly what was gathered more than once.
    gathered = functional.embedding(bucket.keys, pairs).unflatten(-1, (groups, -1)).transpose(1, 2)
    key, value = gathered[..., :head_dim], gathered[..., head_dim:]
    if bucket.bias is None:
        key, value = key.repeat_interleave(rep, 1), value.repeat_interleave(rep, 1)
        query = query.flatten(1, 2)
    else:
        query = query.flatten(2, 3)
    if bucket.bias is not None and _fits_blocks(query, key):
        scale = head_dim**-0.5 if scaling is None else scaling
        out = _BlockAttention.apply(query, key, value, bucket.bias, scale)
    else:
        out = functional.scaled_dot_product_attention(
            query, key, value, attn_mask=bucket.bias, is_causal=bucket.bias is None, scale=scaling
        )
    out = out.reshape(count, groups, rep, width, -1).permute(0, 3, 1, 2, 4)
    return out.reshape(count * width, -1)


def _fits_blocks(query: Tensor, key: Tensor) -> bool:
    # Short segments, which torch's attention is slow at: in bfloat16 on a CPU forward and backward
    # pass take 2.2 times as long for 80 keys, 1.1 times for 200 queries and 300 keys, and 0.75
    # times for 900 queries.
    return (
        query.dtype == torch.bfloat16
        and query.device.type == "cpu"
        and query.shape[2] * key.shape[2] <= _FEW_SCORES
        and not torch.compiler.is_compiling()
    )


class _BlockAttention(torch.autograd.Function):
    """Attention in blocks of segments and groups whose scores stay in a CPU's cache.

    Blocks are computed in float32: rounded scores and slopes lose their differences. Softmax is
    computed again in the backward pass, so no scores are stored.
    """

    @staticmethod
    def forward(
        ctx: Any, query: Tensor, key: Tensor, value: Tensor, bias: Tensor, scale: float
    ) -> Tensor:
        out = torch.empty_like(query)
        with torch.autocast(query.device.type, enabled=False):
            for block in _blocks(query, key):
                weights = _attention_weights(query[block], key[block], bias[block[0]], scale)
                out[block] = weights @ value[block].float()
        ctx.save_for_backward(query, key, value, bias)
        ctx.scale = scale
        return out

    @staticmethod
    @once_differentiable  # which forgets the name of `ctx`
    def backward(  # pyrefly: ignore[bad-override]
        ctx: Any, *grad_outputs: Tensor
    ) -> tuple[Tensor | None, ...]:
        query, key, value, bias = ctx.saved_tensors
        grads = torch.empty_like(query), torch.empty_like(key), torch.empty_like(value)
        for block in _blocks(query, key):
            grad = grad_outputs[0][block].float()
            weights = _attention_weights(query[block], key[block], bias[block[0]], ctx.scale)
            grads[2][block] = weights.mT @ grad
            slope = grad @ value[block].float().mT
            # the gradient of a softmax p: p * (g - sum(p * g))
            slope.sub_(torch.linalg.vecdot(weights, slope)[..., None]).mul_(weights)
            slope.mul_(ctx.scale)
            grads[0][block] = slope @ key[block].float()
            grads[1][block] = slope.mT @ query[block].float()
        return *grads, None, None


def _attention_weights(query: Tensor, key: Tensor, bias: Tensor, scale: float) -> Tensor:
    # (segments, groups, queries, keys) in float32
    scores = (query.float() @ key.float().mT).mul_(scale)
    return scores.add_(bias).softmax(-1)


def _blocks(query: Tensor, key: Tensor) -> list[tuple[slice, slice]]:
    segments, groups, width, _ = query.shape
    scores = width * key.shape[2]
    several = max(1, _SCORES_AT_ONCE // (groups * scores))
    height = groups if several > 1 else max(1, min(groups, _SCORES_AT_ONCE // scores))
    return [
        (slice(segment, segment + several), slice(group, group + height))
        for segment in range(0, segments, several)
        for group in range(0, groups, height)
    ]


AttentionInterface.register(LEARNING, packed_attention)
AttentionMaskInterface.register(LEARNING, sdpa_mask)


def use_packed_attention(model: PreTrainedModel) -> None:
    """Make `model` compute attention with `packed_attention`."""
    config = text_config(model)
    kinds = set(getattr(config, "layer_types", None) or ["full_attention"])
    if kinds != {"full_attention"}:
        raise UsageError(f"its layers are {', '.join(sorted(kinds))}, and not full_attention alone")
    config._attn_implementation = LEARNING
