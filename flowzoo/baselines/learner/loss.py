"""The clipped policy-gradient loss, as a pure function of log-probabilities."""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Self

import torch
from torch import Tensor

from flowzoo.baselines.learner.config import LossConfig
from flowzoo.envs.records import Call
from flowzoo.errors import FlowzooError, UsageError


class NonFiniteError(FlowzooError, ArithmeticError):
    """A loss or gradient is not finite; `rows` are indices, `calls` the rows if they are known."""

    def __init__(self, message: str, rows: Sequence[int], calls: Sequence[Call] = ()) -> None:
        super().__init__(message)
        self.rows = tuple(rows)
        self.calls = tuple(calls)

    def __reduce__(
        self,
    ) -> "tuple[type[NonFiniteError], tuple[str, Sequence[int], Sequence[Call]]]":
        return type(self), (str(self), self.rows, self.calls)


@dataclass(frozen=True, slots=True)
class LossNormalizer:
    """Counts of the whole batch that a loss is normalized by."""

    rows: int
    tokens: int


@dataclass(frozen=True, slots=True)
class Sums:
    """Statistics of rows that add up, field by field; of fields `…_max` the larger one stays."""

    def __add__(self, other: Self) -> Self:
        names = [item.name for item in fields(self)]
        pairs = {name: (getattr(self, name), getattr(other, name)) for name in names}
        return type(self)(**{
            name: max(pair) if name.endswith("_max") else pair[0] + pair[1]
            for name, pair in pairs.items()
        })  # fmt: skip


@dataclass(frozen=True, slots=True)
class LossStats(Sums):
    """Sums over tokens."""

    tokens: float = 0.0
    loss: float = 0.0  # this part's share of the loss (shares add up to the loss)
    clipped: float = 0.0
    """Tokens whose gradient the clip (not the dual clip) cut off, or whose weight it changed."""
    dual_clipped: float = 0.0
    kl: float = 0.0  # sum of the k3 estimates of KL(behavior || current)
    gap: float = 0.0  # sum of |logp - behavior|, where `behavior` is what the ratio is taken to
    gap_max: float = 0.0
    ratio: float = 0.0  # mean ratio that weighs the tokens; computed without a ratio too
    ratio_squared: float = 0.0
    reference_kl: float = 0.0  # sum of the estimates of KL(current || reference)
    entropy: float = 0.0


def token_weights(
    mask: Tensor, config: LossConfig, totals: LossNormalizer, dtype: torch.dtype = torch.float32
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
    behavior_logps: Tensor,
    advantages: Tensor,
    mask: Tensor,
    config: LossConfig,
    *,
    totals: LossNormalizer | None = None,
    reference_logps: Tensor | None = None,
    entropies: Tensor | None = None,
    row_weights: Tensor | None = None,
    kl_coefs: Tensor | None = None,
    importance: Tensor | None = None,
    sampler_logps: Tensor | None = None,
) -> tuple[Tensor, LossStats]:
    """The loss of some rows of a batch, a scalar to be minimized, and its statistics.

    The loss of a token is w (importance * surrogate + kl_coef * kl - entropy_coef * entropy), with
    w the weight of its row. The aggregation counts the whole batch (`totals`), so a batch gives one
    gradient however it is cut. Tensors are (rows, tokens), `advantages`, `row_weights` and
    `kl_coefs` (rows,); values outside the mask are never looked at, and a row without tokens counts
    as a row. Where `behavior_logps` are not the sampler's, `sampler_logps` are, and `importance`
    corrects the surrogate for them. A token whose `importance` is 0 keeps its KL and entropy terms.
    """
    totals = totals or LossNormalizer(mask.shape[0], int(mask.sum()))
    # Before any arithmetic: a NaN outside the mask would survive a multiplication by 0.
    log_ratio = torch.where(mask, logps - behavior_logps, 0.0)
    _check_finite(log_ratio.sum(-1), "log-prob")
    weight = _row_ratio(log_ratio, mask) if config.ratio == "sequence" else log_ratio
    now = torch.where(mask, logps, 0.0)
    if config.function is not None:
        loss = config.function(now, torch.where(mask, behavior_logps, 0.0), advantages, mask)
        clipped = dual_clipped = torch.zeros_like(mask)
    else:
        loss, clipped, dual_clipped = _surrogate(weight.exp(), now, advantages[:, None], config)
    if importance is not None:
        loss = loss * torch.where(mask, importance.detach(), 0.0)
    drawn = log_ratio
    if sampler_logps is not None:
        drawn = torch.where(mask, logps - sampler_logps, 0.0)
        _check_finite(drawn.sum(-1), "log-prob")
    kl = None
    has_kl = config.kl_coef != 0 if kl_coefs is None else bool((kl_coefs != 0).any())
    if reference_logps is None and has_kl:
        raise UsageError("the weight of KL is not 0: `reference_logps` are needed.")
    if reference_logps is not None:
        kl = _reference_kl(drawn, torch.where(mask, reference_logps - logps, 0.0), config)
        loss = loss + (config.kl_coef if kl_coefs is None else kl_coefs[:, None]) * kl
    if entropies is not None:
        entropies = torch.where(mask, entropies, 0.0)
    if config.entropy_coef:
        assert entropies is not None
        loss = loss - config.entropy_coef * entropies
    loss = torch.where(mask, loss * token_weights(mask, config, totals, loss.dtype), 0.0).sum(-1)
    if row_weights is not None:
        loss = loss * row_weights
    _check_finite(loss, "loss")
    stats = _stats(loss, mask, log_ratio, weight, clipped, dual_clipped, kl, entropies)
    return loss.sum(), stats


