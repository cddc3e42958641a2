"""Replies that lost their form, loop, or fit no prompt, and skills given what a role works with."""

import math
from typing import Any

import numpy as np
import pytest

from flowzoo.baselines.diagnostics.checkers import answering_role, loop_value
from flowzoo.baselines.diagnostics.roles import (
    began_looping,
    fits_no_prompt,
    is_looping,
    lost_form,
    never_read,
    never_right,
    own_score,
)


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
