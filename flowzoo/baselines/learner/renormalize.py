"""Log-probabilities over the tokens that top-k and top-p kept, as the sampler recorded them.

A sampler with top-p below 1 draws from, and records log-probs of, its distribution cut to the kept
tokens and renormalized. The learner's full log-probs are lower by the mass that was cut, so their
ratio would not be 1 before the first step. The records hold no kept sets, but before the first step
the learner has the sampler's weights and finds the same sets, up to rounding at their edge. They
are then held fixed: with sets of its own after a step the learner would give a sampled token that
fell out of them probability 0. A sampled token that rounding put outside is taken in, and counted.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from flowzoo.agents.hf.sampling import top_k_top_p as kept_scores
from flowzoo.agents.policy import Sampling

Head = Callable[[Tensor], Tensor]


class KeptTokens(NamedTuple):
    """Token ids that were kept at each output position."""

    ids: Tensor
    """(tokens, width); the first `counts` of a row are kept, the rest is filler."""
    counts: Tensor
    """(tokens,)"""
    outside: Tensor
    """(tokens,) boolean: the sampled token was not among them by the learner's weights."""


class RenormalizedLogps(NamedTuple):
    """Of each output token, under the renormalized distribution."""

    logps: Tensor
    """(tokens,)"""
    entropies: Tensor
    """(tokens,), in nats."""


@torch.no_grad()
def find_kept_tokens(
    states: Tensor, targets: Tensor, head: Head, sampling: Sampling, chunk: int
) -> KeptTokens:
    """The kept sets by the weights that made `states` (tokens, hidden); `targets` (tokens,)."""
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
    return concat_kept_tokens(parts)


def concat_kept_tokens(parts: Sequence[KeptTokens]) -> KeptTokens:
    """The sets of `parts`, one after another."""
    width = max(part.ids.shape[1] for part in parts)
    ids = [torch.nn.functional.pad(part.ids, (0, width - part.ids.shape[1])) for part in parts]
    return KeptTokens(
        torch.cat(ids),
        torch.cat([part.counts for part in parts]),
        torch.cat([part.outside for part in parts]),
    )


def split_kept_tokens(kept: KeptTokens, lengths: Sequence[int]) -> list[KeptTokens]:
    """The sets of rows of `lengths` tokens, each no wider than it needs to be; on the CPU."""
    parts = zip(*(part.cpu().split(list(lengths)) for part in kept), strict=True)
    return [
        KeptTokens(ids[:, : int(counts.max()) if len(counts) else 0].clone(), counts, outside)
        for ids, counts, outside in parts
    ]


def renormalized_logps(
    states: Tensor, targets: Tensor, head: Head, temperature: float, kept: KeptTokens, chunk: int
) -> RenormalizedLogps:
    """Log-probs of `targets` among the kept tokens, with gradients.

    The vocabulary is multiplied in for `chunk` tokens at a time, and again in the backward pass.
    """
    parts = [
        checkpoint(_chunk, head, temperature, *part, use_reentrant=False)
        for part in zip(
            states.split(chunk), targets.split(chunk), kept.ids.split(chunk),
            kept.counts.split(chunk), strict=True,
        )
    ]  # fmt: skip
    logps, entropies = (torch.cat(values) for values in zip(*parts, strict=True))
    return RenormalizedLogps(logps, entropies)


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
