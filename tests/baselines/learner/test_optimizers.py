"""Optimizers: values, resumption bit by bit, learning rates over time, steps beside TRL's."""

import copy
import json
import math
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import Qwen3Config, Qwen3ForCausalLM

from flowzoo.baselines.learner.config import LearnerConfig, LossConfig
from flowzoo.baselines.learner.forward import ForwardPass
from flowzoo.baselines.learner.lora import LoraBase, LoraSettings
from flowzoo.baselines.learner.optimizers import decay_groups, make_optimizer
from flowzoo.baselines.learner.schedule import UpdateTurn, lr_at, odd_rates
from flowzoo.baselines.learner.stochastic_adamw import (
    StochasticAdamW,
    step_in_parts,
    stochastic_bfloat16,
)
from flowzoo.baselines.learner.update import Learner
from flowzoo.baselines.learner.weights import Weights
from flowzoo.baselines.settings.policies import numbers_by_role
from flowzoo.envs.records import Call
from flowzoo.errors import MissingExtraError, UsageError
from tests.baselines.learner.descent import ADVANTAGES
from tests.baselines.rows import new_call
from tests.refused import refused

Make = Callable[..., Any]
LOWER: dict[str, Any] = {"weights": "bfloat16", "compute": "bfloat16"}
CHOICES: dict[str, dict[str, Any]] = {
    "adamw": {},
    "all decay": {"decay": "all", "weight_decay": 0.1},
    "other betas": {"beta1": 0.5, "beta2": 0.9, "adam_eps": 1e-4},
    "adafactor": {"optimizer": "adafactor"},
    "moments in 8 bits": {"optimizer": "adamw8bit"},
    "sgd": {"optimizer": "sgd", "role_lr": {"a": 1e-3}, "role_loss": "sum", "clip_norm": 0},
    "muon": {"optimizer": "muon"},
    "muon on lora": {"optimizer": "muon", "rank": 2},
    "bfloat16": LOWER,
    "lora": {"rank": 2},
    "lora on bfloat16": {"rank": 2, **LOWER},
}


