"""From calls to tensors: canonical order, micro-batches and masks.

Masks come from the sampler alone. The trained tokens are exactly `Call.output_ids`, the end-of-turn
token included when it was sampled, whatever ids the pad and end tokens have; prompts and pads are
never trained.

Two layouts give the same log-probs and gradients up to rounding. `packed` computes every distinct
prefix of a micro-batch once and has no fillers (see `prefix_tree`). `padded` has one row of tensors
per call; its fillers stand on the right, where causal attention cannot see them, so no attention
mask is needed. It is for models whose layers are not all full attention.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from flowzoo.baselines.learner.literals import RowLayout
from flowzoo.baselines.learner.prefix_tree import Packing, grow, lay_out, sorted_rows
from flowzoo.envs.records import Call
from flowzoo.errors import UsageError, check_choice

_FILLER = 0
"""Token id at padded positions: any valid id does, since nothing looks at it."""
_PATH = 16
"""So many keys that attention gathers for a row take about as much memory as one computed token."""


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """Rows as tensors; T is the longest reply."""

    input_ids: Tensor
    """padded: (rows, L), L the longest prompt with its reply, fillers at the end; packed: (1, N).
    The last output token of a row is no input."""
    positions: Tensor
    """(states,): distinct positions in `input_ids.flatten()` at which an output token is
    predicted, ascending."""
    sources: Tensor
    """(tokens,): for every output token, row by row, its place in `positions`."""
    targets: Tensor
    """(tokens,): those output tokens."""
    mask: Tensor
    """(rows, T) boolean: true where the row has an output token; `mask.sum() == tokens`."""
    behaviour_logps: Tensor
    """(rows, T): log-probabilities that the sampler recorded, 0 outside the mask."""
    advantages: Tensor
    """(rows,)"""
    packing: Packing | None = None
    """How attention reads packed rows; None: padded."""

    def to(self, device: torch.device) -> MicroBatch:
        """The same on `device`."""
        parts = {one.name: getattr(self, one.name) for one in fields(self)}
        return replace(self, **{k: None if v is None else v.to(device) for k, v in parts.items()})


class SampledTokens(Protocol):
    """A sampled row as tensors need it: a `Call`, or a policy's `Completion`."""

    @property
    def prompt_ids(self) -> Sequence[int]:
        """Tokens before the reply."""
        ...

    @property
    def output_ids(self) -> Sequence[int]:
        """Sampled tokens."""
        ...

    @property
    def logps(self) -> Sequence[float]:
        """The sampler's log-prob of each."""
        ...


def check_call(call: Call) -> None:
    """Raise `UsageError` unless `call` can be trained on."""
    where = f"the call of {call.agent!r} (turn {call.turn}) in episode {call.episode!r}"
    if not call.prompt_ids:
        raise UsageError(
            f"{where} has no prompt tokens: it was answered by a policy that reports none. "
            "Train on calls of a transformers or vLLM policy, or leave its policy frozen."
        )
    if len(call.logps) != len(call.output_ids):
        raise UsageError(
            f"{where} has {len(call.output_ids)} output tokens but {len(call.logps)} log-probs."
        )


def canonical_order(calls: Sequence[Call]) -> list[int]:
    """Indices that sort `calls` by what they are, so that their order of arrival is forgotten."""

    def key(idx: int) -> tuple[object, ...]:
        call = calls[idx]
        return call.problem, call.episode, call.agent, call.turn, tuple(call.output_ids)

    return sorted(range(len(calls)), key=key)


def cut(lengths: Sequence[int], max_tokens: int, max_rows: int = 0) -> list[list[int]]:
    """Cut rows of `lengths` tokens into micro-batches of rows of like length.

    A micro-batch has at most `max_tokens` positions, fillers included (a longer row stands alone),
    and at most `max_rows` rows (0: any number). The longest come first, so that memory runs out at
    once or never. Returns lists of indices into `lengths`.
    """
    _check_sizes(max_tokens, max_rows)
    batches: list[list[int]] = []
    for idx in sorted(range(len(lengths)), key=lambda idx: -lengths[idx]):
        room = batches and (len(batches[-1]) + 1) * lengths[batches[-1][0]] <= max_tokens
        if room and not (max_rows and len(batches[-1]) >= max_rows):
            batches[-1].append(idx)
        else:
            batches.append([idx])
    return batches


