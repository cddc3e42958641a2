"""Drawn boards, and `flowzoo play` of a task by its name."""

import io

import pytest
from rich.console import Console

from flowzoo.cli import main
from flowzoo.envs import Episode, Problem, make_workflow
from flowzoo.envs import testing as suite
from flowzoo.envs.render import drawn, print_new
from flowzoo.envs.tasks import make_task

BOARD = "P#.\n..#\n..G"
PROBLEM = Problem("plan_path", "test", 0, 0, "", "[]", {"board": BOARD, "optimal": 4})


def shown(console: Console) -> str:
    file = console.file
    assert isinstance(file, io.StringIO)
    return file.getvalue()


def test_the_trail_of_a_path_is_drawn():
    task = make_task("plan_path", side=3)
    text = drawn(task.scene(PROBLEM, '["D","R","U","D"]')).plain
    assert text == "  • ██· \n  • • ██\n  · @ G "
    assert drawn(task.scene(PROBLEM, '["D","D","R","R"]')).plain.endswith("• • @ ")


def test_sudoku_entries_are_green_where_right_and_red_where_wrong():
    board = "1 0 0 4\n0 4 1 0\n2 1 4 3\n4 3 2 1"
    task, problem = make_task("sudoku"), Problem("sudoku", "test", 0, 0, "", "", {"board": board})
    scene = task.scene(problem, "[[0,1,2],[0,2,2]]")
    assert scene[0][1] == ("2 ", "green")
    assert ("2 ", "red") in scene[0]
    assert drawn(scene).plain.splitlines()[2] == "  ────┼─────"


@pytest.mark.parametrize("task", ["plan_path", "sokoban", "sudoku"])
@pytest.mark.parametrize("pace", [0.0, 0.001])
def test_an_episode_draws_its_world_at_the_start_and_after_a_plan(task, pace):
    workflow = make_workflow("single_v0", task)
    problem = workflow.task.problem(0)
    console = Console(file=io.StringIO(), force_terminal=pace > 0, color_system=None, width=80)
    episode = Episode(workflow, problem)
    count = print_new(episode, 0, console, pace=pace)
    start = drawn(workflow.task.scene(problem)).plain
    assert start.splitlines()[0].rstrip() in shown(console)
    episode.reply("generator_0", problem.gold)
    suite.advance(episode)
    before = len(shown(console))
    print_new(episode, count, console, pace=pace)
    end = drawn(workflow.task.scene(problem, problem.gold)).plain
    drawing = shown(console)[before:]
    for line in end.splitlines():
        assert line.rstrip() in drawing
    assert "score 1" in " ".join(drawing.split())
    if pace:
        frames = workflow.task.frames(None, problem.gold)
        middle = drawn(workflow.task.scene(problem, frames[0])).plain
        assert all(line.rstrip() in drawing for line in middle.splitlines())


def test_what_moves_nothing_is_not_drawn_again():
    workflow = make_workflow("single_v0", "sokoban")
    problem = workflow.task.problem(0)
    console = Console(file=io.StringIO(), width=80)
    episode = Episode(workflow, problem)
    episode.reply("generator_0", "I am not sure.")
    suite.advance(episode)
    print_new(episode, 0, console)
    assert shown(console).count("██" * 6) == 2  # top and bottom wall, once


@pytest.mark.parametrize("task", ["plan_path", "sokoban", "sudoku"])
def test_play_of_a_task_by_its_name(task, capsys):
    assert main(["play", task, "--policy", "scripted:1.0"]) == 0
    captured = capsys.readouterr()
    assert f"tool_planner_v0 · {task}/validation/0/" in captured.out
    assert "score 1" in " ".join(captured.out.split())
    (line,) = captured.err.splitlines()
    assert line.startswith("sandbox: ")


def test_a_pocket_model_plays_the_boards_it_was_made_for_and_says_so(capsys):
    pytest.importorskip("torch", reason="a pocket model needs flowzoo[train]")
    assert main(["play", "plan_path"]) == 0
    captured = capsys.readouterr()
    assert (
        captured.err.splitlines()[0] == "the pocket model plays plan_path with side=4 max_turns=2"
    )
    assert "plan_path/validation/0/4-0.22:0" in captured.out
    assert main(["play", "plan_path", "--options", "side=5", "max_turns=1"]) == 0
    captured = capsys.readouterr()
    assert captured.err.startswith("sandbox: ")
    assert "plan_path/validation/0/5-0.22:0" in captured.out


def test_two_tasks_are_a_contradiction(capsys):
    assert main(["play", "sokoban", "--task", "sudoku"]) == 2
    assert "play 'sokoban' names a task, and --task names 'sudoku'" in capsys.readouterr().err
