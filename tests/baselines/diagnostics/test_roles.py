"""Checking roles that stopped looking and roles that died, planted into rows and episodes."""

from typing import Any

import numpy as np
import pytest

from flowzoo.agents.evaluation.intervals import share_interval
from flowzoo.baselines.diagnostics.checkers import (
    candidate_role,
    chooser,
    judges,
    loop_value,
    one_verdict,
)
from flowzoo.baselines.diagnostics.roles import (
    became_alone,
    became_constant,
    became_copy,
    best_steps,
    lost_skill,
    no_longer_asked,
)
from flowzoo.baselines.stats import findable, share_change
from studies.truth.simulation import simulate_team


def rows(tpr: list[float], tnr: list[float], items: int = 160, role: str = "evaluator") -> list:
    """Rows of evaluations every second step, with as many right things as wrong ones."""
    return [
        {
            "step": 2 * place, "eval/scores": [0.5] * items,
            f"eval/share/{role}_tpr": one, f"eval/share_of/{role}_tpr": items // 2,
            f"eval/share/{role}_tnr": other, f"eval/share_of/{role}_tnr": items // 2,
        }
        for place, (one, other) in enumerate(zip(tpr, tnr, strict=True))
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("tpr", "tnr", "verdict"),
    [
        ([0.58, 0.4, 0.11], [0.9, 0.95, 1.0], "rejects everything"),
        ([0.89, 0.9, 0.95], [0.6, 0.3, 0.08], "accepts everything"),
        ([0.58, 0.6, 0.55], [0.5, 0.6, 0.62], "none"),
        ([0.3, 0.1, 0.1], [0.9, 0.9, 0.9], "none"),  # neither at first nor a fall
        ([0.58, 0.5, 0.3], [0.9, 0.9, 0.9], "none"),  # less, and no collapse
    ],
)
def test_one_verdict_for_everything_is_a_collapse(tpr, tnr, verdict):
    (found,) = judges(rows(tpr, tnr))
    assert found.verdict == verdict
    assert found.best_step == (0 if verdict != "none" and tpr[0] < 0.8 else found.best_step)
    assert found.found_below is not None
    assert found.found_below > 0.1


@pytest.mark.parametrize(
    ("tpr", "tnr", "verdict"),
    [
        ([0.1, 0.1, 0.05], [0.9, 0.9, 0.9], "rejects everything"),
        ([0.95, 0.9, 0.9], [0.0, 0.1, 0.1], "accepts everything"),
    ],
)
def test_one_verdict_from_the_start_is_no_collapse(tpr, tnr, verdict):
    (born,) = judges(rows(tpr, tnr))
    assert (born.verdict, born.born, born.best_step) == (verdict, True, None)
    (recovered,) = judges(rows([*tpr, 0.7], [*tnr, 0.7]))
    assert (recovered.verdict, recovered.born) == ("none", False)
    assert [role for role, _ in one_verdict(rows(tpr, tnr)[0])] == ["evaluator"]
    assert one_verdict(rows([0.5], [0.5])[0]) == one_verdict(rows(tpr, tnr, items=20)[0]) == []


def test_judges_say_when_there_are_too_few_cases_and_what_they_know():
    (few,) = judges(rows([0.6, 0.0], [0.9, 1.0], items=20))
    assert few.verdict == "too few cases"
    (blind,) = judges(rows([0.5, 0.5], [0.5, 0.5], role="verifier"))
    assert blind.informed is not None
    assert blind.informed[1] < 0 < blind.informed[2]
    assert blind.accepts == 0.5
    (many,) = judges(
        [row | {"eval/share_of/evaluator_tpr": 999} for row in rows([0.5] * 2, [1] * 2)]
    )
    assert many.tpr is not None
    assert many.tpr.of == 160  # no more cases than problems
    assert judges([{"step": 0, "eval/scores": [1.0]}] * 2) == []


def team(rng: np.random.Generator, **planted: Any) -> list[dict[str, Any]]:
    return simulate_team(120, rng, **planted)


