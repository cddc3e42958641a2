"""What an update did to a policy: its divergence from the weights before, on a sample of rows.

With one optimiser step an iteration the ratios to the sampler are all 1 while the loss is taken,
whatever the step then does. So some rows go through the model once more before the first step and
once after the last.

The divergence is exact over the vocabulary, KL(before || after) = sum of p (e^d - 1 - d) with d the
difference of log-probs: every term is at least 0 and of second order, so that nothing cancels,
however small the step. An estimate from the sampled tokens alone would come out too high: they are
the very tokens that the step pushed. What is estimated is the mean over contexts.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor
from transformers import PreTrainedModel

from flowzoo.baselines.learner.forward import ForwardPass
from flowzoo.baselines.learner.rows import TrainingRow
from flowzoo.baselines.learner.vocabulary import CHUNK_ELEMENTS
from flowzoo.seeding import key_rng

MOST_ROWS, FEWEST_ROWS, SHARE = 32, 4, 32
"""The sample is one row of `SHARE`, within these numbers."""
_AT_ONCE = 2**22
"""Elements of the vocabulary that are computed with in float64 at once: 32 MiB."""


def sample(rows: Sequence[TrainingRow], iteration: int, positions: int) -> list[TrainingRow]:
    """Some of `rows`, by a key of their own, so that no other random stream moves.

    Args:
        rows: all rows of an iteration, in canonical order, whether they are trained on or not.
        iteration: number of the update.
        positions: most that the rows may have together, fillers included; one row may have more.
    """
    able = [row for row in rows if row.call.output_ids]
    count = min(len(able), MOST_ROWS, max(FEWEST_ROWS, math.ceil(len(able) / SHARE)))
    chosen: list[TrainingRow] = []
    widest = 0
    for row in key_rng("update effect", iteration).sample(able, count):
        widest = max(widest, len(row.call.prompt_ids) + len(row.call.output_ids))
        if chosen and widest * (len(chosen) + 1) > positions:
            break
        chosen.append(row)
    return chosen


class UpdateEffect:
    """The distributions over a sample of rows before an update, to be held against those after."""

    def __init__(
        self, forward: ForwardPass, model: PreTrainedModel, rows: Sequence[TrainingRow], key: int
    ) -> None:
        """Measure `rows`, at least one of which has output tokens, with the weights of now.

        `key` picks the tokens where their distributions together would take more memory than
        one chunk of the output head.
        """
        self._forward = forward
        self._batch = forward.batch([row.call for row in rows], [0.0] * len(rows))
        vocabulary = model.config.get_text_config().vocab_size
        tokens, most = len(self._batch.targets), max(1, CHUNK_ELEMENTS // vocabulary)
        places: Sequence[int] = range(tokens)
        if tokens > most:
            places = sorted(key_rng("update effect, tokens", key).sample(places, most))
        self._places = torch.tensor(places, device=self._batch.targets.device)
        self._before = forward.distributions(model, self._batch, self._places)

    def metrics(self, model: PreTrainedModel) -> dict[str, float]:
        """How far the weights of now are from those before.

        `learn/update_kl` is in nats per token; `learn/update_ratio_max` is the largest factor by
        which the probability of a sampled token rose or fell.
        """
        after = self._forward.distributions(model, self._batch, self._places)
        chosen = self._batch.targets[self._places, None]
        moved = (after.gather(-1, chosen) - self._before.gather(-1, chosen)).abs().max()
        size = max(1, _AT_ONCE // after.shape[-1])
        parts = zip(self._before.split(size), after.split(size), strict=True)
        divergences = torch.cat([_divergence(*part) for part in parts])
        return {
            "learn/update_kl": float(divergences.mean()),
            "learn/update_ratio_max": math.exp(min(float(moved), 700.0)),
        }


def _divergence(before: Tensor, after: Tensor) -> Tensor:
    """KL(before || after) of distributions given as log-probs (tokens, vocabulary): (tokens,)."""
    gap = after.double() - before.double()
    return (before.double().exp() * (gap.expm1() - gap)).sum(-1)
