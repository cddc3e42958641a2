"""Every task with a world: oracle, splits, prompts, files, and reading lists of actions."""

import json
import pickle
import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowzoo.envs.tasks import make_task, split_of
from flowzoo.envs.tasks.games.game import (
    MOST_ACTIONS,
    moves_of,
    written,
)
from flowzoo.envs.tasks.games.plan_path import PlanPathTask
from flowzoo.envs.tasks.games.sokoban import bare
from flowzoo.envs.testing import HOSTILE
from flowzoo.errors import DataError, UsageError
from tests.envs.playing import write_rows
from tests.tables import read_tables, readings

GAMES = [
    ("plan_path", {}),
    ("plan_path", {"side": 4, "density": 0.2}),
    ("sokoban", {}),
    ("sokoban", {"boxes": 2}),
    ("sokoban", {"side": 5}),
    ("sudoku", {}),
    ("sudoku", {"side": 9}),
]
games = pytest.mark.parametrize(("name", "options"), GAMES)


@pytest.mark.usual(4)
@pytest.mark.parametrize(
    ("name", "options"),
    [("plan_path", {}), ("sokoban", {}), ("sokoban", {"boxes": 3}), ("sudoku", {})],
)
def test_the_oracle_solves_a_thousand_of_a_thousand(name, options):
    task = make_task(name, **options)
    problems = [task.problem(index) for index in range(1000)]
    answers = [task.answer(task.solve(problem, random.Random(0), True)) for problem in problems]
    golds = [problem.gold for problem in problems]
    for rewarded in (task, make_task(name, reward="shaped", **options)):
        grades = rewarded.grade_batch(problems * 2, answers + golds)
        assert {(grade.status, grade.score) for grade in grades} == {("solved", 1.0)}


@games
def test_a_wrong_expert_is_readable_and_fails(name, options):
    task = make_task(name, **options)
    problems = [task.problem(index, "validation") for index in range(100)]
    replies = [task.solve(problem, random.Random(i), False) for i, problem in enumerate(problems)]
    grades = task.grade_batch(problems, [task.answer(reply) for reply in replies])
    assert {grade.status for grade in grades} == {"unsolved"}
    assert len(set(replies)) > 10


def test_no_complete_grid_of_one_sudoku_split_solves_a_puzzle_of_another():
    task = make_task("sudoku")
    solved = {
        split: {
            task.state(problem, problem.gold)
            for problem in (task.problem(index, split) for index in range(400))
        }
        for split in ("pretrain", "train", "validation", "test")
    }
    grids = [grid for group in solved.values() for grid in group]
    assert len(grids) == len(set(grids))
    # Enough draws to have met (nearly) all of the 288 grids of 4 x 4.
    assert 250 < len(grids) <= 288
    for split, group in solved.items():
        assert {split_of(grid.replace(" ", "").replace("\n", "")) for grid in group} == {split}


def test_no_level_of_one_sokoban_split_is_met_in_another():
    task = make_task("sokoban", side=5)
    levels = {
        split: {bare(task.problem(index, split).meta["board"]) for index in range(100)}
        for split in ("pretrain", "train", "validation", "test")
    }
    assert sum(map(len, levels.values())) == len(set().union(*levels.values())) > 40


@games
def test_the_prompt_shows_the_state_and_never_the_solution(name, options):
    task = make_task(name, **options)
    for index in range(30):
        problem = task.problem(index)
        plan = task.solve(problem, random.Random(0), True)
        step = written(json.loads(plan)[:1])
        before, after = task.prompt_at(problem, "[]"), task.prompt_at(problem, step)
        assert before == task.prompt(problem)
        assert problem.text in before
        assert before != after
        assert problem.gold not in before
        assert task.board_in(problem, before) == problem.meta["board"]
        assert task.board_in(problem, after) == task.state(problem, step)


