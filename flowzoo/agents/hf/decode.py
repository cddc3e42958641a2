"""The decode loop: token rows in, sampled tokens and their log-probabilities out.

Equal prompts are read once (the samples of a group, the voters of a problem) and their cache is
copied to every row. Rows are padded on the left. A row that has ended stays in the batch until a
quarter of the batch has, then the batch is compacted; what ended rows compute meanwhile is
dropped. All of it depends on the set of rows only, so equal sets give equal floats.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch

from flowzoo.agents.hf.attention import decoding, new_cache
from flowzoo.agents.hf.sampling import draw, uniforms
from flowzoo.agents.policy import Sampling
from flowzoo.errors import FlowzooError


class GenerationStoppedError(FlowzooError):
    """The caller asked the loop to end early; nothing was returned."""


@dataclass(frozen=True, slots=True)
class DecodeRequest:
    """One sequence to continue: prompt ids (at least one), 64-bit noise key, most new tokens."""

    prompt: tuple[int, ...]
    key: int
    cap: int


class DecodeOutput(NamedTuple):
    """New tokens (the stop token included), their log-probabilities, and whether one stopped it."""

    tokens: list[int]
    logps: list[float]
    stopped: bool


class _DecodeBatch:
    """The rows still in the model: their index, noise key, length so far, mask and cache."""

    def __init__(self, model: Any, rows: Sequence[DecodeRequest]) -> None:
        distinct = list(dict.fromkeys(row.prompt for row in rows))
        unique = {prompt: place for place, prompt in enumerate(distinct)}
        self.model, self.device = model, model.device
        self.cache = new_cache(model)
        self.mask = _left_mask([len(prompt) for prompt in unique], self.device)
        ids = torch.zeros(self.mask.shape, dtype=torch.long)
        for place, prompt in enumerate(unique):
            ids[place, -len(prompt) :] = torch.tensor(prompt)
        positions = (self.mask.cumsum(-1) - 1).clamp_min(0)
        self.prompt_tokens = sum(len(prompt) for prompt in unique)
        self.logits = self._forward(ids.to(self.device), positions)
        self.idx = np.arange(len(rows))
        self.keys = np.array([row.key for row in rows], dtype=np.uint64)
        self.lengths = torch.tensor([len(row.prompt) for row in rows], device=self.device)
        places = [unique[row.prompt] for row in rows]
        if len(unique) < len(rows):
            self._select(torch.tensor(places, device=self.device))

    def _forward(self, ids: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        out = self.model(
            input_ids=ids,
            attention_mask=self.mask,
            position_ids=positions,
            past_key_values=self.cache,
            use_cache=True,
            logits_to_keep=1,
        )
        return out.logits[:, -1]

    def _select(self, places: torch.Tensor) -> None:
        self.cache.batch_select_indices(places)
        self.mask, self.logits = self.mask[places], self.logits[places]

    def keep(self, alive: np.ndarray) -> None:
        """Drop the rows where `alive` is False."""
        places = torch.from_numpy(np.flatnonzero(alive)).to(self.device)
        self._select(places)
        self.idx, self.keys, self.lengths = self.idx[alive], self.keys[alive], self.lengths[places]

    def advance(self, tokens: torch.Tensor) -> None:
        """Feed one token per row (rows,)."""
        self.mask = torch.nn.functional.pad(self.mask, (0, 1), value=1)
        self.logits = self._forward(tokens[:, None], self.lengths[:, None])
        self.lengths = self.lengths + 1


def _left_mask(lengths: Sequence[int], device: torch.device) -> torch.Tensor:
    """(rows, longest) integers: 1 on the last `lengths[i]` places of row i."""
    places = torch.arange(max(lengths)).flip(0)[None, :]
    return (places < torch.tensor(lengths)[:, None]).long().to(device)


def decode(
    model: Any,
    rows: Sequence[DecodeRequest],
    sampling: Sampling,
    stop_ids: frozenset[int],
    cancelled: Callable[[], bool],
) -> tuple[list[DecodeOutput], int]:
    """Continue every row until a stop token or its cap.

    Args:
        model: a causal language model of the transformers library.
        rows: one batch; all of it is in memory at once.
        sampling: temperature, top-p, top-k (lengths come from the rows).
        stop_ids: tokens that end a row; the one sampled is part of the result.
        cancelled: asked once per token; True ends the loop.

    Returns:
        One `DecodeOutput` per row, and the number of prompt tokens read.

    Raises:
        GenerationStoppedError: `cancelled` said so.
        FlowzooError: the model's logits are not finite.
    """
    caps = np.array([row.cap for row in rows])
    stops = np.array(sorted(stop_ids), dtype=np.int64)
    tokens = np.zeros((len(rows), caps.max()), dtype=np.int64)
    logps = np.zeros(tokens.shape, dtype=np.float32)
    lengths, stopped = np.zeros(len(rows), dtype=np.int64), np.zeros(len(rows), dtype=bool)
    with torch.inference_mode(), decoding(model):
        batch = _DecodeBatch(model, rows)
        alive = np.ones(len(rows), dtype=bool)
        for step in range(caps.max()):
            if cancelled():
                raise GenerationStoppedError("generation was cancelled")
            drawn, drawn_logps = draw(batch.logits, uniforms(batch.keys, step), sampling)
            new, new_logps = drawn.cpu().numpy(), drawn_logps.cpu().numpy()
            live = batch.idx[alive]
            tokens[live, step], logps[live, step] = new[alive], new_logps[alive]
            lengths[live] = step + 1
            stopped[live] = np.isin(new[alive], stops)
            alive &= ~(stopped[batch.idx] | (caps[batch.idx] <= step + 1))
            if not alive.any():
                break
            if alive.mean() <= 0.75:
                batch.keep(alive)
                drawn, alive = drawn[torch.from_numpy(alive).to(drawn.device)], alive[alive]
            batch.advance(drawn)
    if not np.isfinite(logps).all():
        raise FlowzooError(
            "the model's logits are not finite (its weights hold NaN or infinity, or overflow its "
            "number format): no token can be sampled from them."
        )
    return [
        DecodeOutput(tokens[i, :n].tolist(), logps[i, :n].tolist(), bool(stopped[i]))
        for i, n in enumerate(lengths)
    ], batch.prompt_tokens
