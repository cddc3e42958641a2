"""sudoku: one solution each, immutable clues, entries apart from the puzzle, reading of answers."""

import itertools
import json
import random

import pytest

from flowzoo.envs.tasks import Problem, make_task
from flowzoo.envs.tasks.games.sudoku import complete_grid, count_solutions, digits, solution_of
from tests.tables import read_tables

TABLES = read_tables(__file__)

BOARD = "1 0 0 4\n0 4 1 0\n2 1 4 3\n4 3 2 1"
GOLD = "[[0,1,2],[0,2,3],[1,0,3],[1,3,2]]"
SMALL = Problem("sudoku", "train", 0, 0, "", GOLD, {"board": BOARD})
TASK = make_task("sudoku", reward="shaped")


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
    assert TASK.answer(actions) == actions
    assert TASK.state(SMALL, actions) == board
    assert TASK.ended(SMALL, actions) == end
    assert dict(TASK.grade_batch([SMALL], [actions])[0].parts)["invalid"] == invalid


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
    text = TASK.prompt_at(SMALL, "[[0,1,3],[1,0,3]]")
    assert BOARD in text
    assert "Your entries so far: [[0,1,3],[1,0,3]]\n" in text
    assert "entries so far" not in TASK.prompt(SMALL)
    assert "entries so far" not in TASK.prompt_at(SMALL, "[[0,0,3]]")


def test_the_shaped_return_is_the_documented_sum():
    cases = {
        GOLD: 2.0,
        "[]": 0.0,
        "[[0,1,2],[0,2,1]]": 0.25,
        "[[0,1,2],[0,0,3]]": 0.25 - 0.1,
        "[[0,0,3]]": -0.1,
        "[[0,0,3],[0,1,2],[0,2,3],[1,0,3],[1,3,2]]": 1.9,
    }
    for actions, value in cases.items():
        grade = TASK.grade_batch([SMALL], [actions])[0]
        assert dict(grade.parts)["return"] == pytest.approx(value)
        assert grade.score == pytest.approx(max(0.0, value / 2))


@pytest.mark.parametrize(
    ("text", "strict", "lenient"),
    [
        *TABLES["read"],
        *((text, None, lenient) for text, lenient in TABLES["read_leniently"]),
        *((text, None, None) for text in TABLES["unread"]),
    ],
)
def test_reading(text, strict, lenient):
    assert TASK.answer(text) == strict
    assert TASK.answer_lenient(text) == lenient


def test_a_wrong_expert_makes_one_mistake():
    reply = TASK.solve(SMALL, random.Random(0), False)
    wrong, right = json.loads(reply), json.loads(GOLD)
    assert sum(a != b for a, b in zip(wrong, right, strict=True)) == 1
