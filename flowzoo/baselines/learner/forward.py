"""From rows to log-probs, over all tokens or over the tokens that top-k and top-p kept."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint
from transformers import PreTrainedModel

from flowzoo.agents.hf.decode import top_k_top_p as kept_scores
from flowzoo.agents.policy import Sampling
from flowzoo.agents.traits import context_of
from flowzoo.baselines.learner.batch import Microbatch, SampledTokens, tensors
from flowzoo.baselines.learner.config import LearnerConfig, RowLayout
from flowzoo.baselines.learner.hidden_states import last_hidden, logps_at, scatter
from flowzoo.baselines.learner.learner_group import within
from flowzoo.baselines.learner.vocabulary import Entropy, OutputHead, chunk_of, head_of
from flowzoo.errors import UsageError

Head = Callable[[Tensor], Tensor]


class KeptTokens(NamedTuple):
    """Token ids that were kept at each output position."""

    ids: Tensor  # (tokens, width); the first `counts` of a row are kept, the rest is filler
    counts: Tensor  # (tokens,)
    outside: Tensor
    """(tokens,) boolean: the sampled token was not among them by the learner's weights."""


@torch.no_grad()
def _find_kept_tokens(
    states: Tensor, targets: Tensor, head: Head, sampling: Sampling, chunk: int
) -> KeptTokens:
    # A sampler with top-p records log-probs of its renormalized distribution, and not the sets.
    # Before the first step the learner has the sampler's weights and so the same sets, up to
    # rounding at their edge: a sampled token that rounding put outside is taken in, and counted.
    # After a step the sets stay, or a token that fell out of them would have probability 0.
    parts: list[KeptTokens] = []
    for rows, chosen in zip(states.split(chunk), targets.split(chunk), strict=True):
        scores, order = kept_scores(head(rows).float() / sampling.temperature, sampling)
        counts = scores.isfinite().sum(-1)
        places = torch.arange(order.shape[1], device=order.device)
        outside = ~((order == chosen[:, None]) & (places < counts[:, None])).any(-1)
        ids = torch.nn.functional.pad(order[:, : int(counts.max())], (0, 1))
        ids = torch.where(
            outside[:, None] & (torch.arange(ids.shape[1], device=ids.device) == counts[:, None]),
            chosen[:, None],
            ids,
        )
        parts.append(KeptTokens(ids, counts + outside, outside))
    return _concat_kept_tokens(parts)


def _concat_kept_tokens(parts: Sequence[KeptTokens]) -> KeptTokens:
    width = max(part.ids.shape[1] for part in parts)
    ids = [torch.nn.functional.pad(part.ids, (0, width - part.ids.shape[1])) for part in parts]
    return KeptTokens(
        torch.cat(ids),
        torch.cat([part.counts for part in parts]),
        torch.cat([part.outside for part in parts]),
    )


def _split_kept_tokens(kept_tokens: KeptTokens, lengths: Sequence[int]) -> list[KeptTokens]:
    parts = zip(*(part.cpu().split(list(lengths)) for part in kept_tokens), strict=True)
    return [
        KeptTokens(ids[:, : int(counts.max()) if len(counts) else 0].clone(), counts, outside)
        for ids, counts, outside in parts
    ]


def _renormalized_logps(
    states: Tensor,
    targets: Tensor,
    head: Head,
    temperature: float,
    kept_tokens: KeptTokens,
    chunk: int,
) -> tuple[Tensor, Tensor]:
    # Log-probs and entropies in nats, (tokens,) each, of the renormalized distribution.
    # The vocabulary is multiplied in chunk by chunk, and again in the backward pass.
    parts = [
        checkpoint(_chunk, head, temperature, *part, use_reentrant=False)
        for part in zip(
            states.split(chunk), targets.split(chunk), kept_tokens.ids.split(chunk),
            kept_tokens.counts.split(chunk), strict=True,
        )
    ]  # fmt: skip
    logps, entropies = (torch.cat(values) for values in zip(*parts, strict=True))
    return logps, entropies


def _chunk(
    head: Head, temperature: float, states: Tensor, targets: Tensor, ids: Tensor, counts: Tensor
) -> tuple[Tensor, Tensor]:
    scores = head(states).float() / temperature
    out = torch.arange(ids.shape[1], device=ids.device) >= counts[:, None]
    among = scores.gather(-1, ids).masked_fill(out, float("-inf"))
    total = among.logsumexp(-1)
    chosen = scores.gather(-1, targets[:, None]).squeeze(-1) - total
    logps = (among - total[:, None]).masked_fill(out, 0.0)
    entropies = -(logps.exp() * logps).sum(-1)
    return chosen, entropies


class ForwardOutput(NamedTuple):
    """Result of a forward pass; (rows, T) each, 0 off the batch's mask."""

    logps: Tensor
    entropies: Tensor | None
    kept_tokens: KeptTokens | None
    """Under `renormalize`: the kept sets, of the output tokens one after another."""
    states: Tensor
    """(states, hidden): the last hidden states at `positions` of the batch, without gradients."""


@dataclass(frozen=True, slots=True)
class OldLogps:
    """A row under the weights from before the iteration's first step; on the CPU."""

    logps: Tensor  # (tokens,)
    kept_tokens: KeptTokens | None


