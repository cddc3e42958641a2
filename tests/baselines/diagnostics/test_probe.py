"""Probes of parallel agents: their Gram is that of the applied gradient, and nothing is changed."""

import json
import math
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="training needs flowzoo[train]")

import numpy as np
import torch

from flowzoo.aliases import MetricRow
from flowzoo.baselines.diagnostics.probe import (
    LARGEST,
    SlotGramMatrix,
    probe_metrics,
    sketch,
    slot_grams,
)
from flowzoo.baselines.learner.batch import make_rows
from flowzoo.baselines.learner.config import LearnerConfig, LossConfig
from flowzoo.baselines.learner.lora import LoraBase, LoraSettings
from flowzoo.baselines.learner.loss import LossNormalizer, NonFiniteError
from flowzoo.baselines.learner.update import Learner
from flowzoo.baselines.run.manifest import checkpoints
from flowzoo.baselines.settings.config import TrainConfig
from flowzoo.baselines.training.trainer import train
from flowzoo.envs.records import Call

Make = Callable[..., Any]
Batch = tuple[list[Call], list[float]]

SMALL: dict[str, Any] = {
    "steps": 2, "problems": 4, "samples": 4, "eval_problems": 2, "eval_every": 1,
    "checkpoint_every": 1, "threads": 1, "lr": 2e-3, "model": "pocket:xs",
}  # fmt: skip


_batches: dict[tuple[int, int, float], Batch] = {}


@pytest.fixture
def thin_model(tiny_model: Make) -> Make:
    """`thin_model()`: one layer, where all that matters is that every gradient is computed."""
    return lambda: tiny_model(layers=1)


@pytest.fixture
def batch(tiny_model: Make, role_rows: Make, own_logps: Make) -> Callable[..., Batch]:
    """`batch(problems)`: three voters `v`, two critics `c` and one judge on each problem."""

    def make(problems: int = 6, seed: int = 3, temperature: float = 1.0) -> Batch:
        made = problems, seed, temperature
        if made not in _batches:
            _batches[made] = new(*made)
        calls, advantages = _batches[made]
        return [*calls], [*advantages]

    def new(problems: int, seed: int, temperature: float) -> Batch:
        seats = [("v", 0), ("v", 1), ("v", 2), ("c", 0), ("c", 1), ("judge", 0)]
        rows = role_rows(len(seats) * problems, seed=seed)
        rng = np.random.default_rng(seed)
        calls = [
            replace(
                row, problem=f"p{i // 6}", episode="e", role=seats[i % 6][0],
                slot=seats[i % 6][1], agent="{}_{}".format(*seats[i % 6]),
                finish="length" if i % 11 == 0 else "stop",
            )
            for i, row in enumerate(rows)
        ]  # fmt: skip
        advantages = [0.0 if i % 7 == 0 else float(rng.normal()) for i in range(len(calls))]
        return own_logps(tiny_model(), calls, temperature), advantages

    return make


def settings(**changes: Any) -> LearnerConfig:
    plain: dict[str, Any] = {"lr": 1e-2, "loss": LossConfig(), "role_gradients": True}
    return LearnerConfig(**plain | changes)


def lora(model: Any) -> Any:
    """An adapter on `model` whose both factors are away from zero."""
    weights = LoraBase(model, "tiny", LoraSettings(rank=2, alpha=4)).add("one", 0)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for weight in weights.parameters():
            weight.add_(0.1 * torch.randn(weight.shape, generator=generator))
    return weights


CASES: dict[str, dict[str, Any]] = {
    "token-mean": {},
    "token-sum": {"loss": LossConfig(aggregation="token-sum", constant=50.0)},
    "kl": {"loss": LossConfig(kl_coef=0.3)},
    "kl of one role": {"role_kl": {"v": 0.3}},
    "entropy": {"loss": LossConfig(entropy_coef=0.1)},
    "recomputed": {"old_logp": "recomputed"},
    "renormalized": {"correction": "renormalize", "top_k": 12},
    "coherence": {"coherence": 0.5},
    "weights of roles": {"role_weights": {"v": 0.25, "judge": 3.0}},
    "penalized": {"truncated": "penalize"},
    "masked": {"truncated": "mask"},
    "padded": {"layout": "padded", "microbatch_tokens": 40},
    "small microbatches": {"microbatch_tokens": 24},
    "all rows computed": {"skip_idle_rows": False},
    "checkpointed": {"gradient_checkpointing": True},
    "hard clip": {"clip_norm": 1e-3},
}


