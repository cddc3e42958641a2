"""The clipped policy-gradient loss, as a pure function of log-probabilities.

For a token with ratio r = exp(logp - behaviour) and advantage A the loss is
-min(r A, clip(r, 1 - clip_low, 1 + clip_high) A); for A < 0 it is at most -dual_clip A (dual
clip, arXiv 1912.09729). Optional terms: the k3 estimate of the KL divergence to a reference,
exp(d) - d - 1 with d = reference - logp, and an entropy bonus. An aggregation turns tokens into
one number; its counts are those of the whole batch, so a batch gives one gradient however it is
cut into micro-batches.

Nothing is replaced: a loss that is not finite raises and names the rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor

from flowzoo.envs.records import Call
from flowzoo.errors import FlowzooError, UsageError, unknown

Aggregation = Literal["token-mean", "seq-mean-token-mean", "seq-mean-token-sum", "token-sum"]


class NonFinite(FlowzooError, ArithmeticError):
    """A loss or gradient is not finite.

    `rows` are the offending rows' positions in what was passed; `calls` are the rows themselves
    where the learner knows them (to be saved by whoever catches this).
    """

    def __init__(self, message: str, rows: Sequence[int], calls: Sequence[Call] = ()) -> None:
        """Keep the rows beside the message."""
        super().__init__(message)
        self.rows = tuple(rows)
        self.calls = tuple(calls)


@dataclass(frozen=True, slots=True)
class LossConfig:
    """Choices of the loss.

    Raises:
        UsageError: an unknown aggregation or a number out of range.
    """

    clip_low: float | None = 0.2
    """The ratio is clipped below at 1 - clip_low; None: never."""
    clip_high: float | None = 0.2
    """The ratio is clipped above at 1 + clip_high; None: never."""
    dual_clip: float | None = 3.0
    """Bound of the loss of a token with a negative advantage, in units of -A; None: no bound."""
    aggregation: Aggregation = "token-mean"
    """`token-mean`: mean over all tokens. `seq-mean-token-mean`: mean over rows of each row's mean.
    `seq-mean-token-sum`: mean over rows of each row's sum. `token-sum`: sum of all tokens divided
    by `constant`."""
    constant: float = 1.0
    """Divisor of `token-sum` (Dr. GRPO: rows times the longest reply allowed)."""
    kl_coef: float = 0.0
    """Weight of the KL divergence to the reference policy; 0: none is needed."""
    entropy_coef: float = 0.0
    """Weight of the entropy bonus."""

    def __post_init__(self) -> None:
        """Check every choice."""
        if self.aggregation not in get_args(Aggregation):
            raise unknown("aggregation", self.aggregation, get_args(Aggregation))
        if self.clip_low is not None and not 0 <= self.clip_low <= 1:
            raise UsageError(f"`clip_low` must be between 0 and 1, got {self.clip_low}.")
        if self.clip_high is not None and not self.clip_high >= 0:
            raise UsageError(f"`clip_high` must be at least 0, got {self.clip_high}.")
        if self.dual_clip is not None and not self.dual_clip > 1:
            raise UsageError(f"`dual_clip` must be greater than 1, got {self.dual_clip}.")
        if not self.constant > 0:
            raise UsageError(f"`constant` must be greater than 0, got {self.constant}.")

    @property
    def needs_every_row(self) -> bool:
        """A term other than the policy gradient needs rows whose advantage is 0."""
        return self.kl_coef != 0 or self.entropy_coef != 0


@dataclass(frozen=True, slots=True)
class Totals:
    """Counts of the whole batch that a loss is normalised by."""

    rows: int
    tokens: int


@dataclass(frozen=True, slots=True)
class LossStats:
    """Sums over tokens, so that those of micro-batches can be added."""

    tokens: float = 0.0
    loss: float = 0.0
    """This part's share of the loss (shares add up to the loss)."""
    clipped: float = 0.0
    """Tokens whose gradient the clip (not the dual clip) cut off."""
    dual_clipped: float = 0.0
    kl: float = 0.0
    """Sum of the k3 estimates of KL(behaviour || current)."""
    gap: float = 0.0
    """Sum of |logp - behaviour|."""
    gap_max: float = 0.0
    ratio: float = 0.0
    ratio_squared: float = 0.0
    reference_kl: float = 0.0
    entropy: float = 0.0

    def __add__(self, other: LossStats) -> LossStats:
        """Statistics of both parts together."""
        sums = {
            name: getattr(self, name) + getattr(other, name)
            for name in LossStats.__slots__
            if name != "gap_max"
        }
        return LossStats(**sums, gap_max=max(self.gap_max, other.gap_max))


def token_weights(
    mask: Tensor, config: LossConfig, totals: Totals, dtype: torch.dtype = torch.float32
) -> Tensor:
    """Weight of each token in the loss, shaped like `mask` (rows, tokens); 0 outside the mask."""
    weights = mask.to(dtype)
    if config.aggregation == "token-mean":
        return weights / max(totals.tokens, 1)
    if config.aggregation == "token-sum":
        return weights / config.constant
    weights = weights / max(totals.rows, 1)
    if config.aggregation == "seq-mean-token-mean":
        weights = weights / mask.sum(-1, keepdim=True).clamp(min=1)
    return weights