def micro_batches(
    rows: Sequence[SampledTokens], layout: RowLayout, max_tokens: int, max_rows: int = 0
) -> list[list[int]]:
    """Cut rows into micro-batches of at most `max_tokens` positions, as lists of indices.

    At most `max_rows` rows each (0: any number); a row that is longer than `max_tokens` stands
    alone. Padded rows are put together by length, fillers counting as positions; packed rows by
    their common prefixes, a distinct prefix counting once, plus one sixteenth of the row's length
    for the keys that its attention gathers.

    Raises:
        UsageError: an unknown layout or a number out of range.
    """
    _check(layout)
    inputs = [_inputs(row) for row in rows]
    sizes = [len(one) for one in inputs]
    if layout == "padded":
        return cut(sizes, max_tokens, max_rows)
    _check_sizes(max_tokens, max_rows)
    batches: list[list[int]] = []
    size = 0
    for idx, shared in sorted_rows(inputs):
        keys = sizes[idx] // _PATH
        size += sizes[idx] - shared + keys
        if not batches or size > max_tokens or len(batches[-1]) == (max_rows or len(rows)):
            batches.append([])
            size = sizes[idx] + keys  # what it shared with the row before is computed again
        batches[-1].append(idx)
    return batches


def tensors(
    rows: Sequence[SampledTokens], advantages: Sequence[float], layout: RowLayout
) -> MicroBatch:
    """Tensors of `rows`, at least one, on the CPU. Rows without output tokens are allowed.

    Raises:
        UsageError: an unknown layout.
    """
    _check(layout)
    return (pack if layout == "packed" else collate)(rows, advantages)


def collate(rows: Sequence[SampledTokens], advantages: Sequence[float]) -> MicroBatch:
    """Padded tensors of `rows`, on the CPU."""
    texts = [_inputs(row) for row in rows]
    width = max(len(text) for text in texts)
    ids = np.full((len(rows), width), _FILLER, np.int64)
    paths: list[np.ndarray] = []
    for row, text in enumerate(texts):
        ids[row, : len(text)] = text
        paths.append(np.arange(row * width, row * width + len(text)))
    return _micro_batch(rows, advantages, ids, paths, None)


def pack(rows: Sequence[SampledTokens], advantages: Sequence[float]) -> MicroBatch:
    """Packed tensors of `rows`, on the CPU."""
    tree = grow([_inputs(row) for row in rows])
    return _micro_batch(rows, advantages, tree.ids[None], tree.paths, lay_out(tree))


def _inputs(row: SampledTokens) -> list[int]:
    """The tokens of a row that predict something: all but the last."""
    return [*row.prompt_ids, *row.output_ids[:-1]]


def _micro_batch(
    rows: Sequence[SampledTokens],
    advantages: Sequence[float],
    ids: np.ndarray,
    paths: Sequence[np.ndarray],
    packing: Packing | None,
) -> MicroBatch:
    """The tensors that both layouts have; `paths` are the positions of each row's inputs."""
    longest = max(len(row.output_ids) for row in rows)
    mask = np.zeros((len(rows), longest), np.bool_)
    logps = np.zeros((len(rows), longest), np.float32)
    predicting: list[np.ndarray] = []
    for number, (row, path) in enumerate(zip(rows, paths, strict=True)):
        length = len(row.output_ids)
        mask[number, :length] = True
        logps[number, :length] = row.logps
        first = len(row.prompt_ids) - 1
        predicting.append(path[first : first + length])
    positions, sources = np.unique(np.concatenate(predicting), return_inverse=True)
    targets = [token for row in rows for token in row.output_ids]
    return MicroBatch(
        input_ids=torch.from_numpy(ids),
        positions=torch.from_numpy(positions),
        sources=torch.from_numpy(sources),
        targets=torch.tensor(targets, dtype=torch.int64),
        mask=torch.from_numpy(mask),
        behaviour_logps=torch.from_numpy(logps),
        advantages=torch.tensor(list(advantages), dtype=torch.float32),
        packing=packing,
    )


def _check(layout: str) -> None:
    check_choice("layout", layout, RowLayout)


def _check_sizes(max_tokens: int, max_rows: int) -> None:
    if max_tokens < 1 or max_rows < 0:
        raise UsageError(
            f"a micro-batch needs `max_tokens` >= 1 and `max_rows` >= 0, got {max_tokens} and "
            f"{max_rows}."
        )