@pytest.mark.usual(5)
@pytest.mark.parametrize(
    ("case", "adapter"),
    [(case, False) for case in CASES]
    + [(case, True) for case in ("token-mean", "kl", "recomputed", "checkpointed")],
)
def test_blocks_and_slots_add_up_to_the_gradient_that_the_update_reports(
    case, adapter, thin_model, batch
):
    calls, advantages = batch(4)
    model = thin_model()
    learner = Learner(lora(model) if adapter else model, settings(**CASES[case]))
    if case != "token-mean":  # the weights have moved, and Adam has a history
        learner.update(calls, advantages)
    for _ in range(2 if case == "token-mean" else 1):
        grams = {gram.role: gram for gram in slot_grams(learner, calls, advantages)}
        metrics = learner.update(calls, advantages)
        assert set(grams) == {"v", "c"}
        for role, slots in (("v", 3), ("c", 2)):
            assert grams[role].products.shape == (slots, 4, slots, 4)
            norm = math.sqrt(grams[role].products.sum())
            assert norm == pytest.approx(metrics[f"grad/norm/{role}"], rel=1e-4)


@pytest.mark.usual(2)
@pytest.mark.parametrize(
    ("case", "adapter"),
    [("kl", False), ("kl", True), ("coherence", False), ("recomputed", False), ("hard clip", True)],
)
def test_probes_change_no_weight_no_clock_and_no_mean(case, adapter, thin_model, batch):
    calls, advantages = batch(4)
    models = [thin_model() for _ in range(2)]
    pair = [Learner(lora(m) if adapter else m, settings(**CASES[case])) for m in models]
    for _ in range(2):
        noise = torch.get_rng_state()
        slot_grams(pair[0], calls, advantages)
        assert torch.equal(torch.get_rng_state(), noise)
        assert all(parameter.grad is None for parameter in pair[0].parameters)
        assert pair[0].update(calls, advantages) == pair[1].update(calls, advantages)
    for one, two in zip(*(model.state_dict().values() for model in models), strict=True):
        assert torch.equal(one, two)
    states = [learner.state_dict() for learner in pair]
    assert repr(states[0]) == repr(states[1])


def test_the_order_of_the_calls_does_not_matter(tiny_model, batch):
    calls, advantages = batch()
    order = np.random.default_rng(0).permutation(len(calls))
    learner = Learner(tiny_model(), settings())
    found = [
        probe_metrics(slot_grams(learner, [calls[i] for i in p], [advantages[i] for i in p]))
        for p in (range(len(calls)), order)
    ]
    assert found[0] == found[1]


def test_a_slot_without_rows_in_some_blocks_has_no_gradient_there(tiny_model, batch):
    calls, advantages = batch(6)
    kept = [
        i for i, call in enumerate(calls)
        if not (call.agent == "v_2" and call.problem != "p0")  # only the first problem has three
    ]  # fmt: skip
    calls, advantages = [calls[i] for i in kept], [advantages[i] for i in kept]
    grams = {g.role: g for g in slot_grams(Learner(tiny_model(), settings()), calls, advantages)}
    own = np.einsum("sbsb->sb", grams["v"].products)
    assert (own[2] > 0).sum() <= 1
    json.dumps(probe_metrics(list(grams.values())), allow_nan=False)


def test_weights_that_adam_has_not_moved_have_no_scale(tiny_model, batch):
    calls, advantages = batch(8)
    fresh = LoraBase(tiny_model(), "tiny", LoraSettings(rank=2, alpha=4)).add("one", 0)
    learner = Learner(fresh, settings())
    learner.update(calls, advantages)
    seconds = [learner.optimizer.state[p]["exp_avg_sq"] for p in learner.parameters]
    assert any(not second.any() for second in seconds)
    gram = next(g for g in slot_grams(learner, calls, advantages) if g.role == "v")
    assert gram.applied is not None
    own = np.einsum("sbsb->", gram.applied)
    # Each weight's share is about (g / g_before)^2: thousands in all, not the 1e8 of g / eps.
    assert 0 < own < 1e3 * sum(int((second > 0).sum()) for second in seconds)


def test_one_slot_that_alone_learns_amplifies_nothing(tiny_model, batch):
    calls, advantages = batch(8)
    alone = [a if c.slot == 0 else 0.0 for c, a in zip(calls, advantages, strict=True)]
    metrics = probe_metrics(slot_grams(Learner(tiny_model(), settings()), calls, alone))
    json.dumps(metrics, allow_nan=False)
    # N |sum g| / sum |g| of one vector and zeros is N; the sum is no longer than orthogonal ones'.
    assert metrics["grad/amplification_naive/v"] == pytest.approx(3, rel=1e-6)
    if "grad/amplification_over/v" in metrics:
        assert metrics["grad/amplification_over/v"] == pytest.approx(1, rel=1e-6)


