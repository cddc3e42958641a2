"""Do parallel agents of one role push their policy the same way?

N slots of a role with gradients g_s: coherence is |sum g_s| / sum |g_s|, amplification N times
that: N if they are aligned, sqrt(N) if orthogonal. Computed from one sample it measures the noise:
exchangeable voters have one expected gradient, so their amplification is N, yet three of them show
2.99, 2.45, 1.87 and 1.75 at signal-to-noise ratios of 10, 1, 0.3 and 0.1.

So squared norms and inner products of *expected* gradients are estimated across independent blocks
of problems (a U-statistic: no block meets itself, so noise has mean zero and estimates may be
negative):

    U_st = 1 / (B (B - 1)) sum_{b != c} <g_sb, g_tc>

    amplification = sqrt(sum_st U_st / mean_s U_ss)

and its interval is Fieller's for that ratio, with variances from leaving out one block at a time
and Student's t with one degree of freedom fewer than blocks in each probe.
Where the denominator cannot be told from zero the interval is unbounded, which says: not enough
signal. Blocks are of whole problems, since agents of one episode share its outcome.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.special import stdtrit

from flowzoo.errors import UsageError

Floats = npt.NDArray[np.float64]

FEWEST = 4
"""Blocks of problems in a probe, below which leaving one out says too little about the variance."""


@dataclass(frozen=True, slots=True)
class Amplification:
    """How N parallel slots add up."""

    slots: int
    value: float
    """Corrected; NaN where numerator or denominator came out negative."""
    low: float
    high: float
    """Interval, of 95 % unless told; `high` is infinite where signal cannot be told from zero."""
    naive: float
    """N |sum g_s| / sum |g_s| of the sample itself."""
    null_low: float
    null_high: float
    """Middle 95 % of the naive value when slots are shuffled within every block: what exchangeable
    agents would show with this noise."""

    @property
    def coherence(self) -> float:
        """The corrected value over the number of slots."""
        return self.value / self.slots


def amplification(
    grams: Sequence[Floats], *, confidence: float = 0.95, shuffles: int = 500, seed: int = 0
) -> Amplification:
    """Amplification from the inner products of block gradients.

    `grams` has one (slots, blocks, slots, blocks) array of <g_sb, g_tc> for each probe; probes may
    be of different steps and differ in scale and in their number of blocks. `confidence` is that of
    the interval. With no `shuffles` there is no null, and its bounds are NaN.

    Raises:
        UsageError: no probe, fewer than 2 slots, fewer than `FEWEST` blocks, or another shape.
    """
    _check(grams)
    slots = grams[0].shape[0]
    # One scale for all probes, so that early, large gradients do not decide alone.
    scaled = [gram / max(float(np.einsum("sbsb->", gram)), 1e-300) for gram in grams]
    tops, bottoms = [], []
    for gram in scaled:
        top, bottom = _leave_one_out(gram)
        tops.append(top)
        bottoms.append(bottom)
    top, bottom = _total(tops), _total(bottoms)
    variance = _covariance(tops, bottoms)
    freedom = sum(gram.shape[1] - 1 for gram in grams)
    low, high = _fieller(top, bottom, variance, float(stdtrit(freedom, (1 + confidence) / 2)))
    value = math.sqrt(top / bottom) if top >= 0 and bottom > 0 else math.nan
    null = _null(scaled, shuffles, seed) or [math.nan]
    return Amplification(
        slots=slots,
        value=value,
        low=math.sqrt(max(low, 0.0)),
        high=math.sqrt(max(high, 0.0)),
        naive=_naive([gram.sum(axis=(1, 3)) for gram in scaled]),
        null_low=float(np.quantile(null, 0.025)),
        null_high=float(np.quantile(null, 0.975)),
    )


def cross_products(gram: Floats) -> Floats:
    """U_st of one probe, (slots, slots): estimates of inner products of expected gradients."""
    return _products_left_out(gram)[0]


def _products_left_out(gram: Floats) -> Floats:
    """`cross_products` of all blocks, then without each: (1 + blocks, slots, slots)."""
    blocks = gram.shape[1]
    own = np.einsum("sbtb->bst", gram)
    met = np.einsum("sbtc->bst", gram) + np.einsum("sbtc->cst", gram) - 2 * own
    every = met.sum(axis=0) / 2
    left_out = (every - met) / ((blocks - 1) * (blocks - 2))
    return np.concatenate([every[None] / (blocks * (blocks - 1)), left_out])


def _leave_one_out(gram: Floats) -> tuple[Floats, Floats]:
    """Numerator and denominator of one probe: of all blocks, then without each: (1 + blocks,)."""
    products = _products_left_out(gram)
    return products.sum(axis=(1, 2)), np.einsum("bss->b", products) / gram.shape[0]


def _total(parts: Sequence[Floats]) -> float:
    return float(np.mean([part[0] for part in parts]))


def _covariance(tops: Sequence[Floats], bottoms: Sequence[Floats]) -> Floats:
    """Jackknife covariance of (numerator, denominator) of the mean over probes: (2, 2)."""
    total = np.zeros((2, 2))
    for top, bottom in zip(tops, bottoms, strict=True):
        left_out = np.stack([top, bottom])[:, 1:]
        deviations = left_out - left_out.mean(axis=1, keepdims=True)
        count = left_out.shape[1]
        total += (count - 1) / count * deviations @ deviations.T
    return total / len(tops) ** 2


def _fieller(top: float, bottom: float, covariance: Floats, level: float) -> tuple[float, float]:
    """Interval of top / bottom: all ratios r for which top - r bottom is within `level` errors."""
    vt, vtb, vb = covariance[0, 0], covariance[0, 1], covariance[1, 1]
    a = bottom**2 - level**2 * vb
    b = -2 * (top * bottom - level**2 * vtb)
    c = top**2 - level**2 * vt
    inner = b * b - 4 * a * c
    if inner < 0:
        return 0.0, math.inf
    if a <= 0:
        # The denominator may be zero: ratios beyond a root, or all of them.
        if a == 0 or bottom <= 0:
            return 0.0, math.inf
        roots = sorted(((-b - math.sqrt(inner)) / (2 * a), (-b + math.sqrt(inner)) / (2 * a)))
        positive = [root for root in roots if root > 0]
        return (positive[-1] if positive and c > 0 else 0.0), math.inf
    return (-b - math.sqrt(inner)) / (2 * a), (-b + math.sqrt(inner)) / (2 * a)


def _naive(sums: Sequence[Floats]) -> float:
    """N |sum g| / sum |g|, mean over probes, from (slots, slots) products of slot gradients."""
    values = [
        len(gram) * math.sqrt(max(gram.sum(), 0.0)) / np.sqrt(np.diagonal(gram)).sum()
        for gram in sums
    ]
    return float(np.mean(values))


def _null(grams: Sequence[Floats], shuffles: int, seed: int) -> list[float]:
    """Naive values with slots shuffled within every block."""
    rng = np.random.default_rng(seed)
    found: list[float] = []
    for _ in range(shuffles):
        sums: list[Floats] = []
        for gram in grams:
            slots, blocks = gram.shape[:2]
            order = np.array([rng.permutation(slots) for _ in range(blocks)]).T
            rows = gram[order, np.arange(blocks)]
            mixed = rows[:, :, order, np.arange(blocks)]
            sums.append(mixed.sum(axis=(1, 3)))
        found.append(_naive(sums))
    return found


def _check(grams: Sequence[Floats]) -> None:
    """Raise `UsageError` unless the probes can be judged together."""
    for gram in grams:
        square = gram.ndim == 4 and gram.shape[:2] == gram.shape[2:]
        if not square or gram.shape[0] < 2 or gram.shape[1] < FEWEST:
            raise UsageError(
                "a probe must be (slots, blocks, slots, blocks) with 2 slots and "
                f"{FEWEST} blocks or more, got {gram.shape}"
            )
    if not grams or len({gram.shape[0] for gram in grams}) != 1:
        raise UsageError("amplification needs probes of one number of slots, and at least one")
