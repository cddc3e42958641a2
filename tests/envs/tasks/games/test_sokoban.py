"""sokoban: moves and pushes, solvability, deadlocks, and that pushing off and on never pays."""

import random
from collections import deque

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flowzoo.envs.tasks import Problem, make_task
from flowzoo.envs.tasks.games.game import MOVES, moves_of, written
from flowzoo.envs.tasks.games.sokoban import SokobanLevel, bare, level_of

BOARD = "#####\n#@--#\n#-$.#\n#---#\n#####"
SMALL = Problem("sokoban", "train", 0, 0, "", '["D","R"]', {"board": BOARD, "optimal": 2})
TASK = make_task("sokoban", side=5, reward="shaped")


def least_moves(task, board: str) -> int | None:
    """Breadth-first search forwards, through the task's own moves, one at a time."""
    problem = Problem("sokoban", "train", 0, 0, "", "", {"board": board, "optimal": 1})
    seen, queue = {board}, deque([(board, 0)])
    while queue:
        board, count = queue.popleft()
        if "$" not in board:
            return count
        problem.meta["board"] = board  # type: ignore[index]
        for move in MOVES:
            after = task.state(problem, f'["{move}"]')
            if after not in seen:
                seen.add(after)
                queue.append((after, count + 1))
    return None


@pytest.mark.parametrize(
    ("moves", "board", "invalid", "end"),
    [
        ("", BOARD, 0, ""),
        ("DR", "#####\n#---#\n#-@*#\n#---#\n#####", 0, "solved"),
        ("DRR", "#####\n#---#\n#-@*#\n#---#\n#####", 1, "solved"),
        ("RD", "#####\n#---#\n#-@.#\n#-$-#\n#####", 0, "deadlock"),
        ("RRD", "#####\n#---#\n#-$+#\n#---#\n#####", 0, ""),
        ("RRDD", "#####\n#---#\n#-$.#\n#--@#\n#####", 0, ""),
        ("RRDL", "#####\n#---#\n#$@.#\n#---#\n#####", 0, "deadlock"),
        ("LU", BOARD, 2, ""),
        ("L" * 50 + "DR", BOARD, 50, "cap"),
    ],
)
def test_moves_and_pushes(moves, board, invalid, end):
    actions = written([*moves])
    assert TASK.state(SMALL, actions) == board
    assert TASK.ended(SMALL, actions) == end
    assert dict(TASK.grade_batch([SMALL], [actions])[0].parts)["invalid"] == invalid


def test_boxes_do_not_push_boxes_and_a_goal_under_a_box_stays():
    task = make_task("sokoban", side=6, boxes=2)
    board = "######\n#@$$-#\n#--..#\n#----#\n#----#\n######"
    problem = Problem("sokoban", "train", 0, 0, "", "", {"board": board, "optimal": 9})
    assert task.state(problem, '["R"]') == board
    board = "######\n#-@--#\n#-*--#\n#--*-#\n#----#\n######"
    problem = Problem("sokoban", "train", 0, 0, "", "", {"board": board, "optimal": 9})
    assert task.state(problem, '["D"]') == "######\n#----#\n#-+--#\n#-$*-#\n#----#\n######"


@pytest.mark.parametrize(("boxes", "count"), [(1, 60), (2, 15)])
def test_stored_lengths_are_the_least_that_forward_search_finds(boxes, count):
    task = make_task("sokoban", boxes=boxes)
    for index in range(count):
        problem = task.problem(index)
        assert len(moves_of(problem.gold)) == problem.meta["optimal"]
        assert least_moves(task, problem.meta["board"]) == problem.meta["optimal"]


def test_deadlocks_are_exact():
    """On all states reached by random moves, a deadlock is what forward search finds unsolvable."""
    task, rng, deadlocks = make_task("sokoban", side=5), random.Random(0), 0
    for index in range(60):
        problem = task.problem(index)
        actions = written([rng.choice(MOVES) for _ in range(12)])
        board = task.state(problem, actions)
        least = least_moves(task, board)
        level = level_of(bare(board))
        assert level.moves_left(level.state(board)) == (-1 if least is None else least)
        assert (task.ended(problem, actions) == "deadlock") == (least is None)
        deadlocks += least is None
    assert 5 < deadlocks < 55


def test_no_box_starts_on_a_goal_and_longest_is_kept():
    task = make_task("sokoban", boxes=2, longest=6)
    for index in range(100):
        problem = task.problem(index)
        assert "*" not in problem.meta["board"]
        assert 1 <= problem.meta["optimal"] <= 6
        assert problem.meta["board"].count("$") == 2


def test_states_are_numbered_both_ways():
    level = SokobanLevel("######\n#----#\n#-..-#\n#-#.-#\n#----#\n######")
    count = len(level.cells)
    for number in range(0, len(level.left), 7):
        state = level.numbered(number)
        if state.player in state.boxes:
            assert level.left[number] == -1
            continue
        board = level.draw(state, 6)
        assert level.state(board) == state
        assert level.moves_left(state) == level.left[number]
        assert bare(board) == "######\n#----#\n#-..-#\n#-#.-#\n#----#\n######"
    assert len(level.left) == count * (count * (count - 1) * (count - 2) // 6)


def test_the_shaped_return_is_the_documented_sum():
    cases = {"DR": 1.0 - 0.02 + 10.0, "DRR": 1.0 - 0.03 - 0.05 + 10.0, "RD": -0.02, "L": -0.06}
    for moves, value in cases.items():
        grade = TASK.grade_batch([SMALL], [written([*moves])])[0]
        assert dict(grade.parts)["return"] == pytest.approx(value)
        assert grade.score == pytest.approx(max(0.0, value / 10.98))


@settings(max_examples=200, deadline=None)
@given(st.integers(0, 300), st.text(MOVES, min_size=1, max_size=60), st.integers(1, 2))
def test_no_moves_earn_more_than_a_shortest_solution(index, moves, boxes):
    task = make_task("sokoban", boxes=boxes, reward="shaped")
    problem = task.problem(index, "all")
    solution = moves_of(problem.gold)
    plans = [written([*plan]) for plan in (moves, solution + moves, moves + solution)]
    for plan, grade in zip(plans, task.grade_batch([problem] * 3, plans), strict=True):
        assert grade.score < 1.0 or len(moves_of(plan)) == len(solution)


def test_pushing_off_a_goal_and_on_again_never_pays():
    board = "######\n#----#\n#@*--#\n#----#\n#----#\n######"
    problem = Problem("sokoban", "train", 0, 0, "", "", {"board": board, "optimal": 1})
    task = make_task("sokoban", reward="shaped")
    loop = "RURRDLULLD"  # off to the right, round the box, on again, back to the start
    once, twice = (written([*loop * times]) for times in (1, 2))
    assert task.state(problem, once) == board
    assert task.state(problem, '["R"]') == "######\n#----#\n#-+$-#\n#----#\n#----#\n######"
    first, second = (
        dict(g.parts)["return"] for g in task.grade_batch([problem] * 2, [once, twice])
    )
    assert second < first < 10.0
