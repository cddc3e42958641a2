"""Amplification: do parallel agents of one role push their policy the same way?

The definition is flowzoo's; that of arXiv 2605.24202 is not public.
"""

# From one sample amplification measures the noise: exchangeable voters have one expected gradient,
# so theirs is N, yet three of them show 2.99, 2.45, 1.87 and 1.75 at signal-to-noise ratios of 10,
# 1, 0.3, 0.1. So squared norms and inner products of expected gradients are estimated across
# independent blocks of problems (a U-statistic: no block meets itself). Blocks are of whole
# problems, since agents of one episode share its outcome. docs/diagnostics.md has the formulas.

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from flowzoo.aliases import Floats
from flowzoo.baselines.stats import t_quantile
from flowzoo.errors import UsageError

FEWEST = 4
"""Blocks of problems in a probe, below which leaving one out says too little about the variance."""
_FLOOR = 0.5  # least squared norm of a slot in its own weight, in standard errors


@dataclass(frozen=True, slots=True)
class Amplification:
    """Sum of the gradients of N parallel slots."""

    slots: int
    value: float
    """Corrected; NaN where numerator or denominator came out negative. By noise it may exceed N."""
    low: float
    high: float
    """Interval, 95 % by default; `high` is infinite if the signal cannot be separated from zero."""
    over: float
    """Norm of the sum over that of a sum of orthogonal slots of the same norms; NaN as above."""
    over_low: float
    over_high: float  # interval of `over`
    effective: float
    """Effective number of slots, (sum |g_s|)^2 / sum |g_s|^2, mean over runs; by noise nearer N."""
    naive: float  # N |sum g_s| / sum |g_s| of the sample itself
    null_low: float
    null_high: float
    """Middle 95 % of the naive value when slots are shuffled within every block: what exchangeable
    agents would show with this noise."""


def amplification(
    grams: Sequence[Floats],
    *,
    runs: Sequence[int] | None = None,
    confidence: float = 0.95,
    shuffles: int = 500,
) -> Amplification:
    """Amplification from <g_sb, g_tc>, a (slots, blocks, slots, blocks) array for each probe."""
    # Probes of one run have one p; runs have their own, since which slot counts most may differ.
    _check(grams)
    slots = grams[0].shape[0]
    # One scale for all probes, so that early, large gradients do not decide alone.
    scaled = [gram / max(float(np.einsum("sbsb->", gram)), 1e-300) for gram in grams]
    products = [products_left_out(gram) for gram in scaled]
    run_of = [0] * len(grams) if runs is None else list(runs)
    lengths = _lengths(products, run_of)
    weights = [lengths[run].sum() / lengths[run] / slots**2 for run in run_of]
    value, low, high = _root_of_ratio(products, weights, confidence)
    alike = [np.ones(slots)] * len(products)
    over = _root_of_ratio(products, alike, confidence)
    null = np.quantile(_null(scaled, shuffles) or [math.nan], (0.025, 0.975))
    effective = float(np.mean([n.sum() ** 2 / (n**2).sum() for n in lengths.values()]))
    naive = _naive([gram.sum(axis=(1, 3)) for gram in scaled])
    return Amplification(slots, value, low, high, *over, effective, naive, *null.tolist())


def products_left_out(gram: Floats) -> Floats:
    """U_st of all blocks, then without each: (1 + blocks, slots, slots)."""
    blocks = gram.shape[1]
    within = np.einsum("sbtb->bst", gram)
    across = np.einsum("sbtc->bst", gram) + np.einsum("sbtc->cst", gram) - 2 * within
    every = across.sum(axis=0) / 2
    left_out = (every - across) / ((blocks - 1) * (blocks - 2))
    return np.concatenate([every[None] / (blocks * (blocks - 1)), left_out])


def _lengths(products: Sequence[Floats], run_of: Sequence[int]) -> dict[int, Floats]:
    # By Cauchy and Schwarz the squared sum of norms is the least of sum_s |g_s|^2 / p_s over
    # weights p that sum to 1, attained by p = |g_s| / sum |g|: an error of p counts in second order
    # only.
    lengths: dict[int, Floats] = {}
    for run in dict.fromkeys(run_of):
        own_products = [p for p, of in zip(products, run_of, strict=True) if of == run]
        squares = [np.einsum("bss->bs", part) for part in own_products]
        errors = np.sqrt(np.diagonal(_covariances(squares).sum(axis=0))) / len(own_products)
        # Without any noise a slot without gradient would leave nothing to divide by.
        floor = np.maximum(_FLOOR * errors, 1e-12)
        lengths[run] = np.sqrt(np.maximum(np.mean([part[0] for part in squares], axis=0), floor))
    return lengths


