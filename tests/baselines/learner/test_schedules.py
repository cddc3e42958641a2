"""Learning rates over time."""

import math
from dataclasses import replace

import pytest

from flowzoo.baselines.learner.config import LearnerConfig
from flowzoo.baselines.learner.schedule import UpdateTurn, lr_at, odd_rates
from flowzoo.baselines.learner.update import Learner
from flowzoo.baselines.settings.by_policy import numbers_by_role
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
