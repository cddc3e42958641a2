"""Learning rates over time."""

from dataclasses import replace

import pytest

from flowzoo.baselines.learner.config import LearnerConfig
from flowzoo.baselines.learner.optimizers import UpdateTurn, lr_at
from flowzoo.baselines.learner.update import Learner
from flowzoo.baselines.settings.policy_map import numbers_by_role
from flowzoo.errors import UsageError
from tests.refused import refused


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


@pytest.mark.parametrize(("changes", "text"), refused(__file__, "learner"))
def test_mistakes(changes, text):
    with pytest.raises(UsageError, match=text):
        LearnerConfig(**changes)


def test_numbers_by_role():
    roles = ["generator", "judge"]
    assert numbers_by_role(("judge=0.5",), roles, "role_kl") == {"judge": 0.5}
    for words, text in (
        (["judge"], "ROLE=NUMBER, got 'judge'"), (["judge=x"], "got 'judge=x'"),
        (["judge=1", "judge=2"], "`role_kl` names role judge twice"),
    ):  # fmt: skip
        with pytest.raises(UsageError, match=text):
            numbers_by_role(words, roles, "role_kl")
    with pytest.raises(UsageError, match="Did you mean 'judge'"):
        numbers_by_role(("juge=1",), roles, "role_kl")
