"""The rules of plan_path, sokoban and sudoku: moves, solvers, rewards that no detour raises."""

import itertools
import json
import random
import re
import statistics
from collections import deque

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flowzoo.envs.tasks import Problem, make_task
from flowzoo.envs.tasks.games.game import MOVES, moves_of, written
from flowzoo.envs.tasks.games.plan_path import neighbors
from flowzoo.envs.tasks.games.sokoban import bare, level_of
from flowzoo.envs.tasks.games.sudoku import complete_grid, count_solutions, digits, solution_of
from tests.tables import read_tables

GRID = Problem(
    "plan_path", "train", 0, 0, "", '["D","D","R","R"]', {"board": "P#.\n..#\n..G", "optimal": 4}
)
PATH_TASK = make_task("plan_path", side=3, reward="shaped")


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
    assert PATH_TASK.state(GRID, actions) == board
    grade = PATH_TASK.grade_batch([GRID], [actions])[0]
    assert (grade.status, dict(grade.parts)["invalid"]) == (status, invalid)
    ended = {"solved": "solved"}.get(status, "cap" if len(plan) >= PATH_TASK.cap else "")
    assert PATH_TASK.ended(GRID, actions) == ended


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
    text = PATH_TASK.prompt_at(GRID, '["D","D"]')
    assert ".#.\n..#\nP.G" in text
    assert "You are at row 2, column 0; the goal is at row 2, column 2." in text
    assert "P#." not in text


LEVEL_BOARD = "#####\n#@--#\n#-$.#\n#---#\n#####"
LEVEL = Problem("sokoban", "train", 0, 0, "", '["D","R"]', {"board": LEVEL_BOARD, "optimal": 2})
SOKOBAN_TASK = make_task("sokoban", side=5, reward="shaped")


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
        ("", LEVEL_BOARD, 0, ""),
        ("DR", "#####\n#---#\n#-@*#\n#---#\n#####", 0, "solved"),
        ("DRR", "#####\n#---#\n#-@*#\n#---#\n#####", 1, "solved"),
        ("RD", "#####\n#---#\n#-@.#\n#-$-#\n#####", 0, "deadlock"),
        ("RRD", "#####\n#---#\n#-$+#\n#---#\n#####", 0, ""),
        ("RRDD", "#####\n#---#\n#-$.#\n#--@#\n#####", 0, ""),
        ("RRDL", "#####\n#---#\n#$@.#\n#---#\n#####", 0, "deadlock"),
        ("LU", LEVEL_BOARD, 2, ""),
        ("L" * 50 + "DR", LEVEL_BOARD, 50, "cap"),
    ],
)
def test_moves_and_pushes(moves, board, invalid, end):
    actions = written([*moves])
    assert SOKOBAN_TASK.state(LEVEL, actions) == board
    assert SOKOBAN_TASK.ended(LEVEL, actions) == end
    assert dict(SOKOBAN_TASK.grade_batch([LEVEL], [actions])[0].parts)["invalid"] == invalid


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


@settings(max_examples=200, deadline=None)
@given(st.integers(0, 300), st.text(MOVES, min_size=1, max_size=60), st.integers(1, 2))
def test_no_moves_earn_more_than_a_shortest_solution(index, moves, boxes):
    task = make_task("sokoban", boxes=boxes, reward="shaped")
    problem = task.problem(index, "all")
    solution = moves_of(problem.gold)
    plans = [written([*plan]) for plan in (moves, solution + moves, moves + solution)]
    for plan, grade in zip(plans, task.grade_batch([problem] * 3, plans), strict=True):
        assert grade.score < 1.0 or len(moves_of(plan)) == len(solution)


TABLES = read_tables(__file__)

PUZZLE_BOARD = "1 0 0 4\n0 4 1 0\n2 1 4 3\n4 3 2 1"
GOLD = "[[0,1,2],[0,2,3],[1,0,3],[1,3,2]]"
PUZZLE = Problem("sudoku", "train", 0, 0, "", GOLD, {"board": PUZZLE_BOARD})
SUDOKU_TASK = make_task("sudoku", reward="shaped")


def plain(board: str) -> str:
    return board.replace(" ", "").replace("\n", "")


def all_solutions(puzzle: str) -> list[str]:
    """Solutions of a 4 x 4 puzzle by trying every completion, row by row."""
    rows = list(itertools.permutations("1234"))
    fits = [
        [
            row
            for row in rows
            if all(c in ("0", r) for c, r in zip(puzzle[i * 4 :], row, strict=False))
        ]
        for i in range(4)
    ]
    results = []
    for grid in itertools.product(*fits):
        boxes = [
            {grid[r + a][c + b] for a in (0, 1) for b in (0, 1)} for r in (0, 2) for c in (0, 2)
        ]
        if all(len(set(part)) == 4 for part in (*zip(*grid, strict=True), *boxes)):
            results.append("".join(map("".join, grid)))
    return results