def noise(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def learner_of(make: Make, rank: int = 0, **choices: Any) -> Learner:
    model = make()
    if choices.get("weights") == "bfloat16":
        model = model.bfloat16()
    config = LearnerConfig(lr=1e-2, **choices)
    if rank:
        return Learner(LoraBase(model, "", LoraSettings(rank)).add("one", 0), config)
    return Learner(model, config)


@pytest.mark.parametrize("choice", CHOICES)
def test_a_resumed_learner_goes_on_bit_by_bit(choice, tiny_model, role_rows, tmp_path):
    if choice == "moments in 8 bits":
        pytest.importorskip("bitsandbytes", reason="needs flowzoo[bits]")
    calls = role_rows()
    whole, resumed = (learner_of(tiny_model, **CHOICES[choice]) for _ in range(2))
    start = [p.detach().clone() for p in whole.parameters]
    for _ in range(2):
        whole.update(calls, ADVANTAGES)
    whole.weights.save(tmp_path)
    torch.save(whole.state_dict(), tmp_path / "learner.pt")
    resumed.weights.load(tmp_path)
    torch.rand(7)  # the global generator has no part in it
    resumed.load_state_dict(torch.load(tmp_path / "learner.pt", weights_only=True))
    metrics = [one.update(calls, ADVANTAGES) for one in (whole, resumed)]
    assert metrics[0] == metrics[1]
    assert all(map(torch.equal, whole.parameters, resumed.parameters))
    assert not all(map(torch.equal, whole.parameters, start))


def test_muon_steps_are_orthogonal_and_the_rest_is_adamw(tiny_model):
    learner = learner_of(tiny_model, optimizer="muon", weight_decay=0.1)
    model, lr = learner.model, 1e-2
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    draw = torch.Generator().manual_seed(0)
    for parameter in model.parameters():
        parameter.grad = torch.randn(parameter.shape, generator=draw)
    learner.optimizer.step()
    for name, parameter in model.named_parameters():
        grad, start = parameter.grad, before[name]
        moved = (start * (1 - lr * 0.1 * (parameter.ndim > 1)) - parameter.detach()) / lr
        if "layers" in name and parameter.ndim == 2:
            left, _, right = torch.linalg.svd(grad, full_matrices=False)
            size = 0.2 * max(grad.shape) ** 0.5
            # The iteration leaves singular values between 0.5 and 1.5 or so, not exactly 1.
            values = torch.linalg.svdvals(moved / size)
            assert 0.3 < values.min() <= values.max() < 1.4, name
            alike = torch.nn.functional.cosine_similarity(
                moved.flatten(), (left @ right).flatten(), dim=0
            )
            assert alike > 0.95, name
        else:
            torch.testing.assert_close(moved, grad.sign(), rtol=2e-3, atol=2e-3)
    kept = [set(state) for state in learner.optimizer.state.values()]
    assert kept.count({"momentum_buffer"}) == 14
    assert all({"exp_avg", "exp_avg_sq"} <= one for one in kept if "momentum_buffer" not in one)


def test_moments_in_8_bits_go_where_adamw_goes(tmp_path):
    bits = pytest.importorskip("bitsandbytes", reason="needs flowzoo[bits]")
    weight = nn.Parameter(torch.randn(64, 128, generator=noise()))
    other = nn.Parameter(weight.detach().clone())
    mine = bits.optim.AdamW8bit([weight], lr=1e-2)
    plain = torch.optim.AdamW([other], lr=1e-2)
    for step in range(20):
        for one, optimizer in ((weight, mine), (other, plain)):
            one.grad = torch.randn(64, 128, generator=noise(step))
            optimizer.step()
    assert mine.state[weight]["state1"].dtype == torch.uint8
    far = (weight - other).abs().mean() / 0.2
    assert far < 0.02, "of the way that a weight could have gone"
    torch.save(mine.state_dict(), tmp_path / "state.pt")
    again = nn.Parameter(weight.detach().clone())
    resumed = bits.optim.AdamW8bit([again], lr=1e-2)
    resumed.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))
    for one, optimizer in ((weight, mine), (again, resumed)):
        one.grad = torch.randn(64, 128, generator=noise(99))
        optimizer.step()
    assert torch.equal(weight, again)


def test_without_its_library_8_bits_are_refused(tiny_model, monkeypatch):
    monkeypatch.setitem(sys.modules, "bitsandbytes", None)
    monkeypatch.setitem(sys.modules, "bitsandbytes.optim", None)
    with pytest.raises(MissingExtraError, match=r"flowzoo\[bits\]"):
        learner_of(tiny_model, optimizer="adamw8bit")


def test_norms_and_biases_do_not_decay_and_embeddings_do(tiny_model):
    weights = Weights(tiny_model())
    names = {id(p): name for name, p in weights.model.named_parameters()}
    with_decay, without = decay_groups(weights, LearnerConfig())
    assert "weight_decay" not in with_decay
    assert without["weight_decay"] == 0
    left = {names[id(p)] for p in without["params"]}
    assert left == {name for name in names.values() if "norm" in name}
    assert "model.embed_tokens.weight" in {names[id(p)] for p in with_decay["params"]}
    assert len(decay_groups(weights, LearnerConfig(decay="all"))) == 1
    optimizer = make_optimizer(weights, LearnerConfig(lr=0.5, weight_decay=0.5))
    before = {name: p.detach().clone() for name, p in weights.model.named_parameters()}
    for parameter in weights.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    for name, parameter in weights.model.named_parameters():
        torch.testing.assert_close(parameter, before[name] * (1.0 if name in left else 0.75))


def test_names_and_marks_of_what_does_not_decay():
    class Odd(nn.Module):
        def __init__(self):
            super().__init__()
            self.down_proj, self.down_proj_bias = (nn.Parameter(torch.ones(2, 3)) for _ in range(2))
            self.rates = nn.Parameter(torch.ones(2, 3))
            self.rates._no_weight_decay = True

    model: Any = Odd()
    with_decay, without = decay_groups(Weights(model), LearnerConfig())
    assert [id(p) for p in with_decay["params"]] == [id(model.down_proj)]
    assert len(without["params"]) == 2


