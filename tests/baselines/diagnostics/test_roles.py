"""Checking roles that stopped looking and roles that died, planted into rows and episodes."""

import math
from typing import Any

import numpy as np
import pytest

from flowzoo.agents.evaluation.intervals import share_interval
from flowzoo.baselines.diagnostics.checkers import (
    answering_role,
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
    began_looping,
    best_steps,
    fits_no_prompt,
    is_looping,
    lost_form,
    lost_skill,
    never_read,
    never_right,
    no_longer_asked,
    own_score,
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


# -- form, loops, and skills given what a role works with ------------------------------------------


def evaluations(course: list[float], measure: str = "strict", calls: int = 120) -> list[Any]:
    return [
        {
            "step": 2 * index, "eval/scores": [0.5] * 120, f"eval/{measure}/solver": share,
            "eval/calls/solver": calls,
        }
        for index, share in enumerate(course)
    ]  # fmt: skip


def episode(number: int, reply: str, **call: Any) -> dict[str, Any]:
    text = f"Compute {number}*7-{number + 3}."
    base = {"role": "solver", "turn": 0, "role_score": 0.0}
    return {"problem": str(number), "text": text, "score": 0.0, "facts": {},
            "calls": [base | {"reply": reply} | call]}  # fmt: skip


@pytest.mark.parametrize(
    ("course", "called"),
    [
        ([0.98, 0.99, 0.95, 0.40], True),
        ([0.98, 0.99, 0.95, 0.90], False),  # 9 points
        ([0.30, 0.35, 0.32, 0.28], False),  # never better
    ],
)
def test_a_form_is_lost_by_twenty_points_that_are_no_chance(course, called):
    shift = lost_form(evaluations(course), "solver", comparisons=9)
    assert shift is not None
    assert shift.positive is called
    assert shift.low < shift.after - shift.before < shift.high


def test_few_calls_say_nothing_of_a_form():
    assert lost_form(evaluations([1.0, 0.0], calls=10), "solver", 1) is None


LOOPS = ("0" * 60, "\ud800" * 60, "I think " * 12, "x" + "ab\n" * 30,
         "2*2=4. " * 10 + "\\boxed{4}")  # fmt: skip
SOUND = (
    "", "4", "ha ha ha", "7*8=56. 56-51=5. \\boxed{5}",
    "First 12 bags, then 12 rolls, then 12 more: 12 + 12 + 12 = 36, so the answer is 36.",
    "-" * 40 + " a table of three rows and no more than that, read from left to right",
)  # fmt: skip


@pytest.mark.parametrize("reply", [*LOOPS, *SOUND])
def test_loops_are_seen(reply):
    assert is_looping(reply) == (reply in LOOPS)


def test_a_role_that_began_to_loop_is_called():
    sound = [episode(n, f"{n}*7={7 * n}.") for n in range(40)]
    loops = [episode(n, "again " * 20 if n % 2 else f"{n}*7={7 * n}.") for n in range(40)]
    shift = began_looping(sound, loops, "solver")
    assert shift is not None
    assert shift.positive
    assert (shift.before, shift.after) == (0.0, 0.5)
    unchanged = began_looping(loops, loops, "solver")
    assert unchanged is not None
    assert not unchanged.positive


def test_wrong_replies_that_tell_nothing_of_their_problem_are_called():
    rng = np.random.default_rng(0)
    own = [episode(n, f"{n}*7={7 * n}, less {n + 3}") for n in range(60)]
    other = [episode(n, f"{rng.integers(60)}*7 is 12") for n in range(60)]
    shift = fits_no_prompt(own, other, "solver")
    assert shift is not None
    assert shift.positive
    assert shift.before > 0.9 > 0.2 > shift.after
    right = [episode(n, "\\boxed{12}", role_score=1.0) for n in range(60)]
    terse = fits_no_prompt(own, right, "solver")  # terse and right: it depends on the problem
    assert terse is not None
    assert not terse.positive


@pytest.mark.parametrize(
    ("role", "facts", "score"),
    [
        ("aggregator", {"any_correct": True}, 0.0),
        ("aggregator", {"any_correct": False}, None),
        ("answerer", {"evidence": False}, None),
        ("orchestrator", {}, None),
        ("generator", {"any_correct": False}, 0.0),
        ("aggregator", {}, 0.0),  # a workflow of another kind
    ],
)
def test_a_role_is_judged_by_what_it_had_to_work_with(role, facts, score):
    assert own_score({"facts": facts}, {"role": role, "role_score": 0.0}) == score


@pytest.mark.parametrize(("top", "dead"), [(0.0, True), (0.04, True), (0.3, False)])
def test_roles_that_were_dead_from_the_start(top, dead):
    course = [0.0, top, 0.0]
    unread = never_read(evaluations(course), "solver")
    wrong = never_right(evaluations(course, "role_score"), "solver")
    assert unread is not None
    assert wrong is not None
    assert (unread.positive, wrong.positive) == (dead, dead)
    assert never_right(evaluations(course, "role_score"), "orchestrator") is None
    barren = [row | {"eval/fact/any_correct": 0.0, "eval/role_score/aggregator": 0.0,
                     "eval/calls/aggregator": 120}
              for row in evaluations(course)]  # fmt: skip
    assert never_right(barren, "aggregator") is None  # there was nothing to be right with


@pytest.mark.parametrize(("score", "dead"), [(0.002, True), (0.04, False)])
def test_an_aggregator_is_judged_where_a_candidate_was_right(score, dead):
    # 100 of 500 episodes have a right candidate: 0.04 of all is a fifth of those.
    rows = [
        {"step": step, "eval/scores": [0.0] * 500, "eval/fact/any_correct": 0.2,
         "eval/calls/aggregator": 500, "eval/role_score/aggregator": score}
        for step in (0, 10, 20)
    ]  # fmt: skip
    few = [row | {"eval/fact/any_correct": 0.02} for row in rows]
    assert never_right([*few, rows[0]], "aggregator") is None  # in 10 episodes
    wrong = never_right([*rows, *few], "aggregator")
    assert wrong is not None
    assert (wrong.positive, wrong.n) == (dead, 300)
    assert wrong.before == pytest.approx(score / 0.2)
    unknown = [{**row, "eval/role_score/aggregator": math.nan} for row in rows]
    assert never_right(unknown, "aggregator") is None


def test_later_turns_are_compared_with_the_first():
    rows = []
    for number in range(60):
        turns = [1.0, 0.0] if number % 10 else [1.0]
        rows.append(
            {
                "problem": str(number), "score": turns[-1], "facts": {},
                "calls": [{"role": "coder", "turn": turn, "role_score": score, "phase": turn}
                          for turn, score in enumerate(turns)],
            }
        )  # fmt: skip
    assert answering_role(rows) == "coder"
    value = loop_value(rows, "", "coder")
    assert value is not None
    assert value.over == "first attempt"
    assert (value.alone, round(value.team, 3)) == (1.0, 0.1)
    assert value.high < 0