@games
def test_actions_of_several_turns_are_one_list_after_the_other(name, options):
    task = make_task(name, reward="shaped", **options)
    for index in range(20):
        problem = task.problem(index)
        plan = task.solve(problem, random.Random(index), True)
        actions = json.loads(plan)
        assert not task.ended(problem)
        assert task.ended(problem, plan) == "solved"
        half = written(actions[: len(actions) // 2 + 1])
        rest = task.plan(problem, task.state(problem, half), random.Random(0), True)
        assert task.ended(problem, task.join(half, rest)) == "solved"
        assert task.solves(problem, task.state(problem, half), [rest, "[]"]) == [
            True,
            task.ended(problem, half) == "solved",
        ]


@games
@pytest.mark.parametrize("reward", ["sparse", "shaped"])
def test_hostile_answers_are_scored(name, options, reward):
    task = make_task(name, reward=reward, **options)
    problem = task.problem(0)
    texts = [*HOSTILE.values(), "[[0,0,99]]", "[[0,0,-1]]", "[[0,0,1.0]]", "[[true,0,1]]", "[null]"]
    assert {task.answer(text) for text in texts} == {None}
    answers = [None, "", "x", "[", '["X"]', "[[0]]", "[[0,0]]", "[[0,0,\u0663]]", "[[9,9,9]]"]
    grades = task.grade_batch([problem] * len(answers), answers)
    assert all(0 <= grade.score < 1 and grade.status in ("none", "unsolved") for grade in grades)
    assert grades[0] == (0.0, "none", ())


def test_a_world_too_small_for_a_split_says_so():
    # One move cannot bring two boxes home.
    tiny = make_task("sokoban", side=5, boxes=2, longest=1)
    with pytest.raises(UsageError, match=r"no problem for split 'test' in .* draws"):
        tiny.problem(0, "test")


TASK = PlanPathTask()


@pytest.mark.parametrize(("mode", "text", "answer"), readings(read_tables(__file__)))
def test_strict_takes_the_last_json_list_and_lenient_letters_and_words(mode, text, answer):
    assert (TASK.answer if mode == "strict" else TASK.answer_lenient)(text) == answer


def test_bounds_are_kept():
    assert TASK.answer(written(["U"] * MOST_ACTIONS)) is not None
    assert TASK.answer(written(["U"] * (MOST_ACTIONS + 1))) is None
    assert TASK.answer_lenient(f"[{'U' * (MOST_ACTIONS + 1)}]") is None
    assert TASK.answer("[" * 100_000 + '"U"' + "]" * 100_000) is None


@pytest.mark.parametrize("text", [*HOSTILE.values(), "[" + "9" * 10_000 + "]", "```" * 30_000])
def test_hostile_texts_are_unreadable(text):
    assert TASK.answer(text) is None
    assert TASK.answer_lenient(text) is None


@given(st.text(alphabet='UDLRudlr[]",` \n{}', max_size=40))
def test_what_is_read_is_canonical_and_reads_as_itself(text):
    for answer in (TASK.answer(text), TASK.answer_lenient(text)):
        if answer is not None:
            assert TASK.is_canonical(answer)
            assert TASK.answer(answer) == TASK.answer_lenient(answer) == answer


@given(st.lists(st.text("UDLR", max_size=4)))
def test_joined_lists_are_the_list_of_all(parts):
    lists = [written([*part]) for part in parts]
    assert json.loads(TASK.join(*lists)) == [move for part in parts for move in part]
    assert moves_of(TASK.join(*lists)) == "".join(parts)


PUZZLE = "1004041021434321"
LEVEL = "#####\n#@--#\n#-$.#\n#---#\n#####"


def write(path: Path, *values: Any, column: str = "board") -> str:
    return write_rows(path, *({column: value} for value in values))


def test_a_file_of_grids_is_played(tmp_path):
    data = write(tmp_path / "grids.jsonl", "P#.\n..#\n..G", ["G..", ".#.", "P.."])
    task = make_task("plan_path", side=3, data=data)
    assert task.size("all") == 2
    first, second = (task.problem(index, "all") for index in range(2))
    assert first.id == "plan_path/all/0/grids.jsonl:0"
    assert first.meta["row"] == 1
    assert first.meta["optimal"] == 4
    assert second.gold == '["U","U"]'
    assert "P#.\n..#\n..G" in task.prompt(first)
    grades = task.grade_batch([first, second], [first.gold, second.gold])
    assert [grade.status for grade in grades] == ["solved", "solved"]
    assert sum(task.size(split) or 0 for split in ("pretrain", "train", "validation", "test")) == 2
    assert pickle.loads(pickle.dumps(task)).problem(1, "all") == second
    with pytest.raises(
        UsageError, match="expected at least 0 and below 2, the size of split 'all'"
    ):
        task.problem(2, "all")


def test_levels_and_puzzles_in_their_usual_writings(tmp_path):
    data = write(tmp_path / "levels.jsonl", LEVEL.replace("-", " "), LEVEL)
    task = make_task("sokoban", side=5, data=data)
    assert task.problem(0, "all").meta["board"] == LEVEL
    assert task.problem(1, "all").meta["optimal"] == 2
    spaced = "1 0 | 0 4\n0 4 | 1 0\n2 1 | 4 3\n4 3 | 2 1"
    data = write(tmp_path / "p.jsonl", PUZZLE, PUZZLE.replace("0", "."), spaced, column="puzzle")
    task = make_task("sudoku", data=data, columns={"board": "puzzle"})
    boards = {task.problem(index, "all").text for index in range(3)}
    assert len(boards) == 1
    problem = task.problem(0, "all")
    assert task.grade_batch([problem], [problem.gold])[0].score == 1.0


def test_boxes_on_goals_at_the_start_are_scored_by_the_boxes_that_are_not(tmp_path):
    board = "######\n#@-*-#\n#-$.-#\n#----#\n#----#\n######"
    task = make_task("sokoban", data=write(tmp_path / "l.jsonl", board), reward="shaped")
    problem = task.problem(0, "all")
    assert task.grade_batch([problem], [problem.gold])[0].score == 1.0


@pytest.mark.parametrize(
    ("name", "options", "board", "message"),
    [
        *read_tables(__file__)["bad"],
        ("plan_path", {"side": 3}, None, "line 2: column 'board': expected a board as text"),
    ],
)
def test_bad_rows_name_their_line(tmp_path, name, options, board, message):
    good = {"plan_path": "P..\n...\n..G", "sokoban": LEVEL, "sudoku": PUZZLE}[name]
    data = write(tmp_path / "rows.jsonl", good, board)
    with pytest.raises(DataError, match=f"rows.jsonl, {message}"):
        make_task(name, data=data, **options)


def test_a_level_whose_solution_exceeds_the_moves_is_refused(tmp_path):
    board = "#######\n##@#--#\n##-$$-#\n#.-$-.#\n#-#-#-#\n#---.-#\n#######"
    data = write(tmp_path / "levels.jsonl", board)
    with pytest.raises(DataError, match="line 1: the shortest solution has 120 moves, but at most"):
        make_task("sokoban", side=7, data=data)
