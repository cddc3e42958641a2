"""The watch over evaluations, on courses whose truth is known."""

import math
from typing import Any

import numpy as np
import pytest

from flowzoo.baselines.diagnostics.watch import (
    RATE,
    ROLLBACK,
    Watch,
    _log_e_values,
    _log_weight,
    fall_alarms,
)
from studies.truth.simulation import simulate


def rows_of(
    course: list[float], items: int = 200, seed: int = 0, **measures: list[float]
) -> list[dict[str, Any]]:
    """Rows with an evaluation every second step; `measures` are courses of values by problem."""
    rng = np.random.default_rng(seed)
    scores = simulate(course, items, rng)
    others = {name: simulate(values, items, rng) for name, values in measures.items()}
    rows: list[dict[str, Any]] = []
    for place, values in enumerate(scores):
        row = {"step": 2 * place, "eval/scores": values.tolist()}
        for name, of in others.items():
            row[f"eval/of_problem/{name.replace('__', '/')}"] = of[place].tolist()
        rows += [row, {"step": 2 * place + 1, "reward/mean": 0.5}]
    return rows[:-1]


def test_a_fall_is_told_once_with_its_role_and_its_beginning():
    rows = rows_of(
        [0.5, 0.7, 0.7, 0.7, 0.45, 0.45, 0.45, 0.45],
        role_score__solver=[0.5, 0.7, 0.7, 0.7, 0.3, 0.3, 0.3, 0.3],
        role_score__judge=[0.6] * 8,
    )
    watch = Watch()
    told = [(row["step"], alarm) for row in rows for alarm in watch.add(row)]
    assert sorted(alarm.role for _, alarm in told) == ["", "solver"]
    step, first = next(pair for pair in told if pair[1].role)
    assert first.step == step <= 10
    assert first.since == 8
    assert first.before > 0.65
    assert first.now < 0.5
    assert first.chance <= RATE
    assert "\n" not in first.text
    assert "once in" in first.text


@pytest.mark.parametrize(
    "course",
    [[0.5] * 10, [0.3, 0.4, 0.5, 0.6, 0.7, 0.8], [0.5, 0.7, 0.45, 0.7, 0.5, 0.7], [0.7, 0.3]],
    ids=["flat", "rising", "dips that recover", "too few"],
)
def test_courses_without_a_fall_raise_no_alarm(course):
    assert not [fall for seed in range(10) for fall in fall_alarms(rows_of(course, 400, seed))]


def test_false_alarms_are_rarer_than_the_bound():
    alarmed = 0
    for seed in range(150):
        wobble = 0.02 * np.random.default_rng(seed).standard_normal(12)
        alarmed += bool(fall_alarms(rows_of((0.6 + wobble).tolist(), 60, seed)))
    assert alarmed <= 3  # 1 % are 1.5


def test_the_expectation_of_an_e_value_is_one_at_most():
    rng = np.random.default_rng(1)
    gaps = rng.choice([-1.0, 0.0, 1.0], (4000, 40), p=[0.29, 0.4, 0.31])  # a mean of the margin
    values = np.exp(_log_e_values(gaps))
    assert values.mean() < 1 + 4 * values.std() / math.sqrt(len(values))
    weights = [math.exp(_log_weight(index)) for index in range(32 + 64 + 128)]
    assert sum(weights) == pytest.approx(0.875)


def test_values_that_are_no_shares_and_pay_are_left_alone():
    rows = rows_of([0.9, 0.9, 0.9, 0.1, 0.1, 0.1])
    for row in rows[::2]:
        row["eval/scores"] = [3 * score for score in row["eval/scores"]]
    assert fall_alarms(rows) == []
    paid = rows_of([0.9, 0.9, 0.9, 0.1, 0.1, 0.1])
    for row in paid[::2]:
        row["eval/pay_of/buyer"] = row["eval/scores"]
    assert fall_alarms(paid) == []


def test_problems_without_a_case_are_no_evidence():
    rows = rows_of([0.6] * 8, evaluator_tpr=[0.9, 0.9, 0.9, 0.1, 0.1, 0.1, 0.1, 0.1])
    found = fall_alarms(rows)
    assert [(alarm.role, alarm.measure) for alarm in found] == [
        ("evaluator", "right answers accepted")
    ]
    for row in rows[::2]:
        values = row["eval/of_problem/evaluator_tpr"]
        row["eval/of_problem/evaluator_tpr"] = [None] * (len(values) - 4) + values[-4:]
    assert fall_alarms(rows) == []


def test_after_a_rollback_the_level_before_it_is_forgotten():
    rows = rows_of([0.8, 0.8, 0.8, 0.3, 0.3, 0.3, 0.3, 0.3])
    (first, *_) = fall_alarms(rows)
    back = next(row for row in rows if row["step"] == first.step)
    back[ROLLBACK] = 2
    later = rows_of([0.5, 0.5, 0.5, 0.5])
    assert len(fall_alarms(rows[: rows.index(back) + 1] + later)) == 1
