"""Collapses in a run's own metrics, on rows with planted courses."""

from typing import Any

import numpy as np
import pytest

from flowzoo.baselines.diagnostics.collapse import find_collapse
from studies.truth.simulation import simulate


def rows_of(accuracy: list[float], items: int = 200, seed: int = 0, **shares: Any) -> list[dict]:
    """Rows with an evaluation every second step; `shares` are metrics of the evaluations."""
    scores = simulate(accuracy, items, np.random.default_rng(seed))
    rows: list[dict[str, Any]] = []
    for place, level in enumerate(scores):
        row = {"step": 2 * place, "eval/scores": level.tolist()}
        row["eval/reward/mean"] = float(level.mean())
        for name, values in shares.items():
            row[f"eval/share/{name}"], row[f"eval/share_of/{name}"] = values[place], items // 2
        rows += [row, {"step": 2 * place + 1, "reward/mean": 0.5}]
    return rows[:-1]


def test_a_fall_is_found_once_two_evaluations_show_it():
    rows = rows_of([0.4, 0.6, 0.8, 0.5, 0.45, 0.45])
    found = [find_collapse(rows[:end]) for end in range(len(rows) + 1)]
    first = next(one for one in found if one is not None)
    assert (first.kind, first.what, first.since, first.step) == ("fall", "the team", 6, 8)
    assert "at step 4" in first.text
    assert "\n" not in first.text
    assert all(one is None for one in found[:9])


@pytest.mark.parametrize(
    "course",
    [[0.5] * 8, [0.3, 0.4, 0.5, 0.6, 0.7, 0.8], [0.5, 0.7, 0.45, 0.7, 0.5, 0.7], [0.7, 0.4]],
    ids=["flat", "rising", "dips that recover", "too few"],
)
def test_what_is_no_collapse_is_not_called_one(course):
    rows = rows_of(course, items=400)
    assert not [end for end in range(len(rows) + 1) if find_collapse(rows[:end])]


def test_a_checker_that_gives_one_verdict_is_found_whatever_the_team_does():
    rising = [0.4, 0.5, 0.6, 0.6, 0.6]
    tpr = [0.58, 0.5, 0.3, 0.1, 0.05]
    found = find_collapse(rows_of(rising, evaluator_tpr=tpr))
    assert found is not None
    assert (found.kind, found.what) == ("checker", "evaluator")
    assert "right answers it accepts 7.5 %" in found.text
    stamp = find_collapse(rows_of(rising, verifier_tnr=[0.9, 0.5, 0.2, 0.1, 0.1]))
    assert stamp is not None
    assert stamp.what == "verifier"
    assert find_collapse(rows_of(rising, evaluator_tpr=[0.1] * 5)) is None  # never better
    assert find_collapse(rows_of(rising, items=16, evaluator_tpr=tpr)) is None  # too few cases


def test_candidates_and_form_are_looked_at():
    steady = [0.6] * 5
    gone = find_collapse(rows_of(steady, any_correct=[0.6, 0.5, 0.2, 0.03, 0.02]))
    assert gone is not None
    assert gone.kind == "candidates"
    rows = rows_of(steady)
    for row, share in zip(rows[::2], [1.0, 0.9, 0.5, 0.2, 0.1], strict=True):
        row["eval/strict/worker"] = share
    unread = find_collapse(rows)
    assert unread is not None
    assert (unread.kind, unread.what) == ("form", "worker")


@pytest.mark.parametrize(
    "course",
    [[0.6] * 12, [0.4, 0.6, 0.7, 0.3, 0.7, 0.7]],
    ids=["flat", "one deep dip that is over"],
)
def test_falls_of_runs_that_keep_what_they_reached_are_rare(course):
    found = 0
    for seed in range(200):
        rows = rows_of(course, items=60, seed=seed)
        found += any(find_collapse(rows[:end]) for end in range(len(rows) + 1))
    assert found <= 3  # fewer than 1 % are expected; by the mean of two evaluations 18 dips were
