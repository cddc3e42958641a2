"""Correction for a sampler whose log-probs are not the learner's: weights, masks, divergences.

Another number format, other kernels or older weights make a sampler's tokens off-policy even before
the first optimizer step.
"""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from flowzoo.baselines.learner.batch import Microbatch
from flowzoo.baselines.learner.config import LearnerConfig
from flowzoo.baselines.learner.loss import Sums

_LARGEST = 20.0
"""Largest log-ratio in a divergence: a single row would make it infinite. The bound is verl's."""


@dataclass(frozen=True, slots=True)
class CorrectionSums(Sums):
    """Sums over some rows."""

    rows: float = 0.0  # rows with tokens
    chi2_token: float = 0.0  # over tokens: squared ratio of learner to sampler, less 1
    chi2_seq: float = 0.0  # over rows: the same of the reply's product
    ppl: float = 0.0  # over rows: mean log-prob of the sampler less the learner's
    ppl_abs: float = 0.0  # its absolute value
    importance: float = 0.0  # over tokens: importance weights, once bounded
    beyond: float = 0.0  # tokens whose importance weight was out of bounds
    masked: float = 0.0  # rows that the off-policy mask leaves out


class Correction(NamedTuple):
    """Correction of a microbatch."""

    log_ratio: Tensor
    """(rows, T): learner before the iteration's first step less sampler; 0 off the mask."""
    weights: Tensor | None
    """(rows, T): factor on the policy gradient of each token; None: 1 everywhere."""
    sums: CorrectionSums


@torch.no_grad()
def correct(
    logps: Tensor, old_logps: Tensor, batch: Microbatch, config: LearnerConfig
) -> Correction:
    """Weigh the tokens of `batch` for its sampler.

    Both log-probs are the learner's, (rows, T): under the present weights, and under those before
    the iteration's first step.
    """
    log_ratio = torch.where(batch.mask, old_logps - batch.behavior_logps, 0.0)
    sums, weights = _divergences(log_ratio, batch.mask), None
    zero = sums[0].new_zeros(())
    importance = beyond = masked = zero
    if config.old_logp == "recomputed":
        weights, outside = importance_weights(log_ratio, batch.mask, config)
        importance, beyond = weights[batch.mask].sum(), outside[batch.mask].sum()
    if config.off_policy_mask:
        left_out = off_policy(logps, batch, config.off_policy_mask)
        ones = torch.ones_like(log_ratio) if weights is None else weights
        weights, masked = ones.masked_fill(left_out[:, None], 0.0), left_out.sum()
    values = torch.stack([value.double() for value in (*sums, importance, beyond, masked)])
    return Correction(log_ratio, weights, CorrectionSums(*values.tolist()))


def importance_weights(
    log_ratio: Tensor, mask: Tensor, config: LearnerConfig
) -> tuple[Tensor, Tensor]:
    """Bounded importance weights (rows, T), and if each was out of bounds.

    `log_ratio` (rows, T) is 0 off the mask. Truncated by token: Yao et al. 2025
    (https://fengyao.notion.site/off-policy-rl); masked by token: IcePop (arXiv 2510.18855); by
    sequence, truncated or masked: Liu et al. 2025 (https://richardli.xyz/rl-collapse). The
    geometric mean is GSPO's (arXiv 2507.18071, eq. 7).
    """
    if config.importance_level != "token":
        reply = log_ratio.sum(-1, keepdim=True)
        if config.importance_level == "geometric":
            reply = reply / mask.sum(-1, keepdim=True).clamp(min=1)
        log_ratio = reply.expand_as(log_ratio)
    weights = log_ratio.exp()
    outside = (weights > config.importance_cap) | (weights < config.importance_floor)
    if config.importance_mode == "mask":
        return weights.masked_fill(outside, 0.0), outside
    return weights.clamp(config.importance_floor, config.importance_cap), outside


def off_policy(logps: Tensor, batch: Microbatch, threshold: float) -> Tensor:
    """Mark (rows,) replies with a negative advantage whose tokens the learner has moved away from.

    DeepSeek-V3.2 (arXiv 2512.02556, section 3.1), with its old policy the sampler.
    """
    distance = torch.where(batch.mask, batch.behavior_logps - logps, 0.0).sum(-1)
    mean = distance / batch.mask.sum(-1).clamp(min=1)
    return (batch.advantages < 0) & (mean > threshold)


def _divergences(log_ratio: Tensor, mask: Tensor) -> list[Tensor]:
    # E_sampler[ratio^2] - 1 is the chi-squared divergence of the learner from the sampler.
    log_ratio, lengths = log_ratio.double(), mask.sum(-1)
    reply = log_ratio.sum(-1)
    distance = -reply / lengths.clamp(min=1)
    return [
        (lengths > 0).sum().double(),
        *((2 * ratio.clamp(-_LARGEST, _LARGEST)).expm1().sum() for ratio in (log_ratio, reply)),
        distance.sum(), distance.abs().sum(),
    ]  # fmt: skip
