"""The loss against a reference by token in float64; corrections against formulas and verl."""

import json
import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

from flowzoo.baselines.learner.batch import Microbatch, tensors
from flowzoo.baselines.learner.config import LearnerConfig, LossConfig
from flowzoo.baselines.learner.correction import correct, importance_weights
from flowzoo.baselines.learner.loss import LossNormalizer, LossStats, NonFiniteError, policy_loss
from flowzoo.errors import UsageError
from tests.baselines.rows import new_call

LENGTHS = (5, 1, 0, 3)
ADVANTAGES = (1.3, -0.7, 2.0, -1.1)
WEIGHTS = (1.0, 0.25, 2.0, 1.5)
KL_COEFS = (0.4, 0.0, 0.1, 0.2)


def make_tensors(seed: int = 0, lengths: tuple[int, ...] = LENGTHS) -> dict[str, Any]:
    """Random rows of unequal lengths; outside the mask stands rubbish."""
    generator = torch.Generator().manual_seed(seed)
    shape = (len(lengths), max(lengths))
    mask = torch.arange(shape[1])[None] < torch.tensor(lengths)[:, None]
    values = {
        name: -torch.rand(shape, generator=generator, dtype=torch.float64) * 3
        for name in ("logps", "behavior_logps", "reference_logps", "sampler_logps")
    }
    for name in ("entropies", "importance"):
        values[name] = 2 * torch.rand(shape, generator=generator, dtype=torch.float64)
    values = {name: torch.where(mask, value, float("nan")) for name, value in values.items()}
    values["logps"].requires_grad_()
    rows = {"advantages": ADVANTAGES, "row_weights": WEIGHTS, "kl_coefs": KL_COEFS}
    per_row = {
        name: torch.tensor(row[: len(lengths)], dtype=torch.float64) for name, row in rows.items()
    }
    return {**values, **per_row, "mask": mask}


class Token(NamedTuple):
    """Values of one token for the reference."""

    logp: float
    log_ratio: float
    row_log_ratio: float
    """Mean over the tokens of its row."""
    advantage: float
    reference: float
    entropy: float
    importance: float
    drawn: float
    """Log-ratio to the sampler."""
    kl_coef: float


def reference_token(token: Token, config: LossConfig) -> tuple[float, float, float]:
    """Loss of a token, its derivative by its own logp, and by its row's mean log-ratio."""
    own, advantage = np.exp(np.float64(token.log_ratio)), token.advantage
    ratio = np.exp(np.float64(token.row_log_ratio)) if config.ratio == "sequence" else own
    low = -math.inf if config.clip_low is None else 1 - config.clip_low
    high = math.inf if config.clip_high is None else 1 + config.clip_high
    clipped = low if ratio < low else high if ratio > high else ratio
    if config.ratio == "none":
        objective, slope = token.logp * advantage, advantage
    elif config.clipping == "weight":
        objective, slope = clipped * advantage * token.logp, clipped * advantage
    else:
        objective, slope = ratio * advantage, ratio * advantage
        if clipped * advantage < objective:
            objective, slope = clipped * advantage, 0.0
        if config.dual_clip is not None and advantage < 0:
            floor = config.dual_clip * advantage
            if objective < floor:
                objective, slope = floor, 0.0
    distance = token.reference - token.logp
    k3, k3_slope = np.exp(distance) - distance - 1, 1 - np.exp(distance)
    if config.kl_estimate == "corrected":
        own = np.exp(np.float64(token.drawn))
        k3, k3_slope = own * k3, own * k3 + own * k3_slope  # the product rule
    loss = -token.importance * objective + token.kl_coef * k3 - config.entropy_coef * token.entropy
    of_row = -token.importance * slope if config.ratio == "sequence" else 0.0
    of_token = 0.0 if config.ratio == "sequence" else -token.importance * slope
    return loss, of_token + token.kl_coef * k3_slope, of_row


