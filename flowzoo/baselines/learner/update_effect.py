"""Effect of an update on a policy: its divergence from the weights before, on a sample of rows."""

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

MOST_ROWS, FEWEST_ROWS, SHARE = 32, 4, 32  # the sample is one row of `SHARE`, within these numbers
_MOST_SHARE = 16  # where rows cost more than one forward pass it is at most one row of these
_AT_ONCE = 2**18  # elements of the vocabulary that are computed with in float64 at once: 2 MiB


def sample(
    rows: Sequence[TrainingRow], iteration: int, positions: int, passes: int = 1
) -> list[TrainingRow]:
    """A sample of `rows` that holds at most `positions` positions, fillers included.

    A row costs as many forward passes as `passes`: with more there are fewer rows.
    """
    able = [row for row in rows if row.call.output_ids]
    count = min(len(able), MOST_ROWS, max(FEWEST_ROWS, math.ceil(len(able) / SHARE)))
    if passes > 1:
        count = math.ceil(min(count / passes, len(able) / _MOST_SHARE))
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

    # With one optimizer step an iteration the ratios are all 1 while the loss is taken, so some
    # rows go through the model once more after it. Before it, the step's own forward pass serves,
    # but in bfloat16, where a row's numbers depend on the rows beside it.

    def __init__(
        self,
        forward: ForwardPass,
        model: PreTrainedModel,
        rows: Sequence[TrainingRow],
        key: int,
        pending: Collection[int] = (),
    ) -> None:
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
        self, model: PreTrainedModel, rows: Sequence[TrainingRow], batch: Microbatch, states: Tensor
    ) -> None:
        """Keep the distributions of the `rows` of a microbatch that are still missing."""
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
        """Divergence in nats per token, and the largest factor on a sampled token's probability."""
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
    # Exact over the vocabulary, since the sampled tokens are the very ones that the step pushed.
    # Every term p (e^d - 1 - d) is at least 0 and of second order, so nothing cancels.
    gap = after.double() - before.double()
    return (before.double().exp() * (gap.expm1() - gap)).sum(-1)
