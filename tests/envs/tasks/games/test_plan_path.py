"""plan_path: the generator's statistics, moves, and that no detour pays."""

import random
import re
import statistics

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flowzoo.envs.tasks import Problem, make_task
from flowzoo.envs.tasks.games.game import MOVES, moves_of, written
from flowzoo.envs.tasks.games.plan_path import neighbors

SMALL = Problem(
    "plan_path", "train", 0, 0, "", '["D","D","R","R"]', {"board": "P#.\n..#\n..G", "optimal": 4}
)
TASK = make_task("plan_path", side=3, reward="shaped")


def test_the_published_statistics_are_met():
    task = make_task("plan_path")
    problems = [task.problem(index, "all") for index in range(3000)]
    assert {problem.meta["board"].count("#") for problem in problems} == {22}
    lengths = [problem.meta["optimal"] for problem in problems]
    # Standard error of the mean: 0.07; over 60,000 instances it is 7.84.
    assert statistics.mean(lengths) == pytest.approx(7.9, abs=0.15)
    assert min(lengths) == 2


@pytest.mark.parametrize(
    ("plan", "board", "invalid", "status"),
    [
        ("", "P#.\n..#\n..G", 0, "unsolved"),
        ("DDRR", ".#.\n..#\n..+", 0, "solved"),
        ("DDRRL", ".#.\n..#\n.PG", 0, "unsolved"),
        ("RUL", "P#.\n..#\n..G", 3, "unsolved"),
        ("DRR", ".#.\n.P#\n..G", 1, "unsolved"),
        ("DDRRR", ".#.\n..#\n..+", 1, "solved"),
        ("DDRR" + "R" * 20, ".#.\n..#\n..+", 14, "solved"),
        ("UUUUUUUUUUUUUUUUUUDDRR", "P#.\n..#\n..G", 18, "unsolved"),
    ],
)
def test_moves(plan, board, invalid, status):
    """Only the final cell counts; walls stop; nothing moves after the cap of 18."""
    actions = written([*plan])
    assert TASK.state(SMALL, actions) == board
    grade = TASK.grade_batch([SMALL], [actions])[0]
    assert (grade.status, dict(grade.parts)["invalid"]) == (status, invalid)
    ended = {"solved": "solved"}.get(status, "cap" if len(plan) >= TASK.cap else "")
    assert TASK.ended(SMALL, actions) == ended


def test_the_shaped_return_is_the_documented_sum():
    cases = {
        "DDRR": 4 / 6 - 0.04 + 1.0 + 0.5,
        "DUDDRR": 4 / 6 - 0.06 + 1.0,
        "DDRRR": 4 / 6 - 0.05 - 0.1 + 1.0,
        "DR": 2 / 6 - 0.02,
        "R": -0.01 - 0.1,
    }
    best = 4 / 6 - 0.04 + 1.5
    for plan, value in cases.items():
        grade = TASK.grade_batch([SMALL], [written([*plan])])[0]
        assert dict(grade.parts)["return"] == pytest.approx(value)
        assert grade.score == pytest.approx(max(0.0, value / best))


def loop_from(board: str, cell: int, moves: str, side: int) -> str:
    """A loop from `cell`: the moves of `moves` that a wall does not stop, and the way back."""
    marks, there = board.replace("\n", ""), ""
    for move in moves:
        to = neighbors(side)[cell].get(move)
        if to is not None and marks[to] != "#":
            cell, there = to, there + move
    return there + "".join({"U": "D", "D": "U", "L": "R", "R": "L"}[m] for m in reversed(there))


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_no_looping_plan_earns_what_a_shortest_one_does(data):
    """A loop never adds, wherever it is put; and what is no shortest plan earns less than one."""
    task = make_task("plan_path", side=data.draw(st.sampled_from([3, 5, 10])), reward="shaped")
    problem = task.problem(data.draw(st.integers(0, 500)), "all")
    best = moves_of(task.solve(problem, random.Random(data.draw(st.integers(0, 5))), True))
    begin = best[: data.draw(st.integers(0, len(best)))]
    cell = re.search(r"[P+]", task.state(problem, written([*begin])).replace("\n", "")).start()
    wander = data.draw(st.text(MOVES, min_size=1, max_size=40))
    loop = loop_from(problem.meta["board"], cell, wander, task.side)
    loop = loop or wander[0]  # walled in on that side: a move that changes nothing
    endless = begin + loop * 100
    plans = [best, begin, begin + loop, endless, begin + wander, begin + loop + best[len(begin) :]]
    grades = task.grade_batch([problem] * 6, [written([*plan]) for plan in plans])
    returns = [dict(grade.parts)["return"] for grade in grades]
    assert grades[0].score == 1.0
    if len(begin + loop) <= task.cap:  # else it is no loop any more: its end is not walked
        assert returns[2] < returns[1]
    assert returns[3] < returns[0]
    assert returns[5] < returns[0]
    for plan, grade in zip(plans[1:], grades[1:], strict=True):
        shortest = grade.status == "solved" and len(plan) == len(best)
        assert shortest == (grade.score == 1.0)


def test_the_prompt_shows_where_p_is_now():
    text = TASK.prompt_at(SMALL, '["D","D"]')
    assert ".#.\n..#\nP.G" in text
    assert "You are at row 2, column 0; the goal is at row 2, column 2." in text
    assert "P#." not in text
