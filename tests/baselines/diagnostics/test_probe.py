"""Probes of parallel agents: which gradients meet, what is kept, and that nothing is changed."""

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

pytest.importorskip("torch", reason="training needs flowzoo[train]")

import numpy as np
import torch

from flowzoo.baselines.diagnostics.probe import SlotGramMatrix, probe_metrics, slot_grams
from flowzoo.baselines.learner.batch import make_rows
from flowzoo.baselines.learner.config import LearnerConfig, LossConfig
from flowzoo.baselines.learner.loss import LossNormalizer
from flowzoo.baselines.learner.update import Learner

Make = Callable[..., Any]


def settings(**changes: Any) -> LearnerConfig:
    return LearnerConfig(
        **{"lr": 1e-2, "truncated": "train", "loss": LossConfig(aggregation="seq-mean-token-mean")}
        | changes
    )


@pytest.fixture
def voters(tiny_model: Make, role_rows: Make, own_logps: Make) -> Callable[..., Any]:
    """`voters(problems)`: two voters and an aggregator on each problem, with advantages."""

    def make(problems: int = 5, *, equal: bool = False) -> tuple[list[Any], list[float]]:
        rows = own_logps(tiny_model(), role_rows(3 * problems, seed=3))
        rng = np.random.default_rng(0)
        calls, advantages = [], []
        for place, row in enumerate(rows):
            problem, seat = divmod(place, 3)
            source = rows[place - seat] if equal and seat == 1 else row
            role, slot = ("v", seat) if seat < 2 else ("agg", 0)
            calls.append(
                replace(
                    source, problem=f"p{problem}", episode="e0", role=role, slot=slot,
                    agent=f"{role}_{slot}",
                )
            )  # fmt: skip
            same = equal and seat == 1
            advantages.append(advantages[-1] if same else float(rng.normal()))
        return calls, advantages

    return make


def flat(gradient: list[torch.Tensor]) -> np.ndarray:
    return torch.cat([part.flatten() for part in gradient]).double().numpy()


def test_groups_add_up_to_the_gradient_of_the_update(tiny_model, voters):
    calls, advantages = voters()
    learner = Learner(tiny_model(), settings())
    rows = make_rows(calls, advantages, learner.config)
    totals = LossNormalizer(len(rows), sum(len(row.call.output_ids) for row in rows))
    parts = list(learner.gradients([[row] for row in rows], totals))
    plain = Learner(tiny_model(), settings(clip_norm=1e9))
    plain.optimizer = torch.optim.SGD(plain.parameters, lr=1.0)  # type: ignore[assignment]
    for group in plain.optimizer.param_groups:
        group["lr"] = 1.0
    before = flat([p.detach().clone() for p in plain.parameters])
    plain.gradient.config = replace(plain.config, lr=1.0)
    plain.update(calls, advantages)
    whole = before - flat([p.detach() for p in plain.parameters])
    added = np.sum([flat(part) for part in parts], axis=0)
    assert np.linalg.norm(added - whole) < 1e-5 * np.linalg.norm(whole)


def test_the_gram_is_that_of_slots_and_blocks(tiny_model, voters):
    calls, advantages = voters(5)
    learner = Learner(tiny_model(), settings())
    (gram,) = slot_grams(learner, calls, advantages, blocks=4)
    assert gram.role == "v"
    assert gram.products.shape == (2, 4, 2, 4)
    rows = make_rows(calls, advantages, learner.config)
    totals = LossNormalizer(len(rows), sum(len(row.call.output_ids) for row in rows))
    order = list({row.call.problem: None for row in rows})  # the fifth problem joins block 0
    blocks = [[order[0], order[4]], [order[1]], [order[2]], [order[3]]]
    groups = [
        [r for r in rows if r.call.role == "v" and r.call.slot == s and r.call.problem in block]
        for s in range(2)
        for block in blocks
    ]
    vectors = np.stack([flat(part) for part in learner.gradients(groups, totals)])
    expected = (vectors @ vectors.T).reshape(2, 4, 2, 4)
    np.testing.assert_allclose(gram.products, expected, rtol=1e-6, atol=1e-9)