def reference_loss(data: dict[str, Any], config: LossConfig) -> tuple[float, np.ndarray]:
    """The loss of a whole batch, and its gradient (rows, tokens) by the log-probs."""
    values = {name: value.detach().numpy() for name, value in data.items()}
    mask = values["mask"]
    lengths = [int(row.sum()) for row in mask]
    drawn = values.get("sampler_logps", values["behavior_logps"])
    total, gradient = 0.0, np.zeros(mask.shape)
    for row, length in enumerate(lengths):
        ratios = [values["logps"][row, t] - values["behavior_logps"][row, t] for t in range(length)]
        for t in range(length):
            token = Token(
                values["logps"][row, t], ratios[t], sum(ratios) / length,
                values["advantages"][row], values["reference_logps"][row, t],
                values["entropies"][row, t],
                values["importance"][row, t] if "importance" in values else 1.0,
                values["logps"][row, t] - drawn[row, t],
                values["kl_coefs"][row] if "kl_coefs" in values else config.kl_coef,
            )  # fmt: skip
            share = {
                "token-mean": 1 / sum(lengths),
                "token-sum": 1 / config.constant,
                "seq-mean-token-sum": 1 / len(lengths),
                "seq-mean-token-mean": 1 / len(lengths) / length,
            }[config.aggregation]
            share *= values["row_weights"][row] if "row_weights" in values else 1.0
            loss, of_token, of_row = reference_token(token, config)
            total += share * loss
            gradient[row, t] += share * of_token
            gradient[row, :length] += share * of_row / length
    return total, gradient


CONFIGS = [
    LossConfig(aggregation=aggregation, constant=7.0, **extra)
    for aggregation in ("token-mean", "seq-mean-token-mean", "seq-mean-token-sum", "token-sum")
    for extra in (
        {},
        {"clip_low": 0.2, "clip_high": 0.28, "kl_coef": 0.3, "entropy_coef": 0.05},
        {"clip_low": None, "clip_high": None, "dual_clip": None, "kl_estimate": "plain"},
        {"clip_high": None, "dual_clip": 1.5},
        {"ratio": "none", "clip_low": None, "clip_high": None, "dual_clip": None},
        {"ratio": "sequence", "clip_low": 0.1, "clip_high": 0.2, "dual_clip": None},
        {"ratio": "sequence", "clip_high": None, "dual_clip": 1.2, "kl_coef": 0.1},
        {"clipping": "weight", "clip_low": None, "clip_high": 1.0, "dual_clip": None},
    )
]
SHAPES = [LENGTHS, (4,), (1,), (0, 2), (3, 3, 3)]
EXTRAS = [
    (),
    ("row_weights",),
    ("kl_coefs",),
    ("importance",),
    ("row_weights", "kl_coefs", "importance", "sampler_logps"),
]


@pytest.mark.parametrize("extras", EXTRAS, ids=str)
@pytest.mark.parametrize("config", CONFIGS, ids=str)
def test_value_and_gradient_equal_the_reference(config, extras):
    for seed, lengths in enumerate(SHAPES):
        data = make_tensors(seed, lengths)
        for name in {"row_weights", "kl_coefs", "importance", "sampler_logps"} - set(extras):
            del data[name]
        loss, _ = policy_loss(**data, config=config)
        loss.backward()
        value, gradient = reference_loss(data, config)
        assert float(loss.detach()) == pytest.approx(value, abs=1e-12)
        np.testing.assert_allclose(data["logps"].grad.numpy(), gradient, atol=1e-12, rtol=0)


def test_the_reference_differentiates_rightly():
    for config in CONFIGS[:7]:  # the last has a constant in it that depends on logp
        data = make_tensors()
        _, gradient = reference_loss(data, config)
        for row, t in ((0, 0), (0, 4), (1, 0), (3, 2)):
            ends = []
            for sign in (-1, 1):
                moved = dict(data, logps=data["logps"].detach().clone())
                moved["logps"][row, t] += sign * 1e-6
                ends.append(reference_loss(moved, config)[0])
            assert gradient[row, t] == pytest.approx((ends[1] - ends[0]) / 2e-6, abs=1e-7)


def test_no_constant_of_a_row_gets_a_gradient():
    data = make_tensors()
    data["importance"].requires_grad_()
    policy_loss(**data, config=LossConfig())[0].backward()
    assert data["importance"].grad is None


def test_old_logps_equal_to_the_current_ones_give_the_plain_gradient():
    """At ratio 1 the surrogate and -A logp have one gradient."""
    gradients = []
    plain = LossConfig(ratio="none", clip_low=None, clip_high=None, dual_clip=None)
    for config in (LossConfig(), plain):
        data = {name: make_tensors()[name] for name in ("logps", "advantages", "mask")}
        policy_loss(**data, behavior_logps=data["logps"].detach(), config=config)[0].backward()
        gradients.append(data["logps"].grad)
    torch.testing.assert_close(gradients[0], gradients[1])