def _root_of_ratio(
    products: Sequence[Floats], weights: Sequence[Floats], confidence: float
) -> tuple[float, float, float]:
    parts = [
        np.stack([product.sum(axis=(1, 2)), np.einsum("bss,s->b", product, weight)], axis=1)
        for product, weight in zip(products, weights, strict=True)
    ]
    top, bottom = np.mean([part[0] for part in parts], axis=0)
    covariances = _covariances(parts) / len(parts) ** 2
    ratio = top / bottom if bottom > 0 and top > 0 else 0.0
    freedom = _freedom(covariances, ratio, [len(part) - 2 for part in parts])
    level = t_quantile(freedom, (1 + confidence) / 2)
    low, high = fieller(top, bottom, covariances.sum(axis=0), level)
    value = math.sqrt(top / bottom) if top >= 0 and bottom > 0 else math.nan
    return value, math.sqrt(max(low, 0.0)), math.sqrt(max(high, 0.0))


def _covariances(parts: Sequence[Floats]) -> Floats:
    matrices: list[Floats] = []
    for part in parts:
        left_out = part[1:]
        deviations = left_out - left_out.mean(axis=0)
        matrices.append((len(left_out) - 1) / len(left_out) * deviations.T @ deviations)
    return np.array(matrices)


def _freedom(covariances: Floats, ratio: float, each: Sequence[int]) -> float:
    # F. E. Satterthwaite, Biometrics Bulletin 2 (1946) 110.
    contrast = np.array([1.0, -ratio])
    variances = np.einsum("i,pij,j->p", contrast, covariances, contrast)
    weighted = float(np.sum(variances**2 / np.array(each)))
    return float(variances.sum() ** 2 / weighted) if weighted > 0 else float(sum(each))


def fieller(top: float, bottom: float, covariance: Floats, level: float) -> tuple[float, float]:
    """Ends of the ratios r for which top - r bottom is within `level` errors (Fieller, 1954)."""
    vt, vtb, vb = covariance[0, 0], covariance[0, 1], covariance[1, 1]
    a = bottom**2 - level**2 * vb
    b = -2 * (top * bottom - level**2 * vtb)
    c = top**2 - level**2 * vt
    inner = b * b - 4 * a * c
    if bottom <= 0 or a == 0 or (a < 0 and inner < 0):
        return 0.0, math.inf
    root = math.sqrt(max(inner, 0.0))  # with a > 0 below zero by rounding only
    ends = sorted(((-b - root) / (2 * a), (-b + root) / (2 * a)))
    if a > 0:
        return ends[0], ends[1]
    # The denominator may be zero: ratios beyond a root, or all of them.
    return (ends[1] if ends[1] > 0 and c > 0 else 0.0), math.inf


def _naive(sums: Sequence[Floats]) -> float:
    values = [
        len(gram) * math.sqrt(max(gram.sum(), 0.0)) / np.sqrt(np.diagonal(gram)).sum()
        for gram in sums
    ]
    return float(np.mean(values))


def _null(grams: Sequence[Floats], shuffles: int) -> list[float]:
    rng = np.random.default_rng(0)
    values: list[float] = []
    for _ in range(shuffles):
        sums: list[Floats] = []
        for gram in grams:
            slots, blocks = gram.shape[:2]
            order = np.array([rng.permutation(slots) for _ in range(blocks)]).T
            rows = gram[order, np.arange(blocks)]
            mixed = rows[:, :, order, np.arange(blocks)]
            sums.append(mixed.sum(axis=(1, 3)))
        values.append(_naive(sums))
    return values


def _check(grams: Sequence[Floats]) -> None:
    for gram in grams:
        square = gram.ndim == 4 and gram.shape[:2] == gram.shape[2:]
        if not square or gram.shape[0] < 2 or gram.shape[1] < FEWEST:
            raise UsageError(
                "a probe must be (slots, blocks, slots, blocks) with 2 slots and "
                f"{FEWEST} blocks or more, got {gram.shape}"
            )
    if not grams or len({gram.shape[0] for gram in grams}) != 1:
        raise UsageError("amplification needs probes of one number of slots, and at least one")