def test_voters_that_say_the_same_are_aligned(tiny_model, voters):
    calls, advantages = voters(8, equal=True)
    metrics = probe_metrics(slot_grams(Learner(tiny_model(), settings()), calls, advantages))
    assert metrics["grad/amplification_naive/v"] == pytest.approx(2, rel=1e-5)
    products = np.array(metrics["gram/v"]["products"])
    np.testing.assert_allclose(products[0, :, 0], products[1, :, 1], rtol=1e-4, atol=1e-6)
    if "grad/amplification/v" in metrics:  # NaN where the estimate of the signal is below zero
        assert metrics["grad/amplification/v"] == pytest.approx(2, rel=1e-3)


def test_voters_pushed_against_each_other_cancel(tiny_model, voters):
    calls, advantages = voters(8, equal=True)
    against = [-a if c.slot == 1 else a for c, a in zip(calls, advantages, strict=True)]
    learner = Learner(tiny_model(), settings(loss=LossConfig(dual_clip=None)))
    metrics = probe_metrics(slot_grams(learner, calls, against))
    assert metrics["grad/amplification_naive/v"] == pytest.approx(0, abs=1e-3)


def test_the_applied_gram_is_on_the_scale_of_adam(tiny_model, voters):
    calls, advantages = voters(4)
    learner = Learner(tiny_model(), settings())
    assert slot_grams(learner, calls, advantages)[0].applied is None
    learner.update(calls, advantages)
    learner.update(calls, advantages[::-1])
    (gram,) = slot_grams(learner, calls, advantages)
    scales = [
        (learner.optimizer.state[p]["exp_avg_sq"] / (1 - 0.999**2)).sqrt() + 1e-8
        for p in learner.parameters
    ]
    rows = make_rows(calls, advantages, learner.config)
    totals = LossNormalizer(len(rows), sum(len(row.call.output_ids) for row in rows))
    one = [row for row in rows if row.call.agent == "v_0" and row.call.problem == "p0"]
    (gradient,) = learner.gradients([one], totals)
    size = sum(float(((g / s).double() ** 2).sum()) for g, s in zip(gradient, scales, strict=True))
    assert gram.applied is not None
    assert gram.applied[0, 0, 0, 0] == pytest.approx(size, rel=1e-4)


def test_a_probe_changes_nothing(tiny_model, voters):
    calls, advantages = voters(6)
    pair = [Learner(tiny_model(), settings()) for _ in range(2)]
    for _ in range(2):
        assert slot_grams(pair[0], calls, advantages)
        assert all(p.grad is None for p in pair[0].parameters)
        metrics = [learner.update(calls, advantages) for learner in pair]
        assert metrics[0] == metrics[1]
    for one, two in zip(*(learner.parameters for learner in pair), strict=True):
        assert torch.equal(one, two)


@pytest.mark.parametrize("case", ["few problems", "one slot", "nothing to learn"])
def test_what_cannot_be_probed_is_left_out(case, tiny_model, voters):
    calls, advantages = voters(3 if case == "few problems" else 6)
    if case == "one slot":
        calls = [replace(call, slot=0) for call in calls]
    if case == "nothing to learn":
        advantages = [0.0] * len(calls)
    assert slot_grams(Learner(tiny_model(), settings()), calls, advantages) == []


def test_metrics_are_plain_and_finite():
    noise = np.random.default_rng(0).normal(size=(2, 5, 40))
    products = np.einsum("sbd,tcd->sbtc", noise, noise)
    metrics = probe_metrics(
        [SlotGramMatrix("v", products, None), SlotGramMatrix("w", 0 * products, None)]
    )
    json.dumps(metrics, allow_nan=False)
    assert metrics["gram/v"]["applied"] is None
    assert not any(name.startswith("grad/") and name.endswith("/w") for name in metrics)
    np.testing.assert_allclose(metrics["gram/v"]["products"], products, rtol=1e-5)
