"""Metrics of a learner's iteration."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from flowzoo.baselines.learner.batch import TrainingRow
from flowzoo.baselines.learner.config import LearnerConfig
from flowzoo.baselines.learner.correction import Correction, CorrectionSums
from flowzoo.baselines.learner.forward import ForwardOutput
from flowzoo.baselines.learner.gradient_stats import RoleGramMatrix, gram_metrics
from flowzoo.baselines.learner.loss import LossStats, Sums


@dataclass(frozen=True, slots=True)
class TokenSums(Sums):
    """Sums over the trained tokens of some rows."""

    loss: LossStats = field(default_factory=LossStats)
    correction: CorrectionSums = field(default_factory=CorrectionSums)
    outside: float = 0.0  # sampled tokens that the learner's top-k and top-p would not have kept


@dataclass(frozen=True, slots=True)
class OptimizerStep:
    """One optimizer step."""

    sums: TokenSums
    norm: float  # norm of the gradient before clipping
    gram: RoleGramMatrix | None
    by_role: Mapping[str, TokenSums]  # `sums` of every role, where their gradients are measured
    coherence: tuple[float, float] | None
    """Cosine to the running mean of gradients, and the scale it gave."""


def token_sums(
    stats: LossStats, correction: Correction, scores: ForwardOutput, config: LearnerConfig
) -> TokenSums:
    """Add the correction to the statistics of the loss, whose gap becomes that to the sampler."""
    outside = 0.0 if scores.kept_tokens is None else float(scores.kept_tokens.outside.sum())
    if config.old_logp == "recomputed":
        gap = correction.log_ratio.abs()
        stats = replace(stats, gap=float(gap.sum()), gap_max=float(gap.max()))
    return TokenSums(stats, correction.sums, outside)


def row_counts(rows: Sequence[TrainingRow]) -> dict[str, float]:
    """The metrics that need no model: counts of rows and tokens, shares of them, and entropies."""
    # The mean of -log p of sampled tokens is an unbiased estimate of the entropy of the
    # distribution that they were drawn from, however long the reply becomes.
    roles = sorted({row.call.role for row in rows})
    by_role = {role: [row for row in rows if row.call.role == role] for role in roles}
    metrics: dict[str, float] = {}
    for role, role_rows in by_role.items():
        taught = sum(row.trained and row.advantage != 0 for row in role_rows)
        metrics[f"signal/{role}"] = taught / len(role_rows)
    # Tokens times the size of the advantage, of the rows that are trained.
    pulls = {
        role: math.fsum(len(row.call.output_ids) * abs(row.advantage) * row.trained for row in part)
        for role, part in by_role.items()
    }
    if pull := math.fsum(pulls.values()):
        metrics |= {f"advantage_mass/{role}": value / pull for role, value in pulls.items()}
    logps = {role: [logp for row in part for logp in row.call.logps]
             for role, part in by_role.items()}  # fmt: skip
    surprise = {role: (-math.fsum(values), len(values)) for role, values in logps.items()}
    for role, (total, tokens) in surprise.items():
        if tokens:
            metrics[f"sampled_entropy/{role}"] = total / tokens
    if tokens := sum(map(len, logps.values())):
        metrics["learn/sampled_entropy"] = sum(total for total, _ in surprise.values()) / tokens
    return metrics | {
        "learn/rows": float(len(rows)),
        "learn/tokens": float(sum(len(row.call.output_ids) for row in rows)),
        "learn/rows_trained": float(sum(row.trained for row in rows)),
        "learn/tokens_trained": float(sum(len(row.call.output_ids) for row in rows if row.trained)),
        "learn/truncated": float(sum(row.call.finish == "length" for row in rows)),
    }


def step_metrics(steps: Sequence[OptimizerStep], config: LearnerConfig) -> dict[str, float]:
    """The metrics that are means over tokens, or over the steps of an iteration (one at least)."""
    total = TokenSums()
    for step in steps:
        total = total + step.sums
    loss, first = total.loss, steps[0].sums.loss
    tokens = max(loss.tokens, 1.0)
    metrics = {
        "learn/loss": loss.loss / len(steps),
        "learn/grad_norm": max(step.norm for step in steps),
        "learn/clip_fraction": loss.clipped / tokens,
        "learn/dual_clip_fraction": loss.dual_clipped / tokens,
        "learn/kl": loss.kl / tokens,
        "learn/logp_gap_mean": first.gap / max(first.tokens, 1.0),
        "learn/logp_gap_max": first.gap_max,
        "learn/trained_entropy": loss.entropy / tokens,
        "learn/ess": loss.ratio**2 / (tokens * loss.ratio_squared),
    }
    if config.needs_reference:
        metrics["learn/reference_kl"] = loss.reference_kl / tokens
    metrics |= _correction_metrics(steps[0].sums, total, config)
    if config.correction == "renormalize":
        metrics["learn/outside_kept"] = total.outside / tokens
    scales = [step.coherence for step in steps if step.coherence is not None]
    if scales:
        metrics["learn/coherence"] = sum(cosine for cosine, _ in scales) / len(scales)
        metrics["learn/coherence_scale"] = sum(scale for _, scale in scales) / len(scales)
    grams = [step.gram for step in steps if step.gram is not None]
    return metrics | gram_metrics(grams) | _by_role([step.by_role for step in steps])


def _correction_metrics(
    first: TokenSums, total: TokenSums, config: LearnerConfig
) -> dict[str, float]:
    tokens, before = max(total.loss.tokens, 1.0), first.correction
    rows = max(before.rows, 1.0)
    metrics = {
        "learn/chi2_token": before.chi2_token / max(first.loss.tokens, 1.0),
        "learn/chi2_seq": before.chi2_seq / rows,
        "learn/log_ppl_diff": before.ppl / rows,
        "learn/log_ppl_abs_diff": before.ppl_abs / rows,
    }
    if config.old_logp == "recomputed":
        beyond = "masked" if config.importance_mode == "mask" else "capped"
        metrics["learn/importance"] = total.correction.importance / tokens
        metrics[f"learn/importance_{beyond}"] = total.correction.beyond / tokens
    if config.off_policy_mask:
        masked = total.correction.masked / max(total.correction.rows, 1.0)
        metrics["learn/off_policy_masked"] = masked
    return metrics


def _by_role(steps: Sequence[Mapping[str, TokenSums]]) -> dict[str, float]:
    metrics: dict[str, float] = {}
    for role in sorted({role for step in steps for role in step}):
        total = sum((step[role] for step in steps if role in step), TokenSums()).loss
        tokens = max(total.tokens, 1.0)
        metrics[f"trained_entropy/{role}"] = total.entropy / tokens
        metrics[f"kl/{role}"] = total.kl / tokens
        metrics[f"clip/{role}"] = total.clipped / tokens
    return metrics