def test_the_same_groups_decay_as_in_the_trainer_of_transformers(tiny_model):
    from transformers import Trainer

    model = tiny_model()
    theirs = set(Trainer.get_decay_parameter_names(None, model))
    names = {id(p): name for name, p in model.named_parameters()}
    mine = decay_groups(Weights(model), LearnerConfig())[0]["params"]
    assert {names[id(p)] for p in mine} == theirs


def test_stochastic_rounding_is_exact_in_the_mean_and_between_neighbors():
    exact = torch.tensor([1.0, -1.0, 1.001, -3.1415927, 1e-30, 0.0, 65504.5, 1 + 2**-9])
    drawn = torch.stack([stochastic_bfloat16(exact, noise(i)) for i in range(4000)]).double()
    spread = (exact.abs() * 2**-7).double()  # a step of bfloat16, or two
    error = (drawn.mean(0) - exact.double()).abs()
    assert bool((error <= 4 * spread / 4000**0.5).all())
    assert bool(((drawn - exact.double()).abs() <= spread).all())
    assert all(len(column.unique()) <= 2 for column in drawn.T)
    for place in (0, 1, 5):  # what bfloat16 holds stays
        assert drawn[:, place].unique().tolist() == [exact[place].item()]
    assert stochastic_bfloat16(torch.tensor([torch.inf]), noise()).item() == torch.inf
    assert bool(stochastic_bfloat16(torch.tensor([torch.nan]), noise()).isnan())


def test_small_steps_count_that_rounding_to_the_nearest_would_lose():
    """A step of 1e-4 on weights of 1: a fortieth of what bfloat16 resolves there."""
    weight = nn.Parameter(torch.ones(2000, dtype=torch.bfloat16))
    optimizer = StochasticAdamW([weight], lr=1e-4, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.0)
    for _ in range(200):
        weight.grad = torch.ones_like(weight)
        optimizer.step()
    assert weight.mean(dtype=torch.float32).item() == pytest.approx(0.98, abs=1e-3)
    kept = {name: value for name, value in optimizer.state[weight].items() if name != "step"}
    assert {value.dtype for value in kept.values()} == {torch.bfloat16}
    seconds = optimizer.state[weight]["exp_avg_sq"].mean(dtype=torch.float32).item()
    assert seconds == pytest.approx(1 - 0.999**200, rel=0.02)


COMPILED = "flowzoo.baselines.learner.stochastic_adamw._compiled_step"


def in_parts(weight, grad, mean, square, factors, key):
    """The step of a GPU, on a CPU."""
    step_in_parts((weight, grad, mean, square), factors, key)


@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize("shape", [(24, 8), (8, 24), (1300,), ()], ids=str)
def test_all_parts_of_weights_are_moved(shape, compiled, monkeypatch):
    """Each ends beside where AdamW in float32 puts it, whichever part it is in."""
    monkeypatch.setattr("flowzoo.baselines.learner.stochastic_adamw._AT_ONCE", 48)
    if not compiled:
        monkeypatch.setattr(COMPILED, in_parts)
    start, pull = torch.rand(shape).bfloat16() + 1, torch.randn(shape).bfloat16()
    weights = [torch.nn.Parameter(start.clone()), torch.nn.Parameter(start.float())]
    choices: dict[str, Any] = {"lr": 0.1, "betas": (0.9, 0.99), "eps": 1e-8, "weight_decay": 0.1}
    optimizers = [
        StochasticAdamW(weights[:1], **choices),
        torch.optim.AdamW(weights[1:], **choices),
    ]
    for weight, optimizer in zip(weights, optimizers, strict=True):
        weight.grad = pull.to(weight.dtype)
        optimizer.step()
    names = ("exp_avg", "exp_avg_sq")
    own, exact = (
        [weight.detach(), *(optimizer.state[weight][name] for name in names)]
        for weight, optimizer in zip(weights, optimizers, strict=True)
    )
    for one, other in zip(own, exact, strict=True):
        assert torch.all((one.float() - other).abs() <= other.abs() / 128), "a neighbor"
        assert torch.any(other != 0)


