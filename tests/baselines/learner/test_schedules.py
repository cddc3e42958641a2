"""Learning rates over time."""

from __future__ import annotations

from dataclasses import replace

import pytest

pytest.importorskip("torch", reason="training needs flowzoo[train]")

from flowzoo.baselines.learner.config import LearnerConfig
from flowzoo.baselines.learner.optimizers import UpdateTurn, lr_at
from flowzoo.baselines.learner.update import Learner
from flowzoo.baselines.settings.policy_map import numbers_by_role
from flowzoo.errors import UsageError


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


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"schedule": "cosin"}, "Did you mean 'cosine'"),
        ({"schedule": "linear", "warmup": 3, "iterations": 3}, "`iterations` > `warmup`, got 3"),
        ({"schedule_clock": "step"}, "iteration, update"),
        ({"lr": 0.1, "min_lr": 0.2}, "at most `lr`, got 0.2 and 0.1"),
        ({"updates_per_iteration": "by_row"}, "by_rows"),
        ({"updates_per_iteration": 0}, "updates_per_iteration"),
        ({"rows_per_update": 0}, "rows_per_update"),
        ({"old_logp": "learner"}, "recomputed, sampler"),
        ({"importance_cap": 0.5}, "at least 1, got 0.5"),
        ({"coherence": 1.5}, "between 0 and 1, got 1.5"),
        ({"coherence_window": 0}, "coherence_window"),
        ({"role_kl": {"a": -1.0}}, "`role_kl` of 'a' must be at least 0"),
        ({"role_weights": {"a": float("inf")}}, "`role_weights` of 'a'"),
        ({"top_p": 0.9}, 'set correction="renormalize"'),
        ({"top_k": 20}, 'set correction="renormalize"'),
        ({"top_p": 0.0}, r"`top_p` must be in \(0, 1\]"),
    ],
)
def test_mistakes(changes, text):
    with pytest.raises(UsageError, match=text):
        LearnerConfig(**changes)


def test_numbers_by_role():
    roles = ["generator", "judge"]
    assert numbers_by_role(("judge=0.5",), roles, "role_kl") == {"judge": 0.5}
    for word, text in (("judge", "ROLE=NUMBER, got 'judge'"), ("judge=x", "got 'judge=x'")):
        with pytest.raises(UsageError, match=text):
            numbers_by_role((word,), roles, "role_kl")
    with pytest.raises(UsageError, match="Did you mean 'judge'"):
        numbers_by_role(("juge=1",), roles, "role_kl")