def _row_ratio(log_ratio: Tensor, mask: Tensor) -> Tensor:
    # GSPO, arXiv 2507.18071, eq. 5 and 7; its token variant is the same where a row has one
    # advantage.
    mean = log_ratio.sum(-1, keepdim=True) / mask.sum(-1, keepdim=True).clamp(min=1)
    return torch.where(mask, mean, 0.0)


def _surrogate(
    ratio: Tensor, logps: Tensor, advantage: Tensor, config: LossConfig
) -> tuple[Tensor, ...]:
    # PPO, arXiv 1707.06347, eq. 7; dual clip, arXiv 1912.09729, eq. 5; weight: CISPO, arXiv
    # 2506.13585, eq. 4 and 5. The clip counts where it took the gradient away.
    low = None if config.clip_low is None else 1 - config.clip_low
    high = None if config.clip_high is None else 1 + config.clip_high
    within = ratio if low is None and high is None else ratio.clamp(low, high)
    if config.ratio == "none" or config.clipping == "weight":
        weight = 1.0 if config.ratio == "none" else within.detach()
        clipped = (within != ratio) & (advantage != 0)
        return -weight * advantage * logps, clipped, torch.zeros_like(clipped)
    plain, bounded = -ratio * advantage, -within * advantage
    loss, clipped = torch.maximum(plain, bounded), bounded > plain
    if config.dual_clip is None:
        return loss, clipped, torch.zeros_like(clipped)
    ceiling = -config.dual_clip * advantage
    over = (advantage < 0) & (loss > ceiling)
    return torch.where(over, ceiling, loss), clipped & ~over, over


def _reference_kl(log_ratio: Tensor, distance: Tensor, config: LossConfig) -> Tensor:
    # With d = reference - logp, k3 = exp(d) - d - 1 (http://joschu.net/blog/kl-approx.html; GRPO,
    # arXiv 2402.03300, eq. 4) expects tokens of the current policy. They are the sampler's, so k3
    # is multiplied with r, whose gradient is the divergence's (DeepSeek-V3.2, arXiv 2512.02556,
    # section 3.1; TRL 1.16). Without r a token that a step made a million times less likely weighs
    # a million times as much.
    if config.kl_estimate == "plain":
        return distance.exp() - distance - 1
    # r exp(d) in one exponential: exp(d) alone overflows where r is as small.
    return (log_ratio + distance).exp() - log_ratio.exp() * (distance + 1)


@torch.no_grad()
def _stats(
    row_loss: Tensor,
    mask: Tensor,
    log_ratio: Tensor,
    weight: Tensor,
    clipped: Tensor,
    dual_clipped: Tensor,
    kl: Tensor | None,
    entropies: Tensor | None,
) -> LossStats:
    ratio, gap, zero = weight.exp(), log_ratio.abs(), row_loss.new_zeros(())
    sums = [
        mask.sum(), row_loss.sum(), (clipped & mask).sum(), (dual_clipped & mask).sum(),
        (log_ratio.exp() - 1 - log_ratio).sum(), gap.sum(), gap.max() if gap.numel() else zero,
        torch.where(mask, ratio, 0.0).sum(), torch.where(mask, ratio * ratio, 0.0).sum(),
        zero if kl is None else kl.sum(), zero if entropies is None else entropies.sum(),
    ]  # fmt: skip
    return LossStats(*torch.stack([value.double() for value in sums]).tolist())


def _check_finite(row_values: Tensor, what: str) -> None:
    finite = torch.isfinite(row_values.detach())
    if not bool(finite.all()):
        rows: list[int] = (~finite).nonzero().flatten().tolist()
        raise NonFiniteError(
            f"a {what} of rows {rows[:10]} ({len(rows)} in all) is not finite.", rows
        )