@pytest.mark.parametrize("compiled", [True, False])
def test_weights_and_moments_are_rounded_without_bias(compiled, monkeypatch):
    if not compiled:
        monkeypatch.setattr(COMPILED, in_parts)
    count = 200_000
    weight = nn.Parameter(torch.full((count,), 1.5, dtype=torch.bfloat16))
    weight.grad = torch.full_like(weight, 1.1875)
    optimizer = StochasticAdamW([weight], lr=0.01, betas=(0.9, 0.99), eps=0.5, weight_decay=0.1)
    optimizer.step()
    state, slope = optimizer.state[weight], 1.1875
    exact = 1.5 * (1 - 0.001) - 0.01 * slope / (slope + 0.5), 0.1 * slope, 0.01 * slope**2
    stored = weight.detach(), state["exp_avg"], state["exp_avg_sq"]
    drawn = [tensor.double() for tensor in stored]
    for values, wanted in zip(drawn, exact, strict=True):
        below, above = values.unique().tolist()
        assert below < wanted < above, "both neighbors"
        assert abs(values.mean().item() - wanted) < 4 * (above - below) / (2 * count**0.5)
        ups = (values == above).double()
        turns = (ups[1:] * ups[:-1]).mean() - ups.mean() ** 2
        assert abs(turns) < 4 / count**0.5, "neighbors are independent"
    pairs = torch.corrcoef(torch.stack(drawn))
    assert (pairs - torch.eye(3)).abs().max() < 0.02


def test_threads_do_not_change_a_step(monkeypatch):
    monkeypatch.setattr("flowzoo.baselines.learner.stochastic_adamw._PER_THREAD", 512)
    ends = []
    for threads in (1, 3):
        torch.manual_seed(0)
        weight = nn.Parameter(torch.randn(5000).bfloat16())
        weight.grad = torch.randn(5000).bfloat16()
        usual = torch.get_num_threads()
        torch.set_num_threads(threads)
        try:
            StochasticAdamW([weight], 0.1, (0.9, 0.99), 1e-8, 0.1).step()
        finally:
            torch.set_num_threads(usual)
        ends.append(weight.detach())
    assert torch.equal(*ends)


def test_in_bfloat16_a_learner_goes_where_float32_goes(tiny_model, role_rows):
    calls, ends = role_rows(), []
    for choices in ({}, LOWER):
        learner = learner_of(tiny_model, **choices)
        sizes = {p.element_size() for p in learner.parameters}
        found = [learner.update(calls, ADVANTAGES)["learn/loss"] for _ in range(20)]
        sizes |= {
            value.element_size()
            for state in learner.optimizer.state.values()
            for name, value in state.items()
            if name != "step"
        }
        assert sizes == ({2} if choices else {4})
        ends.append(found)
    assert ends[0][0] == pytest.approx(ends[1][0], rel=0.05)
    assert ends[1][-1] < ends[1][0]
    drop = [found[0] - found[-1] for found in ends]
    assert drop[1] == pytest.approx(drop[0], rel=0.2)


@pytest.mark.parametrize("rank", [0, 2])
def test_rounded_copies_of_layers_change_no_bit(tiny_model, role_rows, monkeypatch, rank):
    rows, results = role_rows(4), []
    make = partial(tiny_model, attention_bias=True)
    for copied in (True, False):
        monkeypatch.setattr(ForwardPass, "casts_weights", copied)
        learner = learner_of(make, rank, compute="bfloat16")
        metrics = [learner.update(rows, [1.0, -1.0, 0.5, -0.5]) for _ in range(2)]
        assert type(learner.model.get_output_embeddings()) is nn.Linear
        assert (learner._rounded_layers is not None) is copied
        results.append((metrics, learner.weights.state()))
    assert results[0][0] == results[1][0]
    assert all(value.equal(results[1][1][name]) for name, value in results[0][1].items())