def test_fewer_problems_than_blocks_give_a_block_to_each(tiny_model, batch):
    learner = Learner(tiny_model(), settings())
    for problems, blocks in ((3, None), (4, 4), (5, 5), (8, 8), (9, 8)):
        found = {gram.role: gram.products.shape for gram in slot_grams(learner, *batch(problems))}
        assert found.get("v") == (None if blocks is None else (3, blocks, 3, blocks))


def test_nothing_to_learn_and_nothing_at_all_give_no_probe(tiny_model, batch):
    calls, advantages = batch()
    learner = Learner(tiny_model(), settings())
    assert slot_grams(learner, [], []) == []
    assert slot_grams(learner, [replace(call, slot=0) for call in calls], advantages) == []
    assert slot_grams(learner, calls, [0.0] * len(calls)) == []
    judged = [0.0 if call.role != "judge" else a for call, a in zip(calls, advantages, strict=True)]
    assert slot_grams(learner, calls, judged) == []
    # A KL term moves rows without an advantage, once the weights are away from their start.
    pulled = Learner(tiny_model(), settings(loss=LossConfig(kl_coef=0.5)))
    pulled.update(calls, advantages)
    still = {gram.role: gram for gram in slot_grams(pulled, calls, [0.0] * len(calls))}
    assert set(still) == {"v", "c"}
    assert still["v"].products.sum() > 0


def test_a_poisoned_batch_is_refused_with_its_rows(tiny_model, batch):
    calls, advantages = batch()
    learner = Learner(tiny_model(), settings())
    with torch.no_grad():
        learner.parameters[0][calls[1].output_ids[0]] = math.nan
    with pytest.raises(NonFiniteError):
        probe_metrics(slot_grams(learner, calls, advantages))
    assert all(parameter.grad is None for parameter in learner.parameters)


# -- which gradients meet -------------------------------------------------------------------------


def plain_settings(**changes: Any) -> LearnerConfig:
    plain = {"truncated": "train", "loss": LossConfig(aggregation="seq-mean-token-mean")}
    return LearnerConfig(**{"lr": 1e-2} | plain | changes)


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
    learner = Learner(tiny_model(), plain_settings())
    rows = make_rows(calls, advantages, learner.config)
    totals = LossNormalizer(len(rows), sum(len(row.call.output_ids) for row in rows))
    parts = list(learner.gradients([[row] for row in rows], totals))
    plain = Learner(tiny_model(), plain_settings(clip_norm=1e9))
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
    learner = Learner(tiny_model(), plain_settings())
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
    metrics = probe_metrics(slot_grams(Learner(tiny_model(), plain_settings()), calls, advantages))
    assert metrics["grad/amplification_naive/v"] == pytest.approx(2, rel=1e-5)
    products = np.array(metrics["gram/v"]["products"])
    np.testing.assert_allclose(products[0, :, 0], products[1, :, 1], rtol=1e-4, atol=1e-6)
    if "grad/amplification/v" in metrics:  # NaN where the estimate of the signal is below zero
        assert metrics["grad/amplification/v"] == pytest.approx(2, rel=1e-3)


def test_voters_pushed_against_each_other_cancel(tiny_model, voters):
    calls, advantages = voters(8, equal=True)
    against = [-a if c.slot == 1 else a for c, a in zip(calls, advantages, strict=True)]
    learner = Learner(tiny_model(), plain_settings(loss=LossConfig(dual_clip=None)))
    metrics = probe_metrics(slot_grams(learner, calls, against))
    assert metrics["grad/amplification_naive/v"] == pytest.approx(0, abs=1e-3)


def test_the_applied_gram_is_on_the_scale_of_adam(tiny_model, voters):
    calls, advantages = voters(4)
    learner = Learner(tiny_model(), plain_settings())
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


# -- folded gradients keep inner products ----------------------------------------------------------


def parts(seed: int, scale: float = 1.0) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    shapes = [(300, 40), (7,), (90, 90), (13, 3)]
    return [scale * torch.randn(shape, generator=generator) for shape in shapes]


def test_what_fits_is_kept():
    gradient = parts(0)
    vector = sketch(gradient)
    assert torch.equal(vector, torch.cat([part.flatten() for part in gradient]))


