"""The cliff verdict on runs whose truth is known."""

import math
from typing import Any

import numpy as np
import pytest

from flowzoo.baselines.diagnostics.cliff import FELL, change_point, discoveries, find_cliff
from flowzoo.baselines.diagnostics.watch import (
    RATE,
    ROLLBACK,
    Watch,
    _log_e_values,
    _log_weight,
    fall_alarms,
)
from flowzoo.errors import UsageError
from studies.truth.simulation import power, simulate, simulate_seeds

STEPS = list(range(0, 100, 5))


def course(fall: float) -> np.ndarray:
    """A rise to 0.7, then a fall after evaluation 12."""
    return np.concatenate([np.linspace(0.4, 0.7, 8), np.full(5, 0.7), np.full(7, 0.7 - fall)])


def test_planted_collapse_is_found_where_it_was_planted():
    """A fall of 25 points with 500 items: a cliff, at its step, with an honest interval."""
    scores = simulate(course(0.25), 500, np.random.default_rng(0))
    found = find_cliff([scores], STEPS)
    assert found.verdict == "cliff"
    assert found.cliff_step == STEPS[13]
    assert found.low < 0.25 < found.high
    assert found.p_value < 0.01
    assert not found.below_base


def test_fall_below_the_start_is_told():
    """Terminal accuracy under that of step 0."""
    scores = simulate(course(0.4), 500, np.random.default_rng(1))
    assert find_cliff([scores], STEPS).below_base


def test_steady_run_is_no_cliff():
    scores = simulate(np.linspace(0.4, 0.7, 20), 500, np.random.default_rng(2))
    found = find_cliff([scores], STEPS)
    assert found.verdict == "no cliff"
    assert found.cliff_step is None


def test_few_items_give_no_verdict_where_nothing_is_found():
    """With 40 items a fall of 15 points could not be told from noise, and there is none."""
    found = find_cliff([simulate(course(0.0), 40, np.random.default_rng(3))], STEPS)
    assert found.verdict == "not enough items"
    assert found.detectable > 0.15


@pytest.mark.parametrize(
    ("levels", "items", "verdicts"),
    [
        ([0.82, 0.6, 0.4, 0.25, 0.18], 60, {"cliff"}),
        ([0.77, 0.75, 0.72, 0.58, 0.52], 160, {"falling", "cliff"}),
        ([0.40, 0.46, 0.59, 0.73, 0.78], 160, {"no cliff", "not enough items"}),
        ([0.26, 0.60, 0.79, 0.70, 0.52], 160, {"falling"}),
        ([0.39, 0.72, 0.40], 160, {"falling"}),
        ([0.39, 0.60, 0.72], 160, {"not enough evaluations"}),
    ],
    ids=["few items", "in progress", "rising", "last", "three evaluations", "three that rise"],
)
def test_falls_are_called_by_what_they_are(levels, items, verdicts):
    """Courses of real runs: of 20 draws of each 17 or more have one of these verdicts."""
    rng = np.random.default_rng(10)
    draws = [simulate(levels, items, rng) for _ in range(20)]
    found = [find_cliff([one], range(len(levels)), resamples=200) for one in draws]
    assert sum(one.verdict in verdicts for one in found) >= 17
    if levels[-1] == max(levels):
        assert np.mean([one.drop for one in found]) < 0.01  # nothing was lost after the peak


def test_seeds_that_fall_at_different_times_are_not_averaged_away():
    """Each falls by 25 points after a peak of its own; their mean curve falls by 8 at most."""
    falls = [[0.7] * (4 + late) + [0.45] * (16 - late) for late in (0, 6, 12)]
    rises = [[0.45 + 0.25 * (place >= 2 * late) for place in range(4 + late)] for late in (0, 1, 2)]
    runs = [rise + fall[len(rise) :] for rise, fall in zip(rises, falls, strict=True)]
    found = find_cliff(simulate_seeds(runs, 300, np.random.default_rng(11)), STEPS)
    assert found.verdict == "cliff"
    assert found.low < 0.25 < found.high