def test_rounded_copies_follow_weights_that_change_between_updates(tiny_model, role_rows):
    rows, learner = role_rows(4), learner_of(tiny_model, compute="bfloat16")
    learner.update(rows, [1.0, -1.0, 0.5, -0.5])
    layers = learner._rounded_layers
    assert layers is not None
    assert layers.differing() == []
    for parameter in learner.parameters:
        parameter.data.mul_(1.5)
    assert layers.differing()
    learner.plain_logps(rows)
    assert layers.differing() == []


def test_a_frozen_base_in_bfloat16_holds_adapters_in_float32(tiny_model, role_rows):
    learner = learner_of(tiny_model, rank=2, **LOWER)
    assert {p.dtype for p in learner.parameters} == {torch.float32}
    adapted = {id(p) for p in learner.parameters}
    rest = [p for p in learner.model.parameters() if id(p) not in adapted]
    assert {p.dtype for p in rest} == {torch.bfloat16}
    before = copy.deepcopy(rest)
    assert learner.update(role_rows(), ADVANTAGES)["learn/grad_norm"] > 0
    assert all(map(torch.equal, rest, before))


def test_a_model_of_another_number_format_is_refused(tiny_model):
    with pytest.raises(UsageError, match=r"trains parameters in torch\.bfloat16"):
        Learner(tiny_model(), LearnerConfig(**LOWER))
    with pytest.raises(UsageError, match=r"load the model with dtype=torch\.float32"):
        Learner(tiny_model().bfloat16(), LearnerConfig())


def test_shapes():
    warm = LearnerConfig(lr=1.0, warmup=4)
    assert [lr_at(i, warm) for i in range(6)] == [0.25, 0.5, 0.75, 1.0, 1.0, 1.0]
    cosine = replace(warm, schedule="cosine", iterations=12)
    assert [lr_at(i, cosine) for i in (4, 12, 99)] == [1.0, 0.0, 0.0]
    assert lr_at(8, cosine) == pytest.approx(0.5)
    assert lr_at(6, cosine) == pytest.approx(0.5 * (1 + 0.5**0.5))
    floor = replace(cosine, min_lr=0.2)
    assert [lr_at(i, floor) for i in (0, 4, 8, 12, 13)] == pytest.approx([0.25, 1, 0.6, 0.2, 0.2])
    linear = replace(floor, schedule="linear", warmup=2)
    assert [lr_at(i, linear) for i in (1, 2, 7, 12, 99)] == pytest.approx([1, 1, 0.6, 0.2, 0.2])


def published_rate(tick: int, lr: float, warmup: int, length: int) -> float:
    """The rate of the scheduler that arXiv 2605.24202 trained with, in plain arithmetic."""
    if tick < warmup:
        return lr * tick / warmup
    return lr / 2 * (1 + math.cos(math.pi * (tick - warmup) / (length - warmup)))


def test_the_published_clock_goes_on_past_its_end():
    config = LearnerConfig(
        lr=2e-5, warmup=15, schedule="cosine", iterations=500, schedule_clock="published"
    )
    rates = [lr_at(tick, config) for tick in range(1500)]
    expected = [published_rate(tick, 2e-5, 15, 500) for tick in range(1500)]
    assert max(map(abs, map(float.__sub__, rates, expected))) < 1e-17
    assert rates[0] == 0.0
    assert min(rates[480:520]) == pytest.approx(0, abs=1e-17)
    assert max(rates[900:1100]) == pytest.approx(2e-5, abs=1e-17)
    with pytest.raises(UsageError, match="published is of the schedule cosine, got linear"):
        replace(config, schedule="linear")


@pytest.mark.parametrize(
    ("rates", "said"),
    [
        ([0.2] * 19 + [0.0], []),
        ([0.2] * 10 + [0.0] * 10,
         ["is 0, so that nothing is learned, in 10 of 20 steps (first 11, last 20)"]),
        ([0.0, 0.1, 0.2, 0.1, 0.2], [
            "is 0, so that nothing is learned, in 1 of 5 steps (first 1, last 1)",
            "rises again after it has fallen, up to 0.2, in 1 of 5 steps (first 5, last 5)",
        ]),
        ([0.1, 0.2, 0.3], []),
        ([], []),
    ],
)  # fmt: skip
def test_odd_courses_are_told(rates, said):
    assert list(odd_rates(rates)) == said


