"""The loss against a reference written with plain floats, one token at a time."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import pytest
import torch

from flowzoo.baselines.loss import LossConfig, LossStats, NonFinite, Totals, policy_loss
from flowzoo.errors import UsageError

LENGTHS = (5, 1, 0, 3)
ADVANTAGES = (1.3, -0.7, 2.0, -1.1)
WIDTH = max(LENGTHS)


def tensors(seed: int = 0) -> dict[str, Any]:
    """Random rows of unequal lengths; outside the mask stands rubbish."""
    generator = torch.Generator().manual_seed(seed)
    shape = (len(LENGTHS), WIDTH)
    mask = torch.arange(WIDTH)[None] < torch.tensor(LENGTHS)[:, None]
    values = {
        name: -torch.rand(shape, generator=generator, dtype=torch.float64) * 3
        for name in ("logps", "behaviour_logps", "reference_logps")
    }
    values["entropies"] = torch.rand(shape, generator=generator, dtype=torch.float64)
    values = {name: torch.where(mask, value, float("nan")) for name, value in values.items()}
    values["logps"].requires_grad_()
    return {
        **values, "advantages": torch.tensor(ADVANTAGES, dtype=torch.float64), "mask": mask
    }  # fmt: skip


def reference_token(
    logp: float, old: float, advantage: float, ref: float, entropy: float, config: LossConfig
) -> float:
    ratio = math.exp(logp - old)
    low = 0.0 if config.clip_low is None else 1 - config.clip_low
    high = math.inf if config.clip_high is None else 1 + config.clip_high
    objective = min(ratio * advantage, min(max(ratio, low), high) * advantage)
    if config.dual_clip is not None and advantage < 0:
        objective = max(objective, config.dual_clip * advantage)
    d = ref - logp
    return -objective + config.kl_coef * (math.exp(d) - d - 1) - config.entropy_coef * entropy


def reference_loss(data: dict[str, Any], config: LossConfig) -> float:
    data = {name: value.detach() for name, value in data.items()}
    rows = [
        [
            reference_token(
                float(data["logps"][row, t]), float(data["behaviour_logps"][row, t]),
                ADVANTAGES[row], float(data["reference_logps"][row, t]),
                float(data["entropies"][row, t]), config,
            )
            for t in range(length)
        ]
        for row, length in enumerate(LENGTHS)
    ]  # fmt: skip
    if config.aggregation == "token-mean":
        return sum(map(sum, rows)) / sum(LENGTHS)
    if config.aggregation == "token-sum":
        return sum(map(sum, rows)) / config.constant
    if config.aggregation == "seq-mean-token-sum":
        return sum(map(sum, rows)) / len(rows)
    return sum(sum(row) / len(row) for row in rows if row) / len(rows)


CONFIGS = [
    LossConfig(aggregation=aggregation, constant=7.0, **extra)  # type: ignore[arg-type]
    for aggregation in (
        "token-mean", "seq-mean-token-mean", "seq-mean-token-sum", "token-sum"
    )
    for extra in (
        {},
        {"clip_low": 0.2, "clip_high": 0.28, "kl_coef": 0.3, "entropy_coef": 0.05},
        {"clip_low": None, "clip_high": None, "dual_clip": None},
        {"clip_high": None, "dual_clip": 1.5},
    )
]  # fmt: skip


@pytest.mark.parametrize("config", CONFIGS, ids=str)
def test_equals_reference(config: LossConfig) -> None:
    for seed in range(5):
        data = tensors(seed)
        loss, _ = policy_loss(**data, config=config)
        assert float(loss.detach()) == pytest.approx(reference_loss(data, config), abs=1e-12)


@pytest.mark.parametrize("config", CONFIGS, ids=str)
def test_gradient_equals_finite_differences(config: LossConfig) -> None:
    data = tensors()
    policy_loss(**data, config=config)[0].backward()
    gradient = data["logps"].grad
    assert bool((gradient[~data["mask"]] == 0).all())
    step = 1e-6
    for row, length in enumerate(LENGTHS):
        for t in range(length):
            ends = []
            for sign in (-1, 1):
                moved = dict(data, logps=data["logps"].detach().clone())
                moved["logps"][row, t] += sign * step
                ends.append(reference_loss(moved, config))
            slope = (ends[1] - ends[0]) / (2 * step)
            assert float(gradient[row, t]) == pytest.approx(slope, abs=1e-6)


@pytest.mark.parametrize("config", CONFIGS, ids=str)
def test_parts_add_up_to_the_whole(config: LossConfig) -> None:
    data = tensors()
    whole, stats = policy_loss(**data, config=config)
    totals = Totals(len(LENGTHS), sum(LENGTHS))
    parts, added = 0.0, LossStats()
    for low, high in pairwise((0, 1, 3, 4)):
        piece: dict[str, Any] = {name: value[low:high] for name, value in data.items()}
        loss, part = policy_loss(**piece, config=config, totals=totals)
        parts, added = parts + float(loss.detach()), added + part
    assert parts == pytest.approx(float(whole.detach()), abs=1e-12)
    for name in LossStats.__slots__:
        assert getattr(added, name) == pytest.approx(getattr(stats, name), abs=1e-12)


def test_statistics() -> None:
    ratios = [[2.0, 1.0], [4.0, 0.5]]
    logps = torch.tensor(ratios, dtype=torch.float64).log()
    data: dict[str, Any] = {
        "behaviour_logps": torch.zeros_like(logps), "advantages": torch.tensor([1.0, -1.0]),
        "mask": torch.ones(2, 2, dtype=torch.bool), "entropies": torch.full((2, 2), 0.25),
    }  # fmt: skip
    _, stats = policy_loss(logps, config=LossConfig(), **data)
    assert stats.tokens == 4
    assert stats.clipped == 2  # 2.0 with A > 0, 0.5 with A < 0
    assert stats.dual_clipped == 1  # 4.0 with A < 0
    assert stats.ratio == pytest.approx(7.5)
    assert stats.ratio_squared == pytest.approx(21.25)
    assert stats.gap_max == pytest.approx(math.log(4))
    assert stats.gap == pytest.approx(math.log(2) + math.log(4) + math.log(2))
    assert stats.kl == pytest.approx(sum(r - 1 - math.log(r) for row in ratios for r in row))
    assert stats.entropy == pytest.approx(1.0)


def test_k3_is_an_unbiased_estimate_under_the_sampler() -> None:
    behaviour = torch.tensor([0.2, 0.3, 0.5], dtype=torch.float64)
    current = torch.tensor([0.5, 0.25, 0.25], dtype=torch.float64)
    exact = float((behaviour * (behaviour / current).log()).sum())
    expected = 0.0
    for token in range(3):
        _, stats = policy_loss(
            current[token].log().reshape(1, 1), behaviour[token].log().reshape(1, 1),
            torch.zeros(1), torch.ones(1, 1, dtype=torch.bool), LossConfig(),
        )  # fmt: skip
        expected += float(behaviour[token]) * stats.kl
    assert expected == pytest.approx(exact)


def test_only_empty_rows() -> None:
    empty = torch.zeros(2, 0)
    loss, stats = policy_loss(empty, empty, torch.ones(2), empty.bool(), LossConfig())
    assert (float(loss), stats.tokens) == (0.0, 0.0)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_non_finite_loss_names_the_rows(bad: float) -> None:
    data = tensors()
    data["logps"] = data["logps"].detach().clone()
    data["logps"][3, 1] = bad
    with pytest.raises(NonFinite) as caught:
        policy_loss(**data, config=LossConfig(dual_clip=None))
    assert caught.value.rows == (3,)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"aggregation": "token-men"}, "token-mean"),
        ({"clip_low": 1.5}, "clip_low"),
        ({"clip_high": -0.1}, "clip_high"),
        ({"dual_clip": 1.0}, "dual_clip"),
        ({"constant": 0.0}, "constant"),
    ],
)
def test_config_mistakes(change: dict[str, Any], text: str) -> None:
    with pytest.raises(UsageError, match=text):
        LossConfig(**change)


def test_call_mistakes() -> None:
    data = tensors()
    for name, config in (
        ("reference_logps", LossConfig(kl_coef=0.1)),
        ("entropies", LossConfig(entropy_coef=0.1)),
    ):
        with pytest.raises(UsageError, match=name):
            policy_loss(**{**data, name: None}, config=config)
    with pytest.raises(UsageError, match=r"\(3,\)"):
        policy_loss(**{**data, "advantages": data["advantages"][:3]}, config=LossConfig())
    with pytest.raises(UsageError, match="boolean"):
        policy_loss(**{**data, "mask": data["mask"].float()}, config=LossConfig())