@pytest.mark.parametrize("items", [100, 500])
def test_selection_bias_of_the_peak_is_removed(items):
    """Noise about 0.5: the best of 20 evaluations is well above it, the cross-fitted one is not."""
    rng = np.random.default_rng(4)
    runs = [simulate(np.full(20, 0.5), items, rng) for _ in range(80)]
    found = [find_cliff([run], STEPS, splits=4, resamples=50) for run in runs]
    excess = np.array([one.peak - run.mean() for one, run in zip(found, runs, strict=True)])
    naive = np.array([one.naive_peak - run.mean() for one, run in zip(found, runs, strict=True)])
    error = excess.std(ddof=1) / np.sqrt(len(runs))
    assert abs(excess.mean()) < 3 * error
    assert naive.mean() > 10 * error


@pytest.mark.parametrize("seeds", [1, 3])
def test_noise_alone_is_no_cliff(seeds):
    """False positives over 100 cells that rise and stay: at most 2 (the rate is below 1 %)."""
    rng = np.random.default_rng(5)
    found = [
        find_cliff(simulate_seeds([course(0)] * seeds, 500, rng), STEPS, resamples=200)
        for _ in range(100)
    ]
    assert sum(one.verdict in FELL for one in found) <= 2
    assert sum(one.low <= 0 <= one.high for one in found) >= 95


def test_seeds_that_disagree_are_no_cliff():
    """Falls of mean 0 and deviation 10 points over three seeds: at most 5 % of 60 cells."""
    rng = np.random.default_rng(8)
    verdicts = [
        find_cliff(
            simulate_seeds([course(fall) for fall in 0.1 * rng.standard_normal(3)], 700, rng),
            STEPS, resamples=100,
        ).verdict
        for _ in range(60)
    ]  # fmt: skip
    assert verdicts.count("cliff") <= 3
    assert verdicts.count("not enough seeds") >= 8
    assert "not enough items" not in verdicts


def test_power_grows_with_the_fall_and_the_items():
    assert power(0.1, 500, 20, simulations=20) > power(0.03, 500, 20, simulations=20)
    assert power(0.1, 500, 20, simulations=20) > power(0.1, 60, 20, simulations=20)


def test_seeds_are_blocks():
    rng = np.random.default_rng(6)
    same = [simulate(course(0.2), 300, rng) for _ in range(3)]
    mixed = [simulate(course(fall), 300, rng) for fall in (0.0, 0.2, 0.4)]
    assert find_cliff(mixed, STEPS).se > 2 * find_cliff(same, STEPS).se


def test_more_items_do_not_help_seeds_that_differ():
    """Falls of 0, 20 and 40 points: no verdict, and the reason is the seeds."""
    rng = np.random.default_rng(9)
    found = find_cliff(simulate_seeds([course(f) for f in (0, 0.2, 0.4)], 1412, rng), STEPS)
    assert found.verdict == "not enough seeds"
    assert found.se > 3 * found.se_items


def test_verdict_repeats_and_does_not_depend_on_the_order_of_seeds():
    scores = simulate(course(0.2), 200, np.random.default_rng(7))
    assert find_cliff([scores], STEPS) == find_cliff([scores], STEPS)


def test_change_point_lies_after_the_peak():
    assert change_point([0.0, 0.0, 0.9, 0.9, 0.8, 0.2, 0.2]) == 5


def test_false_discoveries_are_controlled():
    """Benjamini-Hochberg by hand: 0.005 <= .05/5, 0.009 <= .1/5, 0.02 <= .15/5, 0.04 = .2/5."""
    assert discoveries([0.04, 0.005, 0.9, 0.02, 0.009]) == [True, True, False, True, True]
    assert discoveries([0.02, 0.9]) == [True, False]
    assert discoveries([0.03, 0.9]) == [False, False]
    assert discoveries([]) == []


@pytest.mark.parametrize(
    ("scores", "steps", "said"),
    [
        ([np.zeros((5, 40)), np.zeros((5, 39))], range(5), "one (evaluations, items) array"),
        ([np.zeros((5, 40))], range(6), "6 evaluations each"),
        ([np.zeros((2, 40))], range(2), "needs 3 evaluations"),
        ([np.zeros((5, 29))], range(5), "of 30 items or more"),
        ([np.full((5, 40), np.nan)], range(5), "not finite"),
    ],
)
def test_mistakes_are_named(scores, steps, said):
    with pytest.raises(UsageError, match=said.replace("(", r"\(").replace(")", r"\)")):
        find_cliff(scores, steps)


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
