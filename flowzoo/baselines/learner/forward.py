"""One forward pass of the learner: log-probs of a micro-batch under the settings of a learner."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor
from transformers import PreTrainedModel

from flowzoo.agents.policy import Sampling
from flowzoo.baselines.learner.batch import MicroBatch, SampledTokens, tensors
from flowzoo.baselines.learner.config import LearnerConfig
from flowzoo.baselines.learner.hidden_states import last_hidden
from flowzoo.baselines.learner.learner_group import within
from flowzoo.baselines.learner.literals import RowLayout
from flowzoo.baselines.learner.logps import logps_at, scatter, token_logps
from flowzoo.baselines.learner.output_head import OutputHead, head_of
from flowzoo.baselines.learner.renormalize import (
    KeptTokens,
    concat_kept_tokens,
    find_kept_tokens,
    renormalized_logps,
    split_kept_tokens,
)
from flowzoo.baselines.learner.vocabulary import Entropy, chunk_of


class ForwardOutput(NamedTuple):
    """What a forward pass gives; (rows, T) each, 0 off the batch's mask."""

    logps: Tensor
    entropies: Tensor | None
    kept: KeptTokens | None
    """Under `renormalize`: the kept sets, of the output tokens one after another."""
    states: Tensor
    """(states, hidden): the last hidden states at `positions` of the batch, without gradients."""


@dataclass(frozen=True, slots=True)
class OldLogps:
    """A row under the weights from before the iteration's first step; on the CPU."""

    logps: Tensor
    """(tokens,)"""
    kept: KeptTokens | None


class ForwardPass:
    """The way from rows to log-probs."""

    def __init__(self, config: LearnerConfig, layout: RowLayout, device: torch.device) -> None:
        """Compute as `config` says, with rows in `layout` on `device`."""
        self.config, self._device = config, device
        self._layout: RowLayout = layout
        self._sampling = Sampling(
            temperature=config.temperature, top_p=config.top_p, top_k=config.top_k
        )

    def batch(self, rows: Sequence[SampledTokens], advantages: Sequence[float]) -> MicroBatch:
        """Tensors of `rows` on the device."""
        return tensors(rows, advantages, self._layout).to(self._device)

    def __call__(
        self,
        model: PreTrainedModel,
        batch: MicroBatch,
        *,
        entropy: Entropy = "none",
        kept: KeptTokens | None = None,
    ) -> ForwardOutput:
        """Log-probs of the output tokens of `batch`, and entropies of their distributions.

        `kept` are the sets to renormalize over; without them those of `model` are found.
        """
        return within(model, lambda: self._scores(model, batch, entropy, kept))

    def _scores(
        self, model: PreTrainedModel, batch: MicroBatch, entropy: Entropy, kept: KeptTokens | None
    ) -> ForwardOutput:
        with self._autocast():
            states, head = last_hidden(model, batch)[batch.positions], head_of(model)
            if self.config.correction == "none":
                logps, entropies = logps_at(
                    states, head, batch, self.config.temperature, entropy=entropy,
                    chunk=self.config.vocabulary_chunk,
                )  # fmt: skip
            else:
                logps, entropies, kept = self._renormalized(states, head, batch, entropy, kept)
        return ForwardOutput(logps, entropies, kept, states.detach())

    def old_logps(self, model: PreTrainedModel, rows: Sequence[SampledTokens]) -> list[OldLogps]:
        """What later steps need to know about `rows`; the weights are those of now."""
        with torch.no_grad():
            batch = self.batch(rows, [0.0] * len(rows))
            scores = self(model, batch)
        lengths = [len(row.output_ids) for row in rows]
        logps = scores.logps[batch.mask].cpu().split(lengths)
        kept = (
            [None] * len(rows) if scores.kept is None else split_kept_tokens(scores.kept, lengths)
        )
        return [OldLogps(*parts) for parts in zip(logps, kept, strict=True)]

    @torch.no_grad()
    def plain_logps(
        self, model: PreTrainedModel, rows: Sequence[SampledTokens]
    ) -> tuple[Tensor, ...]:
        """Log-probs of the output tokens of each row, (tokens,), at temperature 1 and uncut."""
        batch = self.batch(rows, [0.0] * len(rows))

        def compute() -> Tensor:
            return token_logps(model, batch, 1.0, chunk=self.config.vocabulary_chunk)[0]

        with self._autocast():
            logps = within(model, compute)
        return logps[batch.mask].float().cpu().split([len(row.output_ids) for row in rows])

    @torch.no_grad()
    def states(self, model: PreTrainedModel, batch: MicroBatch) -> Tensor:
        """The last hidden states at `batch.positions`, (states, hidden)."""
        with self._autocast():
            return within(model, lambda: last_hidden(model, batch)[batch.positions])

    @torch.no_grad()
    def distributions(self, model: PreTrainedModel, states: Tensor) -> Tensor:
        """Log-probs of the whole vocabulary at `states` (states, hidden): (states, vocabulary).

        At the temperature, before any cut by top-k or top-p.
        """
        with self._autocast():
            logits = within(model, lambda: head_of(model)(states))
            scores = logits.float() / self.config.temperature
        return scores.log_softmax(-1)

    @property
    def is_exact(self) -> bool:
        """Whether a row's numbers are the same up to float32 rounding, whatever is beside it."""
        return self.config.compute == self.config.weights == "float32"

    def _autocast(self) -> torch.autocast:
        lower = self.config.compute == "bfloat16"
        return torch.autocast(self._device.type, torch.bfloat16, enabled=lower)

    def _renormalized(
        self, states: Tensor, head: OutputHead, batch: MicroBatch, entropy: Entropy,
        kept: KeptTokens | None,
    ) -> tuple[Tensor, Tensor | None, KeptTokens]:  # fmt: skip
        states = states[batch.sources]
        chunk = chunk_of(head.linear.out_features, self.config.vocabulary_chunk)
        if kept is None:
            kept = find_kept_tokens(states.detach(), batch.targets, head, self._sampling, chunk)
        logps, entropies = renormalized_logps(
            states, batch.targets, head, self.config.temperature, kept, chunk
        )
        if entropy == "none":
            return scatter(logps, batch.mask), None, kept
        entropies = entropies if entropy == "grad" else entropies.detach()
        return scatter(logps, batch.mask), scatter(entropies, batch.mask), kept


def stack_old_logps(
    before: Sequence[OldLogps] | None, batch: MicroBatch
) -> tuple[Tensor | None, KeptTokens | None]:
    """Old log-probs (rows, T) and kept sets of a micro-batch, if they were looked up."""
    if before is None:
        return None, None
    device = batch.mask.device
    logps = scatter(torch.cat([row.logps for row in before]).to(device), batch.mask)
    sets = [row.kept for row in before if row.kept is not None]
    if not sets:
        return logps, None
    return logps, KeptTokens(*(part.to(device) for part in concat_kept_tokens(sets)))