@pytest.mark.parametrize("config", CONFIGS, ids=str)
def test_parts_add_up_to_the_whole(config):
    data = make_tensors()
    whole, stats = policy_loss(**data, config=config)
    totals = LossNormalizer(len(LENGTHS), sum(LENGTHS))
    parts, added = 0.0, LossStats()
    for low, high in pairwise((0, 1, 3, 4)):
        piece: dict[str, Any] = {name: value[low:high] for name, value in data.items()}
        loss, part = policy_loss(**piece, config=config, totals=totals)
        parts, added = parts + float(loss.detach()), added + part
    assert parts == pytest.approx(float(whole.detach()), abs=1e-12)
    for name in LossStats.__slots__:
        assert getattr(added, name) == pytest.approx(getattr(stats, name), abs=1e-12)


def one_row(advantage: float, *ratios: float) -> dict[str, Any]:
    """A row whose tokens have these ratios, with log-probs of -1 before."""
    old = -torch.ones(1, len(ratios), dtype=torch.float64)
    logps = (old + torch.tensor([ratios], dtype=torch.float64).log()).requires_grad_()
    return {
        "logps": logps, "behavior_logps": old, "mask": torch.ones_like(old, dtype=torch.bool),
        "advantages": torch.tensor([advantage], dtype=torch.float64),
    }  # fmt: skip


def test_gspo_by_hand():
    """arXiv 2507.18071, eq. 5 and 7: s = (2 * 1 / 2)^(1/2) = 1, though both tokens have moved."""
    narrow = LossConfig(ratio="sequence", clip_low=3e-4, clip_high=4e-4, dual_clip=None,
                        aggregation="seq-mean-token-mean")  # fmt: skip
    data = one_row(2.0, 2.0, 0.5)
    loss, stats = policy_loss(**data, config=narrow)
    loss.backward()
    assert float(loss.detach()) == pytest.approx(-2.0)
    gradient = data["logps"].grad.tolist()
    assert gradient == [pytest.approx([-1.0, -1.0])]  # s A / |y| for each token
    assert stats.clipped == 0
    # s = (4 * 1)^(1/2) = 2 is clipped for A > 0 and not for A < 0.
    for advantage, wanted, clipped in ((2.0, -1.0004 * 2.0, 2), (-2.0, 4.0, 0)):
        data = one_row(advantage, 4.0, 1.0)
        loss, stats = policy_loss(**data, config=narrow)
        assert float(loss.detach()) == pytest.approx(wanted)
        assert stats.clipped == clipped
        assert (stats.ratio, stats.ratio_squared) == pytest.approx((4.0, 8.0))


def test_cispo_by_hand():
    """arXiv 2506.13585, eq. 4 and 5: no token loses its gradient, whatever its ratio."""
    config = LossConfig(clipping="weight", clip_low=None, clip_high=1.0, dual_clip=None)
    for advantage in (1.5, -1.5):
        data = one_row(advantage, 3.0, 0.25)
        loss, stats = policy_loss(**data, config=config)
        loss.backward()
        logps = [-1 + math.log(3), -1 + math.log(0.25)]
        wanted = -advantage * (2.0 * logps[0] + 0.25 * logps[1]) / 2
        assert float(loss.detach()) == pytest.approx(wanted)
        slopes = [-advantage * 2.0 / 2, -advantage * 0.25 / 2]
        assert data["logps"].grad.tolist()[0] == pytest.approx(slopes)
        assert stats.clipped == 1


def test_dual_clip_by_hand():
    """arXiv 1912.09729, eq. 5: max(min(r A, clip(r) A), c A) for A < 0."""
    for bound, wanted, slope in ((3.0, 6.0, 0.0), (6.0, 10.0, 10.0), (None, 10.0, 10.0)):
        data = one_row(-2.0, 5.0)
        loss, stats = policy_loss(**data, config=LossConfig(dual_clip=bound))
        loss.backward()
        assert float(loss.detach()) == pytest.approx(wanted)
        assert data["logps"].grad.item() == pytest.approx(slope)
        assert stats.dual_clipped == (slope == 0)


