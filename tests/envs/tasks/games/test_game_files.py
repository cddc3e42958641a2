"""Worlds from files: every layout of a board, and bad rows by their line."""

import pickle
from pathlib import Path
from typing import Any

import pytest

from flowzoo.envs.tasks import make_task
from flowzoo.errors import DataError, UsageError
from tests.envs.playing import write_rows
from tests.tables import read_tables

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


def test_generator_options_and_files_exclude_one_another(tmp_path):
    data = write(tmp_path / "rows.jsonl", PUZZLE)
    with pytest.raises(UsageError, match="blanks=3 is for generated problems"):
        make_task("sudoku", data=data, blanks=3)
    with pytest.raises(UsageError, match=r"columns=.* describes a file"):
        make_task("sudoku", columns={"board": "x"})
    with pytest.raises(UsageError, match="unknown column key 'text'"):
        make_task("sudoku", data=data, columns={"text": "x"})
    with pytest.raises(UsageError, match="neither an existing file"):
        make_task("sudoku", data="absent.jsonl")