def test_folding_is_unbiased_and_as_close_as_said():
    one, noise = parts(1), parts(2)
    other = [0.6 * a + 0.8 * b for a, b in zip(one, noise, strict=True)]
    exact = float(sum((a * b).sum() for a, b in zip(one, other, strict=True)))
    size = float(sum((a * a).sum() for a in one)) ** 0.5
    size *= float(sum((b * b).sum() for b in other)) ** 0.5
    largest = 1000
    errors = []
    for seed in range(200):
        a, b = sketch(one, largest, seed), sketch(other, largest, seed)
        assert a.shape == (largest,)
        errors.append((float(a @ b) - exact) / size)
    found = torch.tensor(errors)
    spread = (1 / largest) ** 0.5  # times up to sqrt(1 + cos^2)
    assert 0.5 * spread < float(found.std()) < 1.5 * spread
    assert abs(float(found.mean())) < 4 * float(found.std()) / len(errors) ** 0.5


def test_signs_do_not_repeat_from_tensor_to_tensor():
    ones = [torch.ones(500), torch.ones(500), torch.ones(500)]
    folded = sketch(ones, 500)
    assert set(folded.tolist()) == {-3.0, -1.0, 1.0, 3.0}
    assert torch.equal(folded, sketch(ones, 500))


def test_a_gradient_in_one_column_of_a_matrix_spreads_over_the_places():
    rows, width = 2**11, 2**11  # twice as many numbers as there are places
    column = torch.zeros(rows, width)
    column[:, 3] = 1.0
    folded = sketch([column])
    assert len(folded) == LARGEST
    assert int((folded != 0).sum()) == rows  # no two of them meet


# -- runs with probes ------------------------------------------------------------------------------


def probed(name: str) -> bool:
    return name.startswith(("gram/", "grad/amplification"))


def weights(root: Path) -> dict[str, bytes]:
    found = (checkpoints(root / "checkpoints") or [None])[-1]
    assert found is not None
    return {
        str(path.relative_to(found.path)): path.read_bytes()
        for path in found.path.rglob("*.safetensors")
    }


VARIANTS: dict[str, dict[str, Any]] = {
    "shared": {"sharing": ("shared",), "kl": 0.05, "coherence": 0.5},
    "isolated adapters": {"sharing": ("isolated",), "lora_rank": 2, "lr": 5e-3},
    "two policies of one role": {  # the one of them has a single agent of the role
        "sharing": ("generator_0=x", "generator_1=y", "generator_2=y", "aggregator=x"),
        "algorithm": "dr_mas",
    },
}  # fmt: skip


@pytest.mark.full
@pytest.mark.parametrize("variant", VARIANTS)
def test_a_run_trains_the_same_with_probes_and_resumes_with_the_same_ones(
    variant, tmp_path, repeated_rows
):
    settings = {**SMALL, **VARIANTS[variant], "eval_every": 2, "samples": 3}
    without, whole, halves = (tmp_path / name for name in ("without", "whole", "halves"))

    def stop(row: MetricRow) -> None:
        """Copy the files of a process that is killed now."""
        if row["step"] == 1:
            shutil.copytree(whole, halves)

    train(TrainConfig(**settings, probe_every=0, out=str(without)))
    train(TrainConfig(**settings, probe_every=1, out=str(whole)), stop)
    train(TrainConfig(**settings, probe_every=1, out=str(halves)))
    plain = [{k: v for k, v in row.items() if not probed(k)} for row in repeated_rows(whole)]
    assert repeated_rows(without) == plain
    assert weights(without) == weights(whole)
    assert repeated_rows(halves) == repeated_rows(whole)
    assert not any(probed(name) for row in repeated_rows(without) for name in row)
    grams = {
        name: row[name] for row in repeated_rows(whole) for name in row if name.startswith("gram/")
    }
    policy = {"shared": "shared", "two policies of one role": "y"}.get(variant, "generator")
    assert set(grams) == {f"gram/generator/{policy}"}
    gram = grams[f"gram/generator/{policy}"]
    slots = 2 if policy == "y" else 3
    assert (gram["slots"], gram["blocks"]) == (slots, 4)
    assert np.array(gram["products"]).shape == (slots, 4, slots, 4)
    assert gram["applied"] is not None


@pytest.mark.full
def test_a_run_probes_when_it_is_due(tmp_path, repeated_rows):
    # So slowly that the groups of the third step still differ: without rows there is no probe.
    few = {"eval_every": 3, "steps": 3, "probe_every": 2, "lr": 1e-6}
    train(TrainConfig(**{**SMALL, **few}, out=str(tmp_path)))
    due = [
        row["step"] for row in repeated_rows(tmp_path) if any(name[:5] == "gram/" for name in row)
    ]
    assert due == [1, 3]