def test_clocks(tiny_model, role_rows):
    rows = role_rows(3)
    rates: dict[str, list[float]] = {}
    for kind in ("iteration", "update"):
        config = LearnerConfig(
            lr=1.0, schedule="linear", iterations=8, schedule_clock=kind, updates_per_iteration=2
        )
        pair = [Learner(tiny_model(seed), config, turn=UpdateTurn(seed, 2)) for seed in (0, 1)]
        rates[kind] = [
            learner.update(rows, [0.0] * 3)["learn/lr"] for _ in range(3) for learner in pair
        ]
    assert rates["iteration"] == [1.0, 1.0, 0.875, 0.875, 0.75, 0.75]
    assert rates["update"] == [1.0, 0.875, 0.75, 0.625, 0.5, 0.375]


@pytest.mark.parametrize(("changes", "text"), refused(__file__, "learner"))
def test_mistakes(changes, text):
    with pytest.raises(UsageError, match=text):
        LearnerConfig(**changes)


def test_numbers_by_role():
    roles = ["generator", "judge"]
    assert numbers_by_role(("judge=0.5",), roles, "role_kl") == {"judge": 0.5}
    for words, text in (
        (["judge"], "ROLE=VALUE, got 'judge'"), (["judge=x"], "must be a number, got 'x'"),
        (["judge=1", "judge=2"], "`role_kl` names role judge twice"),
    ):  # fmt: skip
        with pytest.raises(UsageError, match=text):
            numbers_by_role(words, roles, "role_kl")
    with pytest.raises(UsageError, match="Did you mean 'judge'"):
        numbers_by_role(("juge=1",), roles, "role_kl")


TRL: dict[str, Any] = json.loads((Path(__file__).parent / "trl_steps.json").read_text())
LOSSES = {
    "kl corrected": LossConfig(clip_high=0.28, dual_clip=None, kl_coef=0.04),
    "kl plain": LossConfig(clip_high=0.28, dual_clip=None, kl_coef=0.04, kl_estimate="plain"),
    "no kl": LossConfig(clip_high=0.28, dual_clip=None),
    "gspo": LossConfig(
        ratio="sequence", clip_low=0.05, clip_high=0.1, dual_clip=None,
        aggregation="seq-mean-token-mean",
    ),
    "cispo": LossConfig(clipping="weight", clip_low=None, clip_high=1.0, dual_clip=None),
    "off-policy mask": LossConfig(clip_high=0.28, dual_clip=None, kl_coef=0.04),
}  # fmt: skip
RECOMPUTED: dict[str, Any] = {"old_logp": "recomputed", "importance_cap": 1.5}
CORRECTIONS: dict[str, dict[str, Any]] = {
    "off-policy mask": {"off_policy_mask": 0.05},
    "token truncate": {**RECOMPUTED, "importance_floor": 0.8},
    "token mask": {**RECOMPUTED, "importance_mode": "mask"},
    "sequence truncate": {**RECOMPUTED, "importance_level": "sequence", "off_policy_mask": 0.05},
    "sequence mask": {**RECOMPUTED, "importance_level": "sequence", "importance_mode": "mask",
                      "importance_floor": 1e-3},
}  # fmt: skip


def make_model() -> Qwen3ForCausalLM:
    """As in `benchmarks/trl_golden.py` of commit 51e36686."""
    torch.set_num_threads(1)
    config = Qwen3Config(
        vocab_size=23, hidden_size=16, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=1, head_dim=8, intermediate_size=24, tie_word_embeddings=False,
        max_position_embeddings=64,
    )  # fmt: skip
    model = Qwen3ForCausalLM(config).float().eval()
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, weight in sorted(model.named_parameters()):
            noise = torch.randn(weight.shape, generator=generator) * 0.3
            weight.copy_(1.0 + noise if "norm" in name else noise)
    return model