def test_choices_that_go_to_one_place_are_found():
    rng = np.random.default_rng(0)
    fair, stuck = team(rng), team(rng, place=2)
    found = chooser(fair, stuck)
    assert found is not None
    assert (found.collapsed, found.always, found.position, found.candidates) == (True, False, 2, 3)
    assert found.role == "aggregator"
    always = chooser(stuck, stuck)
    assert always is not None
    assert (always.collapsed, always.always) == (False, True)
    healthy = chooser(fair, team(rng))
    assert healthy is not None
    assert (healthy.collapsed, healthy.always) == (False, False)
    counted = [episode | {"calls": episode["calls"][:-1]} for episode in stuck]  # votes: no role
    assert chooser(counted, counted) is None


def test_what_a_workflow_adds_is_over_its_own_members():
    rng = np.random.default_rng(1)
    chosen = loop_value(team(rng, skill=0.5), "generator")
    assert chosen is not None
    assert chosen.over == "single candidate"
    assert abs(chosen.mean) < 0.1  # it chooses at random
    assert candidate_role(team(rng)) == "generator"
    assert candidate_role([{"calls": []}]) == ""
    episodes = [
        {"problem": str(n), "score": float(n % 4 == 0), "calls": [],
         "facts": {"first_correct": n % 2 == 0}}
        for n in range(100)
    ]  # fmt: skip
    loop = loop_value(episodes)
    assert loop is not None
    assert (loop.over, loop.alone, loop.team) == ("first attempt", 0.5, 0.25)
    assert loop.high < 0
    assert loop_value(episodes[:1]) is None


def test_a_role_that_lost_its_skill_is_dead_though_the_team_gained():
    rng = np.random.default_rng(2)
    first, last = team(rng, skill=0.4), team(rng, skill=0.02, alone=0.7)
    dead = lost_skill(first, last, "generator", 0, 10)
    assert dead is not None
    assert dead.positive
    assert dead.before == pytest.approx(0.4, abs=0.1)
    alone = became_alone(first, last)
    assert alone is not None
    assert (alone.positive, alone.other) == (True, "aggregator")
    less = lost_skill(first, team(rng, skill=0.33), "generator", 0, 10)
    assert less is not None
    assert not less.positive
    assert lost_skill(first, last, "evaluator", 0, 10) is None
    assert lost_skill(first[:10], last[:10], "generator", 0, 10) is None


def test_a_role_that_says_the_same_or_copies_or_is_not_asked_is_found():
    rng = np.random.default_rng(3)
    first = team(rng)
    assert (same := became_constant(first, team(rng, constant=True), "generator")) is not None
    assert same.positive
    assert (varied := became_constant(first, team(rng), "generator")) is not None
    assert not varied.positive
    assert became_constant(team(rng, constant=True), first, "generator") is None  # few kinds
    copies = team(rng, copies=True)
    assert (copied := became_copy(first, copies, "aggregator")) is not None
    assert (copied.positive, copied.other) == (True, "generator_0")
    gone = [
        one | {"calls": [c for c in one["calls"] if c["role"] != "aggregator"]} for one in first
    ]
    assert no_longer_asked(first, gone, "aggregator").positive
    assert not no_longer_asked(first, first, "aggregator").positive


def test_a_role_is_compared_with_its_own_best():
    evaluations = [
        {"eval/role_score/a": v, "eval/role_score/b": 1 - v} for v in (0.2, 0.9, 0.4, 0.1)
    ]
    assert best_steps(evaluations, ["a", "b", "c"]) == {"a": 1, "b": 0}


def test_shares_by_hand():
    one = share_interval(0.8, 10)
    assert (one.low, one.high) == pytest.approx((0.4902, 0.9433), abs=1e-4)
    gap = share_change(share_interval(48 / 80, 80), share_interval(56 / 70, 70))
    assert gap == pytest.approx((0.2, 0.0524, 0.3339), abs=1e-4)  # Newcombe's own example
    assert findable(160, 0.2, 1 / 3) == pytest.approx(0.17, abs=0.02)
    assert findable(5, 0.2, 0.1) is None
