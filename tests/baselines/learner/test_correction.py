"""Corrections for the sampler against formulas in float64, and against verl's numbers.

`verl_corrections.json` was written by `benchmarks/verl_golden.py` of commit 51e36686.
"""

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from flowzoo.baselines.learner.batch import Microbatch, tensors
from flowzoo.baselines.learner.config import LearnerConfig
from flowzoo.baselines.learner.correction import correct, importance_weights
from tests.baselines.rows import new_call

VERL: dict[str, Any] = json.loads((Path(__file__).parent / "verl_corrections.json").read_text())
ADVANTAGES = [1.0, -1.0, -2.0, -0.5, 0.0, 3.0]
LEVELS, MODES = ("token", "sequence", "geometric"), ("truncate", "mask")


def batch_of(sampler: Sequence[Sequence[float]]) -> Microbatch:
    """Rows with these log-probs, and tokens that nothing looks at."""
    calls = [
        new_call(prompt_ids=(1,), output_ids=(2,) * len(row), logps=tuple(row)) for row in sampler
    ]
    return tensors(calls, ADVANTAGES[: len(sampler)], "padded")


def padded(rows: Sequence[Sequence[float]], batch: Microbatch) -> torch.Tensor:
    """(rows, T) in float64, with rubbish off the mask."""
    values = torch.full(batch.mask.shape, float("nan"), dtype=torch.float64)
    values[batch.mask] = torch.tensor([value for row in rows for value in row]).double()
    return values


def config(**changes: Any) -> LearnerConfig:
    return LearnerConfig(old_logp="recomputed", **changes)


def bounded(ratios: np.ndarray, level: str, mode: str, floor: float, cap: float) -> np.ndarray:
    """Weights of a reply's tokens from their ratios of probabilities."""
    if level != "token":
        power = 1 if level == "sequence" else 1 / len(ratios)
        ratios = np.full(len(ratios), np.prod(ratios) ** power)
    if mode == "mask":
        return np.where((ratios < floor) | (ratios > cap), 0.0, ratios)
    return np.minimum(np.maximum(ratios, floor), cap)


@pytest.mark.parametrize("floor", [0.0, 0.8])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("level", LEVELS)
def test_weights_are_those_of_the_formulas(level, mode, floor):
    sampler, learner = VERL["sampler"], VERL["learner"]
    batch, cap = batch_of(sampler), 1.1
    settings = config(
        importance_level=level, importance_mode=mode, importance_floor=floor, importance_cap=cap
    )
    old = padded(learner, batch)
    found = correct(old, old, batch, settings)
    ratios = [np.exp(np.subtract(*pair)) for pair in zip(learner, sampler, strict=True)]
    wanted = np.concatenate([bounded(row, level, mode, floor, cap) for row in ratios])
    free = np.concatenate([bounded(row, level, "truncate", 0.0, math.inf) for row in ratios])
    assert found.weights is not None
    np.testing.assert_allclose(found.weights[batch.mask].numpy(), wanted, rtol=1e-6)
    assert found.sums.importance == pytest.approx(wanted.sum())
    assert found.sums.beyond == np.sum((free > cap) | (free < floor)) > 0


def test_the_default_is_truncation_by_token_bit_by_bit():
    generator = torch.Generator().manual_seed(0)
    log_ratio, mask = torch.randn(4, 50, generator=generator), torch.ones(4, 50, dtype=torch.bool)
    weights, _ = importance_weights(log_ratio, mask, config())
    assert torch.equal(weights, log_ratio.exp().clamp_max(2.0))
    batch = batch_of([[-1.0]])
    assert correct(batch.behavior_logps, batch.behavior_logps, batch, LearnerConfig())[1] is None


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("level", LEVELS)
def test_weights_that_overflow_are_bounded(level, mode):
    log_ratio, mask = torch.tensor([[300.0, 200.0]]), torch.ones(1, 2, dtype=torch.bool)
    settings = config(importance_level=level, importance_mode=mode)
    weights, outside = importance_weights(log_ratio, mask, settings)
    assert weights.tolist() == [[0.0, 0.0] if mode == "mask" else [2.0, 2.0]]
    assert outside.all()


