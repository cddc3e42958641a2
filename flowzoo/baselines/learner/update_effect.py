"""Effect of an update on a policy: its divergence from the weights before, on a sample of rows.

With one optimizer step an iteration the ratios to the sampler are all 1 while the loss is taken,
independent of the step. So some rows go through the model once more after the last step. What
their distributions were before the first is taken from that step's own forward pass, as far as it
computes them; the others go through the model once more before it, too. In bfloat16 all of them do,
since there a row's numbers depend on the rows beside it by more than a small step moves them.

The divergence is exact over the vocabulary, KL(before || after) = sum of p (e^d - 1 - d) with d the
difference of log-probs: every term is at least 0 and of second order, so that nothing cancels,
however small the step. An estimate from the sampled tokens alone would come out too high: they are
the very tokens that the step pushed. What is estimated is the mean over contexts.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Collection, Sequence
from itertools import accumulate

import torch
from torch import Tensor
from transformers import PreTrainedModel

from flowzoo.baselines.learner.batch import Microbatch, TrainingRow
from flowzoo.baselines.learner.forward import ForwardPass
from flowzoo.baselines.learner.vocabulary import CHUNK_ELEMENTS
from flowzoo.seeding import key_rng

MOST_ROWS, FEWEST_ROWS, SHARE = 32, 4, 32
"""The sample is one row of `SHARE`, within these numbers."""
_AT_ONCE = 2**22
"""Elements of the vocabulary that are computed with in float64 at once: 32 MiB."""


def sample(rows: Sequence[TrainingRow], iteration: int, positions: int) -> list[TrainingRow]:
    """A sample of `rows`, by a separate key, so that no other random stream moves.

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
        self,
        forward: ForwardPass,
        model: PreTrainedModel,
        rows: Sequence[TrainingRow],
        key: int,
        pending: Collection[int] = (),
    ) -> None:
        """Measure `rows`, at least one of which has output tokens, with the weights of now.

        Args:
            forward: how the learner computes.
            model: with the weights before the update.
            rows: the sample.
            key: picks the tokens where their distributions together would take more memory than
                one chunk of the output head.
            coming: places of rows that the first step will compute. They need not be measured
                here, and `take` must be given that step's forward passes.
        """
        self._forward, self._rows = forward, rows
        vocabulary = model.config.get_text_config().vocab_size
        lengths = [len(row.call.output_ids) for row in rows]
        tokens, most = sum(lengths), max(1, CHUNK_ELEMENTS // vocabulary)
        self._places: Sequence[int] = range(tokens)
        """The tokens that are measured, counted row by row over the sample."""
        if tokens > most:
            self._places = sorted(key_rng("update effect, tokens", key).sample(range(tokens), most))
        self._own: dict[int, list[int]] = {}
        """The same of each row, by its place: counted in the row."""
        for row, size, end in zip(rows, lengths, accumulate(lengths), strict=True):
            first, last = (bisect_left(self._places, edge) for edge in (end - size, end))
            self._own[row.index] = [at - end + size for at in self._places[first:last]]
        self._before: dict[int, Tensor] = {}
        now = [row for row in rows if not forward.is_exact or row.index not in pending]
        if now:
            batch = self._batch(now)
            self.take(model, now, batch, forward.states(model, batch))

    def take(
        self,
        model: PreTrainedModel,
        rows: Sequence[TrainingRow],
        batch: Microbatch,
        states: Tensor,
    ) -> None:
        """Keep the distributions of the `rows` that are still missing.

        Args:
            model: with the weights before the update.
            rows: of a microbatch, in its order.
            batch: that microbatch.
            states: (states, hidden), the last hidden states at its `positions`.
        """
        token_positions: dict[int, list[int]] = {}
        start = 0
        for row in rows:
            if row.index in self._own and row.index not in self._before:
                token_positions[row.index] = [start + at for at in self._own[row.index]]
            start += len(row.call.output_ids)
        if not token_positions:
            return
        tokens = torch.tensor(
            [at for positions in token_positions.values() for at in positions], device=states.device
        )
        parts = self._forward.distributions(model, states[batch.sources[tokens.long()]])
        sizes = [len(positions) for positions in token_positions.values()]
        self._before |= dict(zip(token_positions, parts.split(sizes), strict=True))

    def metrics(self, model: PreTrainedModel) -> dict[str, float]:
        """Divergence of the present weights from the weights before.

        `learn/update_kl` is in nats per token; `learn/update_ratio_max` is the largest factor by
        which the probability of a sampled token rose or fell.
        """
        batch = self._batch(self._rows)
        places = torch.tensor(self._places, device=batch.targets.device)
        states = self._forward.states(model, batch)[batch.sources[places]]
        after = self._forward.distributions(model, states)
        before = torch.cat([self._before[row.index] for row in self._rows])
        chosen = batch.targets[places, None]
        moved = (after.gather(-1, chosen) - before.gather(-1, chosen)).abs().max()
        size = max(1, _AT_ONCE // after.shape[-1])
        parts = zip(before.split(size), after.split(size), strict=True)
        divergences = torch.cat([_divergence(*part) for part in parts])
        return {
            "learn/update_kl": float(divergences.mean()),
            "learn/update_ratio_max": math.exp(min(float(moved), 700.0)),
        }

    def _batch(self, rows: Sequence[TrainingRow]) -> Microbatch:
        return self._forward.batch([row.call for row in rows], [0.0] * len(rows))


def _divergence(before: Tensor, after: Tensor) -> Tensor:
    """KL(before || after) of distributions given as log-probs (tokens, vocabulary): (tokens,)."""
    gap = after.double() - before.double()
    return (before.double().exp() * (gap.expm1() - gap)).sum(-1)