def calls(case: str) -> list[Call]:
    """The rows, with TRL's log-probs before the first step as the sampler's, or with gaps to it."""
    apart = "old_logp" in CORRECTIONS.get(case, {})
    return [
        new_call(
            episode=f"e{number}",
            prompt_ids=tuple(row["prompt"]),
            output_ids=tuple(row["output"]),
            logps=tuple(logp - apart * gap for logp, gap in zip(logps, row["gap"], strict=True)),
        )
        for number, (row, logps) in enumerate(
            zip(TRL["rows"], TRL["cases"][case]["logps_before"], strict=True)
        )
    ]


TRL_ADVANTAGES = [row["advantage"] for row in TRL["rows"]]


def settings(case: str) -> LearnerConfig:
    return LearnerConfig(
        loss=LOSSES.get(case, LOSSES["no kl"]), lr=TRL["lr"], adam_eps=TRL["eps"],
        temperature=TRL["temperature"], **CORRECTIONS.get(case, {}),
    )  # fmt: skip


def logps_of(model: Any, call: Call) -> Tensor:
    """Of the output tokens at the sampling temperature, one row at a time."""
    ids = torch.tensor([[*call.prompt_ids, *call.output_ids]])
    scores = model(input_ids=ids, use_cache=False).logits[0] / TRL["temperature"]
    start = len(call.prompt_ids) - 1
    found = scores.log_softmax(-1)[start : start + len(call.output_ids)]
    return found.gather(1, torch.tensor(call.output_ids)[:, None])[:, 0]


@pytest.mark.parametrize("case", TRL["cases"])
def test_three_steps_are_those_of_trl(case):
    model, rows, theirs = make_model(), calls(case), TRL["cases"][case]
    learner = Learner(model, settings(case))
    found = [learner.update(rows, TRL_ADVANTAGES) for _ in theirs["losses"]]
    if "old_logp" in CORRECTIONS.get(case, {}):
        assert found[0]["learn/logp_gap_max"] == pytest.approx(1.0112, rel=1e-3)
    else:
        assert found[0]["learn/logp_gap_max"] < 1e-5
        assert found[1]["learn/kl"] > 0.1, "the second step is off policy"
    for name in ("importance_masked", "off_policy_masked"):
        assert 0 < found[1].get(f"learn/{name}", 0.5) < 1
    losses = [one["learn/loss"] for one in found]
    assert losses == pytest.approx(theirs["losses"], rel=1e-3, abs=1e-5)
    norms = [one["learn/grad_norm"] for one in found]
    assert norms == pytest.approx(theirs["grad_norms"], rel=1e-3)
    with torch.no_grad():
        after = torch.cat([logps_of(model, call) for call in rows])
    wanted = torch.tensor([logp for row in theirs["logps_after"] for logp in row])
    torch.testing.assert_close(after, wanted, rtol=0, atol=1e-3)


@pytest.mark.parametrize("case", ["kl corrected", "kl plain"])
def test_the_second_step_is_that_of_float64(case):
    """Written out from the formulas, with gradients of a copy of the model in float64."""
    model, rows = make_model(), calls(case)
    start = copy.deepcopy(model).double()
    learner = Learner(model, settings(case))
    learner.update(rows, TRL_ADVANTAGES)
    moved = copy.deepcopy(model).double()
    tokens, loss = sum(len(call.output_ids) for call in rows), torch.zeros((), dtype=torch.float64)
    for call, advantage in zip(rows, TRL_ADVANTAGES, strict=True):
        now = logps_of(moved, call)
        with torch.no_grad():
            reference = logps_of(start, call)
        ratio = (now - torch.tensor(call.logps, dtype=torch.float64)).exp()
        objective = torch.minimum(ratio * advantage, ratio.clamp(0.8, 1.28) * advantage)
        distance = reference - now
        kl = distance.exp() - distance - 1
        if case == "kl corrected":
            kl = kl * ratio
        loss = loss + (0.04 * kl - objective).sum() / tokens
    gradients = torch.autograd.grad(loss, list(moved.parameters()))
    norm = float(torch.cat([one.flatten() for one in gradients]).norm())
    found = learner.update(rows, TRL_ADVANTAGES)
    assert found["learn/loss"] == pytest.approx(float(loss.detach()), rel=1e-5)
    assert found["learn/grad_norm"] == pytest.approx(norm, rel=1e-4)
