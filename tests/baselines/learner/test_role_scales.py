"""Factors of a role's part of a step: weights, rates, counts; and which optimizers see it."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from flowzoo.baselines.learner.batch import role_factors
from flowzoo.baselines.learner.config import LearnerConfig, LossConfig
from flowzoo.baselines.learner.loss import LossNormalizer, token_weights
from flowzoo.baselines.learner.update import Learner
from flowzoo.errors import UsageError
from tests.baselines.learner.descent import ADVANTAGES, moved

NORMALizED: list[Any] = ["token-mean", "seq-mean-token-mean", "seq-mean-token-sum"]
CALLS = st.lists(
    st.builds(
        lambda role, episode, length: SimpleNamespace(
            role=role, problem="p", episode=episode, output_ids=(0,) * length
        ),
        st.sampled_from("abc"), st.sampled_from(("e1", "e2", "e3")), st.integers(1, 5),
    ),
    min_size=1, max_size=12,
)  # fmt: skip


def config(**changes: Any) -> LearnerConfig:
    plain = {"lr": 0.5, "clip_norm": 0, "optimizer": "sgd", "weight_decay": 0}
    return LearnerConfig(**{**plain, "truncated": "train", **changes})


def close(found: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(found, expected, atol=2e-6, rtol=1e-4)


def row_weights(calls: list[Any], aggregation: Any, kind: Any) -> list[float]:
    """Weight of every row in the loss, by the weights of its tokens."""
    loss = LossConfig(aggregation=aggregation)
    longest = max(len(call.output_ids) for call in calls)
    mask = torch.tensor([[t < len(call.output_ids) for t in range(longest)] for call in calls])
    totals = LossNormalizer(len(calls), int(mask.sum()))
    factors = role_factors(calls, config(loss=loss, role_loss=kind))
    sums = token_weights(mask, loss, totals, torch.float64).sum(-1).tolist()
    if aggregation == "seq-mean-token-sum":  # a row weighs as one, whatever its length
        sums = [s / len(call.output_ids) for s, call in zip(sums, calls, strict=True)]
    return [s * factors[call.role] for s, call in zip(sums, calls, strict=True)]


@given(calls=CALLS, aggregation=st.sampled_from(NORMALizED))
def test_what_a_role_weighs_depends_on_its_own_rows_alone(calls, aggregation):
    for kind in ("pooled", "mean", "sum"):
        weights = row_weights(calls, aggregation, kind)
        for role in sorted({call.role for call in calls}):
            mine = [place for place, call in enumerate(calls) if call.role == role]
            own = [weights[place] for place in mine]
            alone = row_weights([calls[place] for place in mine], aggregation, kind)
            if kind != "pooled":
                assert own == pytest.approx(alone), "whoever shares the policy"
            if kind == "mean":
                assert sum(own) == pytest.approx(1.0)
            if kind == "sum":
                episodes = len({calls[place].episode for place in mine})
                assert sum(own) == pytest.approx(len(mine) / episodes)
        if kind == "pooled":
            assert sum(weights) == pytest.approx(1.0)
        if len({call.role for call in calls}) == 1 and kind == "mean":
            assert weights == row_weights(calls, aggregation, "pooled"), "bit by bit"


@pytest.mark.parametrize("aggregation", NORMALizED)
def test_a_shared_step_is_the_sum_of_the_steps_that_roles_would_take_alone(
    aggregation, tiny_model, role_rows, own_logps
):
    loss = LossConfig(aggregation=aggregation)
    calls = [replace(call, episode=f"e{n // 4}") for n, call in enumerate(role_rows())]
    calls = own_logps(tiny_model(), calls)
    for kind in ("mean", "sum"):
        choices = config(loss=loss, role_loss=kind, role_lr={"a": 1.5})
        whole = moved(Learner(tiny_model(), choices), calls, ADVANTAGES)
        parts: list[Tensor] = []
        for role, rate in (("a", 1.5), ("b", 0.5), ("c", 0.5)):
            mine = [place for place, call in enumerate(calls) if call.role == role]
            alone = Learner(tiny_model(), config(loss=loss, lr=rate, role_loss=kind))
            rows = [calls[place] for place in mine]
            parts.append(moved(alone, rows, [ADVANTAGES[place] for place in mine]))
        close(whole, torch.stack(parts).sum(0))


def test_n_equal_agents_push_n_times_as_hard_under_sum_alone(tiny_model, role_rows, own_logps):
    one = own_logps(tiny_model(), role_rows(3))
    one = [replace(call, role="a") for call in one]
    three = [replace(call, agent=f"a_{n}", slot=n) for call in one for n in range(3)]
    advantages = [1.0, -1.0, 0.5]
    for kind, factor in (("pooled", 1), ("mean", 1), ("sum", 3)):
        choices = config(role_loss=kind)
        single = moved(Learner(tiny_model(), choices), one, advantages)
        triple = [a for a in advantages for _ in range(3)]
        close(moved(Learner(tiny_model(), choices), three, triple), factor * single)


def test_sgd_sees_the_weight_of_a_policys_only_role_and_adamw_does_not(
    tiny_model, role_rows, own_logps
):
    calls = own_logps(tiny_model(), [replace(call, role="a") for call in role_rows()])

    def after(**changes):
        return moved(Learner(tiny_model(), config(**changes)), calls, ADVANTAGES)

    third = {"role_weights": {"a": 1 / 3}}
    close(after(**third), after() / 3)
    adam = {"optimizer": "adamw", "lr": 1e-3, "adam_eps": 1e-16}
    torch.testing.assert_close(after(**adam, **third), after(**adam), atol=2e-7, rtol=1e-3)


def test_clip_norm_0_never_clips(tiny_model, role_rows, own_logps):
    calls = own_logps(tiny_model(), role_rows())
    big = [1e4 * a for a in ADVANTAGES]
    free, wide, tight = (
        moved(Learner(tiny_model(), config(clip_norm=clip, lr=1e-6)), calls, big)
        for clip in (0, 1e30, 1.0)
    )
    assert torch.equal(free, wide)
    assert float(tight.norm()) == pytest.approx(1e-6, rel=0.05), "float32 weights"
    assert float(free.norm()) > 100 * float(tight.norm())


def test_a_sum_over_roles_needs_counts():
    with pytest.raises(UsageError, match="`role_loss` sum is about the counts"):
        config(role_loss="sum", loss=LossConfig(aggregation="token-sum"))