def test_replies_that_the_learner_left_are_masked_if_their_advantage_is_negative():
    """DeepSeek-V3.2, section 3.1: both the mean log-ratio and the sign of the advantage count."""
    sampler = [[-1.0, -1.0], [-1.0, -1.0], [-1.0, -1.0], [-1.0], [-1.0], [-1.0, -1.0]]
    now = [[-9.0, -9.0], [-2.0, -1.2], [-1.4, -1.4], [-0.1], [-9.0], [-2.0, -9.0]]
    batch = batch_of(sampler)
    old = padded(sampler, batch)
    for old_logp, threshold, masked in (
        ("sampler", 0.5, [1]),
        ("sampler", 0.35, [1, 2]),
        ("recomputed", 0.5, [1]),
        ("sampler", 0.7, []),
    ):
        settings = LearnerConfig(old_logp=old_logp, off_policy_mask=threshold)
        found = correct(padded(now, batch), old, batch, settings)
        assert found.weights is not None
        assert (~found.weights.bool()).any(-1).nonzero().flatten().tolist() == masked
        assert found.sums.masked == len(masked)


def test_divergences():
    sampler, learner = VERL["sampler"], [*VERL["learner"][:-1], [-200.0] * 6]
    batch = batch_of(sampler)
    old = padded(learner, batch)
    sums = correct(old, old, batch, LearnerConfig()).sums
    gaps = [np.subtract(*pair) for pair in zip(learner, sampler, strict=True)]
    tokens, replies = np.concatenate(gaps), np.array([row.sum() for row in gaps])
    means = np.array([-row.mean() for row in gaps])
    wanted = [
        len(gaps), np.sum(np.exp(tokens) ** 2 - 1), np.sum(np.exp(replies) ** 2 - 1), means.sum(),
        np.abs(means).sum(),
    ]  # fmt: skip
    found = [sums.rows, sums.chi2_token, sums.chi2_seq, sums.ppl, sums.ppl_abs]
    assert found == pytest.approx(wanted, rel=1e-5)
    old[-1] = 200.0
    far = correct(old, old, batch, LearnerConfig()).sums
    assert far.chi2_seq == pytest.approx(math.exp(40)), "a reply counts e^40 at most"
    assert far.chi2_token == pytest.approx(6 * math.exp(40))


def test_verl():
    """Weights, replies that the geometric mean keeps, and divergences."""
    batch = batch_of(VERL["sampler"])
    old = padded(VERL["learner"], batch)
    for name, rows in VERL["weights"].items():
        level, mode = name.split()
        settings = config(
            importance_level=level, importance_mode=mode, importance_cap=1.3,
            importance_floor=0.75 if mode == "mask" else 0.0,
        )  # fmt: skip
        weights = correct(old, old, batch, settings).weights
        assert weights is not None
        torch.testing.assert_close(weights[batch.mask], padded(rows, batch)[batch.mask])
    settings = config(
        importance_level="geometric", importance_mode="mask", importance_floor=0.85,
        importance_cap=1 / 0.85,
    )  # fmt: skip
    found = correct(old, old, batch, settings)
    kept = padded(VERL["geometric"], batch)[batch.mask].bool()
    assert found.weights is not None
    assert torch.equal(found.weights[batch.mask] > 0, kept)
    assert 0 < int(kept.sum()) < len(kept)
    sums, tokens = found.sums, int(batch.mask.sum())
    assert {
        "chi2_token": sums.chi2_token / tokens, "chi2_seq": sums.chi2_seq / sums.rows,
        "log_ppl_diff": sums.ppl / sums.rows, "log_ppl_abs_diff": sums.ppl_abs / sums.rows,
    } == pytest.approx(VERL["metrics"], rel=1e-4)  # fmt: skip