def policy_loss(
    logps: Tensor,
    behaviour_logps: Tensor,
    advantages: Tensor,
    mask: Tensor,
    config: LossConfig,
    *,
    totals: Totals | None = None,
    reference_logps: Tensor | None = None,
    entropies: Tensor | None = None,
) -> tuple[Tensor, LossStats]:
    """The loss of some rows of a batch, a scalar to be minimised, and its statistics.

    `logps`, `behaviour_logps`, `reference_logps` and `entropies` (of the current distribution, in
    nats) are (rows, tokens), at the sampling temperature; `advantages` is (rows,); `mask` is a
    boolean (rows, tokens), true where a sampled token is trained. Values outside the mask are
    never looked at. `totals` counts the whole batch (default: these rows); a row without tokens
    counts as a row.

    Raises:
        UsageError: a term of `config` misses its tensor, or shapes differ.
        NonFinite: the loss of a row is not finite.
    """
    _check_shapes(logps, behaviour_logps, advantages, mask)
    totals = totals or Totals(mask.shape[0], int(mask.sum()))
    # Before any arithmetic: a NaN outside the mask would survive a multiplication by 0.
    log_ratio = torch.where(mask, logps - behaviour_logps, 0.0)
    ratio = log_ratio.exp()
    surrogate, clipped, dual_clipped = _surrogate(ratio, advantages[:, None], config)
    per_token = surrogate
    reference_kl = torch.zeros_like(ratio)
    if config.kl_coef:
        if reference_logps is None:
            raise UsageError("`kl_coef` is not 0: `reference_logps` are needed.")
        distance = torch.where(mask, reference_logps - logps, 0.0)
        reference_kl = distance.exp() - distance - 1
        per_token = per_token + config.kl_coef * reference_kl
    if entropies is not None:
        entropies = torch.where(mask, entropies, 0.0)
    if config.entropy_coef:
        if entropies is None:
            raise UsageError("`entropy_coef` is not 0: `entropies` are needed.")
        per_token = per_token - config.entropy_coef * entropies
    weights = token_weights(mask, config, totals, per_token.dtype)
    row_loss = torch.where(mask, per_token * weights, 0.0).sum(-1)
    _check_finite(row_loss)
    loss = row_loss.sum()
    with torch.no_grad():
        gap = log_ratio.abs()
        zero = ratio.new_zeros(())
        sums = [
            mask.sum(), loss, (clipped & mask).sum(), (dual_clipped & mask).sum(),
            (ratio - 1 - log_ratio).sum(), gap.sum(), gap.max() if gap.numel() else zero,
            torch.where(mask, ratio, 0.0).sum(), torch.where(mask, ratio * ratio, 0.0).sum(),
            reference_kl.sum(), zero if entropies is None else entropies.sum(),
        ]  # fmt: skip
        stats = LossStats(*torch.stack([value.double() for value in sums]).tolist())
    return loss, stats


def _surrogate(ratio: Tensor, advantage: Tensor, config: LossConfig) -> tuple[Tensor, ...]:
    """Loss per token, and where the clip and the dual clip took the gradient away."""
    plain = -ratio * advantage
    low = None if config.clip_low is None else 1 - config.clip_low
    high = None if config.clip_high is None else 1 + config.clip_high
    bounded = plain if low is None and high is None else -ratio.clamp(low, high) * advantage
    loss, clipped = torch.maximum(plain, bounded), bounded > plain
    if config.dual_clip is None:
        return loss, clipped, torch.zeros_like(clipped)
    ceiling = -config.dual_clip * advantage
    over = (advantage < 0) & (loss > ceiling)
    return torch.where(over, ceiling, loss), clipped & ~over, over


def _check_shapes(logps: Tensor, behaviour: Tensor, advantages: Tensor, mask: Tensor) -> None:
    """Raise `UsageError` unless the four tensors belong together."""
    if not logps.shape == behaviour.shape == mask.shape or advantages.shape != logps.shape[:1]:
        raise UsageError(
            "`logps`, `behaviour_logps` and `mask` must be (rows, tokens) and `advantages` "
            f"(rows,), got {tuple(logps.shape)}, {tuple(behaviour.shape)}, {tuple(mask.shape)} "
            f"and {tuple(advantages.shape)}."
        )
    if mask.dtype != torch.bool:
        raise UsageError(f"`mask` must be boolean, got {mask.dtype}.")


def _check_finite(row_loss: Tensor) -> None:
    """Raise `NonFinite` with the rows whose loss is not finite."""
    finite = torch.isfinite(row_loss.detach())
    if not bool(finite.all()):
        rows: list[int] = (~finite).nonzero().flatten().tolist()
        raise NonFinite(f"the loss of rows {rows[:10]} ({len(rows)} in all) is not finite.", rows)