def test_a_function_stands_in_place_of_the_surrogate():
    data = make_tensors()
    seen: list[Any] = []

    def squares(*given):
        seen.extend(given)
        logps, old, advantages, _ = given
        return advantages[:, None] * (logps - old) ** 2

    config = LossConfig(function=squares, kl_coef=0.3, entropy_coef=0.05)
    del data["kl_coefs"]
    loss, _ = policy_loss(**data, config=config)
    loss.backward()
    assert [one.isfinite().all().item() for one in seen[:2]] == [True, True]
    lengths, rest = sum(LENGTHS), LossConfig(ratio="none", clip_low=None, clip_high=None,
        dual_clip=None, kl_coef=0.3, entropy_coef=0.05)  # fmt: skip
    gap = torch.where(data["mask"], data["logps"] - data["behavior_logps"], 0.0).detach()
    own = (data["advantages"] * data["row_weights"])[:, None] * data["importance"].nan_to_num()
    others = {**data, "advantages": torch.zeros(4, dtype=torch.float64)}
    value, gradient = reference_loss(others, rest)
    value += float((own * gap**2).sum()) / lengths
    gradient = gradient + (own * 2 * gap).numpy() / lengths
    assert float(loss.detach()) == pytest.approx(value, abs=1e-12)
    np.testing.assert_allclose(data["logps"].grad.numpy(), gradient, atol=1e-12)