class ForwardPass:
    """The way from rows to log-probs."""

    def __init__(self, config: LearnerConfig, layout: RowLayout, model: PreTrainedModel) -> None:
        self.config, self._device = config, model.device
        self._context = context_of(model.config) or math.inf
        self._layout: RowLayout = layout
        self._sampling = Sampling(
            temperature=config.temperature, top_p=config.top_p, top_k=config.top_k
        )

    def batch(self, rows: Sequence[SampledTokens], advantages: Sequence[float]) -> Microbatch:
        """Tensors of `rows` on the device; raises `UsageError` for one beyond the context."""
        longest = max(len(row.prompt_ids) + len(row.output_ids) for row in rows)
        if longest > self._context:
            raise UsageError(
                f"a row has {longest} tokens, and the model's context is {self._context}: leave "
                "out longer rows."
            )
        return tensors(rows, advantages, self._layout).to(self._device)

    def __call__(
        self,
        model: PreTrainedModel,
        batch: Microbatch,
        *,
        entropy: Entropy = "none",
        kept_tokens: KeptTokens | None = None,
    ) -> ForwardOutput:
        """Log-probs and entropies of the output tokens, over `kept_tokens` if these are given."""
        return within(model, lambda: self._scores(model, batch, entropy, kept_tokens))

    def _scores(
        self,
        model: PreTrainedModel,
        batch: Microbatch,
        entropy: Entropy,
        kept_tokens: KeptTokens | None,
    ) -> ForwardOutput:
        with self._autocast():
            states, head = last_hidden(model, batch)[batch.positions], head_of(model)
            if self.config.correction == "none":
                logps, entropies = logps_at(
                    states, head, batch, self.config.temperature, entropy=entropy,
                    chunk=self.config.vocabulary_chunk,
                )  # fmt: skip
            else:
                logps, entropies, kept_tokens = self._renormalize(
                    states, head, batch, entropy, kept_tokens
                )
        return ForwardOutput(logps, entropies, kept_tokens, states.detach())

    def old_logps(self, model: PreTrainedModel, rows: Sequence[SampledTokens]) -> list[OldLogps]:
        """Log-probs and kept tokens of `rows` under the present weights, for later steps."""
        with torch.no_grad():
            batch = self.batch(rows, [0.0] * len(rows))
            scores = self(model, batch)
        lengths = [len(row.output_ids) for row in rows]
        logps = scores.logps[batch.mask].cpu().split(lengths)
        kept_tokens = (
            [None] * len(rows)
            if scores.kept_tokens is None
            else _split_kept_tokens(scores.kept_tokens, lengths)
        )
        return [OldLogps(*parts) for parts in zip(logps, kept_tokens, strict=True)]

    @torch.no_grad()
    def plain_logps(
        self, model: PreTrainedModel, rows: Sequence[SampledTokens]
    ) -> tuple[Tensor, ...]:
        """Log-probs of the output tokens of each row, (tokens,), at temperature 1 and uncut."""
        batch = self.batch(rows, [0.0] * len(rows))

        def compute() -> Tensor:
            states, chunk = last_hidden(model, batch)[batch.positions], self.config.vocabulary_chunk
            return logps_at(states, head_of(model), batch, 1.0, chunk=chunk)[0]

        with self._autocast():
            logps = within(model, compute)
        return logps[batch.mask].float().cpu().split([len(row.output_ids) for row in rows])

    @torch.no_grad()
    def states(self, model: PreTrainedModel, batch: Microbatch) -> Tensor:
        """The last hidden states at `batch.positions`, (states, hidden)."""
        with self._autocast():
            return within(model, lambda: last_hidden(model, batch)[batch.positions])

    @torch.no_grad()
    def distributions(self, model: PreTrainedModel, states: Tensor) -> Tensor:
        """Log-probs (states, vocabulary) at `states` (states, hidden), before top-k and top-p."""
        with self._autocast():
            logits = within(model, lambda: head_of(model)(states))
            scores = logits.float() / self.config.temperature
        return scores.log_softmax(-1)

    @property
    def is_exact(self) -> bool:
        """True if a row's numbers do not depend on its neighbors, up to float32 rounding."""
        return self.config.compute == self.config.weights == "float32"

    @property
    def casts_weights(self) -> bool:
        """True if float32 weights on a CPU are cast for every product."""
        return (
            self.config.compute == "bfloat16"
            and self.config.weights == "float32"
            and self._device.type == "cpu"
        )

    def _autocast(self) -> torch.autocast:
        lower = self.config.compute == "bfloat16"
        return torch.autocast(self._device.type, torch.bfloat16, enabled=lower)

    def _renormalize(
        self, states: Tensor, head: OutputHead, batch: Microbatch, entropy: Entropy,
        kept_tokens: KeptTokens | None,
    ) -> tuple[Tensor, Tensor | None, KeptTokens]:  # fmt: skip
        states = states[batch.sources]
        chunk = chunk_of(head.linear.out_features, self.config.vocabulary_chunk)
        if kept_tokens is None:
            kept_tokens = _find_kept_tokens(
                states.detach(), batch.targets, head, self._sampling, chunk
            )
        logps, entropies = _renormalized_logps(
            states, batch.targets, head, self.config.temperature, kept_tokens, chunk
        )
        if entropy == "none":
            return scatter(logps, batch.mask), None, kept_tokens
        entropies = entropies if entropy == "grad" else entropies.detach()
        return scatter(logps, batch.mask), scatter(entropies, batch.mask), kept_tokens


def stack_old_logps(
    before: Sequence[OldLogps] | None, batch: Microbatch
) -> tuple[Tensor | None, KeptTokens | None]:
    """Old log-probs (rows, T) and kept sets of a microbatch, if they were looked up."""
    if before is None:
        return None, None
    device = batch.mask.device
    logps = scatter(torch.cat([row.logps for row in before]).to(device), batch.mask)
    sets = [row.kept_tokens for row in before if row.kept_tokens is not None]
    if not sets:
        return logps, None
    return logps, KeptTokens(*(part.to(device) for part in _concat_kept_tokens(sets)))
