"""Early stopping: what counts as better, and how long is waited."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowzoo.baselines.settings.config import TrainConfig
from flowzoo.baselines.training.train_state import beyond_noise, stop_reason

ITEMS = 100


def make_row(step: int, right: int) -> dict[str, Any]:
    """An evaluation in which the first `right` of the items are right."""
    scores = [1.0] * right + [0.0] * (ITEMS - right)
    return {"step": step, "eval/scores": scores, "eval/reward/mean": right / ITEMS}


def rows_of(*right: int) -> list[dict[str, Any]]:
    """Evaluations at every second step, with a step without one before each but the first."""
    found = [make_row(0, right[0])]
    for number, count in enumerate(right[1:], start=1):
        found += [{"step": 2 * number - 1}, make_row(2 * number, count)]
    return found


def reason(rows: list[dict[str, Any]], **settings: Any) -> str:
    return stop_reason(rows, TrainConfig(**settings))


def ends(rows: list[dict[str, Any]], patience: int = 0, at: float | None = None) -> int | None:
    """The step at which a run with these metrics ends."""
    for end in range(1, len(rows) + 1):
        if reason(rows[:end], stop_patience=patience, stop_at=at):
            return rows[end - 1]["step"]
    return None


def test_without_either_setting_nothing_ends():
    assert ends(rows_of(50, 50, 0, 0, 100, 100)) is None
    assert reason([], stop_patience=1, stop_at=0.5) == ""


def test_an_accuracy_that_is_good_enough_ends_at_once():
    assert ends(rows_of(20, 40, 90, 95), at=0.9) == 4
    assert ends(rows_of(95), at=0.9) == 0
    assert ends(rows_of(20, 89, 30), at=0.9) is None
    assert reason(rows_of(90), stop_at=0.9) == "held-out accuracy 90.0 % reaches stop_at 0.9"


def test_a_fall_ends_a_run_if_it_is_asked_to():
    rows = rows_of(50, 80, 40, 38, 80)
    rows[6]["watch/events"] = [{"text": "a fall since step 4"}]
    assert ends(rows) is None
    said = [reason(rows[:end], on_collapse="stop") for end in range(1, len(rows) + 1)]
    assert [row["step"] for row, one in zip(rows, said, strict=True) if one] == [6]
    assert said[6] == "a fall since step 4 (on_collapse stop)"
    assert reason(rows[:7], on_collapse="rollback") == ""


def test_evaluations_without_a_gain_beyond_noise_are_counted():
    assert ends(rows_of(50, 51, 50, 52, 49), patience=3) == 6
    assert ends(rows_of(50, 51, 50, 60, 61, 62, 61), patience=3) == 12
    assert ends(rows_of(50, 51, 50), patience=3) is None
    said = reason(rows_of(50, 60, 61, 59), stop_patience=2)
    assert said == (
        "none of the 2 evaluations since step 2 was better than its 60.0 % beyond noise "
        "(stop_patience 2)"
    )


def test_many_small_gains_add_up_to_one():
    steady = rows_of(*range(50, 80, 2))
    assert not beyond_noise(steady[0]["eval/scores"], steady[2]["eval/scores"])
    assert ends(steady, patience=3) is None


def test_a_run_ends_at_evaluations_alone():
    rows = [*rows_of(50, 50, 50), {"step": 5}]
    assert reason(rows[:-1], stop_patience=2)
    assert reason(rows, stop_patience=2) == ""


def test_a_single_item_tells_better_from_not():
    assert beyond_noise([0.0], [1.0])
    assert not beyond_noise([1.0], [1.0])


@given(st.lists(st.integers(0, ITEMS), min_size=1, max_size=8), st.integers(1, 4))
def test_more_patience_never_ends_sooner(right, patience):
    rows = rows_of(*right)
    less, more = ends(rows, patience), ends(rows, patience + 1)
    assert less is None or more is None or less < more
    assert less is not None or more is None


@pytest.mark.parametrize("shift", [0.1, 0.4])
def test_noise_is_paired_by_item(shift):
    before = [float(item % 2) for item in range(ITEMS)]
    after = [score + shift * (item < 8) for item, score in enumerate(before)]
    assert beyond_noise(before, after), "a gain of 8 items and a loss of none"
    assert not beyond_noise(before, before[::-1])