@pytest.mark.parametrize(("side", "seeds"), [(4, 300), (9, 300)])
def test_every_puzzle_of_many_seeds_has_exactly_one_solution(side, seeds):
    for seed in range(seeds):
        task = make_task("sudoku", side=side, seed=seed)
        problem = task.problem(0)
        puzzle = plain(problem.meta["board"])
        assert puzzle.count("0") == task.blanks == len(json.loads(problem.gold))
        assert count_solutions(puzzle, side) == 1
        assert task.ended(problem, problem.gold) == "solved"


def test_the_solver_agrees_with_trying_everything():
    rng = random.Random(0)
    for seed in range(40):
        grid = digits(complete_grid(4, seed))
        puzzle = "".join("0" if rng.random() < 0.65 else digit for digit in grid)
        results = all_solutions(puzzle)
        assert grid in results
        assert count_solutions(puzzle, 4, most=1000) == len(results)
        assert solution_of(puzzle, 4) in results
    assert count_solutions("11" + "0" * 14, 4) == 0
    assert solution_of("11" + "0" * 14, 4) == "0" * 16
    assert count_solutions("0" * 16, 4, most=1000) == 288


@pytest.mark.parametrize(("actions", "board", "invalid", "end"), TABLES["entries"])
def test_entries(actions, board, invalid, end):
    assert SUDOKU_TASK.answer(actions) == actions
    assert SUDOKU_TASK.state(PUZZLE, actions) == board
    assert SUDOKU_TASK.ended(PUZZLE, actions) == end
    assert dict(SUDOKU_TASK.grade_batch([PUZZLE], [actions])[0].parts)["invalid"] == invalid


def test_a_complete_grid_with_an_edited_clue_is_not_solved():
    """For every clue of generated puzzles, the solution with that clue changed is rejected."""
    task = make_task("sudoku")
    for index in range(20):
        problem = task.problem(index)
        clues = plain(problem.meta["board"])
        solved = plain(task.state(problem, problem.gold))
        for cell, clue in enumerate(clues):
            if clue == "0":
                continue
            edited = [int(digit) for digit in solved]
            edited[cell] = edited[cell] % 4 + 1
            text = json.dumps([edited[row : row + 4] for row in range(0, 16, 4)])
            grade = task.grade_batch([problem], [task.answer(text)])[0]
            assert (grade.score, grade.status) == (0.0, "unsolved")


def test_entries_are_shown_apart_from_the_puzzle():
    text = SUDOKU_TASK.prompt_at(PUZZLE, "[[0,1,3],[1,0,3]]")
    assert PUZZLE_BOARD in text
    assert "Your entries so far: [[0,1,3],[1,0,3]]\n" in text
    assert "entries so far" not in SUDOKU_TASK.prompt(PUZZLE)
    assert "entries so far" not in SUDOKU_TASK.prompt_at(PUZZLE, "[[0,0,3]]")


@pytest.mark.parametrize(
    ("text", "strict", "lenient"),
    [
        *TABLES["read"],
        *((text, None, lenient) for text, lenient in TABLES["read_leniently"]),
        *((text, None, None) for text in TABLES["unread"]),
    ],
)
def test_reading(text, strict, lenient):
    assert SUDOKU_TASK.answer(text) == strict
    assert SUDOKU_TASK.answer_lenient(text) == lenient


def test_a_wrong_expert_makes_one_mistake():
    reply = SUDOKU_TASK.solve(PUZZLE, random.Random(0), False)
    wrong, right = json.loads(reply), json.loads(GOLD)
    assert sum(a != b for a, b in zip(wrong, right, strict=True)) == 1


SHAPED = [
    *((PATH_TASK, GRID, written([*moves]), value, 4 / 6 - 0.04 + 1.5) for moves, value in {
        "DDRR": 4 / 6 - 0.04 + 1.0 + 0.5, "DUDDRR": 4 / 6 - 0.06 + 1.0,
        "DDRRR": 4 / 6 - 0.05 - 0.1 + 1.0, "DR": 2 / 6 - 0.02, "R": -0.01 - 0.1,
    }.items()),
    *((SOKOBAN_TASK, LEVEL, written([*moves]), value, 10.98) for moves, value in {
        "DR": 1.0 - 0.02 + 10.0, "DRR": 1.0 - 0.03 - 0.05 + 10.0, "RD": -0.02, "L": -0.06,
    }.items()),
    *((SUDOKU_TASK, PUZZLE, entries, value, 2.0) for entries, value in {
        GOLD: 2.0, "[]": 0.0, "[[0,1,2],[0,2,1]]": 0.25, "[[0,1,2],[0,0,3]]": 0.25 - 0.1,
        "[[0,0,3]]": -0.1, "[[0,0,3],[0,1,2],[0,2,3],[1,0,3],[1,3,2]]": 1.9,
    }.items()),
]  # fmt: skip


@pytest.mark.parametrize(("task", "problem", "actions", "value", "best"), SHAPED)
def test_the_shaped_return_is_the_documented_sum(task, problem, actions, value, best):
    grade = task.grade_batch([problem], [actions])[0]
    assert dict(grade.parts)["return"] == pytest.approx(value)
    assert grade.score == pytest.approx(max(0.0, value / best))


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