def test_statistics():
    ratios = [[2.0, 1.0], [4.0, 0.5]]
    logps = torch.tensor(ratios, dtype=torch.float64).log()
    data: dict[str, Any] = {
        "behavior_logps": torch.zeros_like(logps), "advantages": torch.tensor([1.0, -1.0]),
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


def test_k3_is_an_unbiased_estimate_under_the_sampler():
    behavior = torch.tensor([0.2, 0.3, 0.5], dtype=torch.float64)
    current = torch.tensor([0.5, 0.25, 0.25], dtype=torch.float64)
    exact = float((behavior * (behavior / current).log()).sum())
    expected = 0.0
    for token in range(3):
        _, stats = policy_loss(
            current[token].log().reshape(1, 1), behavior[token].log().reshape(1, 1),
            torch.zeros(1), torch.ones(1, 1, dtype=torch.bool), LossConfig(),
        )  # fmt: skip
        expected += float(behavior[token]) * stats.kl
    assert expected == pytest.approx(exact)


@pytest.mark.parametrize("old", [None, [0.5, 0.4, 0.1], [0.3, 0.2, 0.5]])
@pytest.mark.parametrize("estimate", ["corrected", "plain"])
def test_the_corrected_kl_is_that_of_the_current_policy_with_its_gradient(estimate, old):
    """Over the sampler's tokens, a policy that has moved, and a reference: exact expectations.

    With recomputed log-probs `old` is what ratios are to, and not what tokens were drawn from.
    """
    sampler = torch.tensor([0.6, 0.3, 0.1], dtype=torch.float64)
    before = sampler if old is None else torch.tensor(old, dtype=torch.float64)
    reference = torch.tensor([0.55, 0.25, 0.2], dtype=torch.float64)
    scores = torch.tensor([-2.0, 0.5, 1.0], dtype=torch.float64, requires_grad=True)
    logps = scores.log_softmax(-1)
    exact = (logps.exp() * (logps - reference.log())).sum()
    config = LossConfig(ratio="none", clip_low=None, clip_high=None, dual_clip=None, kl_coef=1.0,
                        kl_estimate=estimate)  # fmt: skip
    found: Any = 0.0
    for token in range(3):
        loss, _ = policy_loss(
            logps[token].reshape(1, 1), before[token].log().reshape(1, 1), torch.zeros(1),
            torch.ones(1, 1, dtype=torch.bool), config,
            reference_logps=reference[token].log().reshape(1, 1),
            sampler_logps=None if old is None else sampler[token].log().reshape(1, 1),
        )  # fmt: skip
        found = found + sampler[token] * loss
    wanted, got = (torch.autograd.grad(one, scores, retain_graph=True)[0] for one in (exact, found))
    if estimate == "corrected":
        assert float(found.detach()) == pytest.approx(float(exact.detach()), abs=1e-12)
        torch.testing.assert_close(got, wanted)
    else:
        assert float(found.detach()) != pytest.approx(float(exact.detach()), rel=0.1)
        assert not torch.allclose(got, wanted, rtol=0.1)


def test_a_token_that_became_very_unlikely_does_not_make_the_kl_explode():
    """In float32, where exp(reference - logp) is infinite."""
    logps = torch.tensor([[-100.0, -0.5]], requires_grad=True)
    old = torch.tensor([[-1.0, -1.0]])
    data: dict[str, Any] = {
        "behavior_logps": old, "reference_logps": old, "advantages": torch.tensor([-1.0]),
        "mask": torch.ones(1, 2, dtype=torch.bool),
    }  # fmt: skip
    with pytest.raises(NonFiniteError):
        policy_loss(logps, config=LossConfig(kl_coef=0.04, kl_estimate="plain"), **data)
    loss, stats = policy_loss(logps, config=LossConfig(kl_coef=0.04), **data)
    loss.backward()
    ratio = math.exp(0.5)
    assert stats.reference_kl == pytest.approx(1 + (1 - ratio + 0.5 * ratio), rel=1e-6)
    assert logps.grad is not None
    assert bool(logps.grad.isfinite().all())


def test_only_empty_rows():
    empty = torch.zeros(2, 0)
    loss, stats = policy_loss(empty, empty, torch.ones(2), empty.bool(), LossConfig())
    assert (float(loss), stats.tokens) == (0.0, 0.0)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize(
    "name",
    ["logps", "behavior_logps", "reference_logps", "importance", "sampler_logps", "row_weights",
     "advantages"],
)  # fmt: skip
def test_a_poisoned_row_is_named(name, bad):
    data = make_tensors()
    data[name] = data[name].detach().clone()
    data[name][(3, 1) if data[name].dim() == 2 else (3,)] = bad
    with pytest.raises(NonFiniteError, match=r"\[3\]") as caught:
        policy_loss(**data, config=LossConfig(dual_clip=None, clip_high=None))
    assert caught.value.rows == (3,)


def test_a_sampler_log_prob_of_minus_infinity_does_not_hide_behind_a_clip():
    data = make_tensors()
    data["behavior_logps"][0, 2] = float("-inf")
    assert ADVANTAGES[0] > 0, "the clipped surrogate alone would be finite"
    with pytest.raises(NonFiniteError) as caught:
        policy_loss(**data, config=LossConfig())
    assert caught.value.rows == (0,)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"aggregation": "token-men"}, "token-mean"),
        ({"kl_estimate": "unbiased"}, "corrected"),
        ({"ratio": True}, "sequence"),
        ({"clipping": "weights"}, "objective"),
        ({"clipping": "weight"}, "no dual clip"),
        ({"clipping": "weight", "ratio": "sequence", "dual_clip": None}, "ratio of a token"),
        ({"clip_low": 1.5}, "clip_low"),
        ({"clip_high": -0.1}, "clip_high"),
        ({"dual_clip": 1.0}, "dual_clip"),
        ({"constant": 0.0}, "constant"),
        ({"ratio": "none"}, "dual_clip"),
        (
            {"ratio": "none", "clip_low": 0.0, "clip_high": None, "dual_clip": None},
            "nothing to clip",
        ),
    ],
)
def test_config_mistakes(change, text):
    with pytest.raises(UsageError, match=text):
        LossConfig(**change)


def test_kl_coefs_of_zero_need_no_reference():
    data = {**make_tensors(), "reference_logps": None}
    data["kl_coefs"] = torch.zeros(len(LENGTHS), dtype=torch.float64)
    loss, stats = policy_loss(**data, config=replace(LossConfig(), kl_coef=0.5))
    assert math.isfinite(float(loss.detach()))
    assert stats.reference_kl == 0.0


VERL: dict[str, Any] = json.loads((Path(__file__).parent / "verl_corrections.json").read_text())
SIGNED = [1.0, -1.0, -2.0, -0.5, 0.0, 3.0]
LEVELS, MODES = ("token", "sequence", "geometric"), ("truncate", "mask")


def batch_of(sampler: Sequence[Sequence[float]]) -> Microbatch:
    """Rows with these log-probs, and tokens that nothing looks at."""
    calls = [
        new_call(prompt_ids=(1,), output_ids=(2,) * len(row), logps=tuple(row)) for row in sampler
    ]
    return tensors(calls, SIGNED[: len(sampler)], "padded")


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
