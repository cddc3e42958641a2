"""The proof that an engine has the weights that the learner has: both give the same log-probs.

A sync that was lost, half done or undone shows as a difference. Who asks which tokens is
`flowzoo.baselines.engines.sync`, and `flowzoo.baselines.backends.ray.proof` for engines elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from torch import Tensor

from flowzoo.errors import FlowzooError

USUAL_TOLERANCE = {True: 1e-3, False: 0.15}
"""Nats, for engines and learners in float32 and for others: between bfloat16 and float32 a model of
135 million weights differs by up to 0.075 in the mean."""


class SyncError(FlowzooError, RuntimeError):
    """An engine does not have the learner's weights."""


class LogprobGap(NamedTuple):
    """Differences |engine - learner| of log-probs, in nats, over `tokens` tokens."""

    largest: float
    mean: float
    tokens: int

    @classmethod
    def of(cls, gaps: Tensor) -> LogprobGap:
        """Of the differences of single tokens: (tokens,)."""
        return cls(float(gaps.max()), float(gaps.mean()), gaps.numel())


def row_gaps(row: Mapping[str, Any], policies: Iterable[str]) -> dict[str, LogprobGap]:
    """The differences of the rows that policies trained on, by the metrics of a step.

    They are those before the first optimiser step; policies without rows have none.
    """
    return {
        name: LogprobGap(
            row[f"learn/logp_gap_max/{name}"],
            row[f"learn/logp_gap_mean/{name}"],
            int(row[f"learn/tokens_trained/{name}"]),
        )
        for name in policies
        if f"learn/logp_gap_mean/{name}" in row
    }


def check(
    proof: LogprobGap, engine: str, *, exact: bool, tolerance: float, tokens: str = "probe tokens"
) -> None:
    """Stop unless the proof holds.

    Args:
        proof: what was measured.
        engine: what the error calls it.
        exact: engine and learner compute in float32: the largest difference counts, else the mean,
            for rounding to fewer digits changes single log-probs by much.
        tolerance: most that may differ; 0: what is usual.
        tokens: what the error calls those that were compared.

    Raises:
        SyncError: it does not.
    """
    gap = proof.largest if exact else proof.mean
    tolerance = tolerance or USUAL_TOLERANCE[exact]
    if not gap <= tolerance:  # a NaN does not pass either
        raise SyncError(
            f"{engine} does not have the learner's weights: after the "
            f"sync their log-probs of {proof.tokens} {tokens} differ by up to "
            f"{proof.largest:.2g} ({proof.mean:.2g} in the mean), and {tolerance:g} "
            f"{'at most' if exact else 'in the mean'} is allowed (sync_tolerance). Nothing that "
            "such an engine sampled is kept; the last checkpoint is good."
        )
