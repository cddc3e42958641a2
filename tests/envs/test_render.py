"""Drawn boards, transcripts and pictures."""

import io
import sys
from typing import Any

import gymnasium
import numpy as np
import pytest
from processes import run_python
from rich.console import Console

import flowzoo  # noqa: F401 - registers the environments
from flowzoo.cli import main
from flowzoo.envs import Episode, Problem, make_env, make_workflow
from flowzoo.envs import render as picture
from flowzoo.envs import testing as suite
from flowzoo.envs.render import (
    LONGEST,
    RGB,
    TextLine,
    drawn,
    fold,
    picture_lines,
    print_new,
    printable,
    to_ansi,
)
from flowzoo.envs.tasks import make_task
from flowzoo.envs.tasks.code.task import fence
from flowzoo.envs.testing import HOSTILE, advance, play_out
from flowzoo.errors import MissingExtraError, UsageError

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
def test_an_episode_draws_its_world_at_the_start_and_after_a_plan(task):
    workflow = make_workflow("single_v0", task)
    problem = workflow.task.problem(0)
    console = Console(file=io.StringIO(), width=80)
    episode = Episode(workflow, problem)
    count = print_new(episode, 0, console)
    start = drawn(workflow.task.scene(problem)).plain
    assert start.splitlines()[0].rstrip() in shown(console)
    episode.reply("generator_0", problem.gold)
    suite.advance(episode)
    before = len(shown(console))
    print_new(episode, count, console)
    end = drawn(workflow.task.scene(problem, problem.gold)).plain
    drawing = shown(console)[before:]
    for line in end.splitlines():
        assert line.rstrip() in drawing
    assert "score 1" in " ".join(drawing.split())


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


SHAPE = (picture.HEIGHT, picture.WIDTH, 3)


def inked(frame: np.ndarray, color: str) -> int:
    """The number of pixels with exactly this color."""
    return int((frame == RGB[color]).all(-1).sum())


def test_frames_have_one_shape_and_change_with_every_phase():
    env = make_env("voting_v0", render_mode="rgb_array")
    env.reset(seed=0)
    frames = [env.render()]
    for text in ("one \\boxed{1}", "π ≤ √2 Ж", "x " * 4000, "\\boxed{2}"):
        env.step(text)
        frames.append(env.render())
    assert {(frame.shape, frame.dtype.name) for frame in frames} == {(SHAPE, "uint8")}
    assert np.array_equal(frames[0], frames[2])  # the phase is open: nothing is shown of it
    assert (frames[2] != frames[3]).any()
    assert (frames[3] != frames[4]).any()
    assert np.array_equal(frames[-1], env.render())
    assert inked(frames[-1], "red") > inked(frames[0], "red") == 0  # the verdict, in its color
    assert inked(frames[0], "cyan") > 0


def test_the_end_is_in_the_picture_however_long_the_episode_is():
    env = make_env("eval_opt_v0", render_mode="rgb_array", max_rounds=3)
    env.reset(seed=0)
    while not any(env.terminations.values()):
        env.step("line\n" * 60)
    lines = picture_lines(env.unwrapped.episode)
    assert len(lines) > 200
    assert inked(env.render(), "red") > 0


def test_text_is_folded_and_boards_keep_their_spaces():
    board = TextLine("#   @  #", "plain")
    assert fold(board, 10) == [board]
    pieces = fold(TextLine("word " * 50, "dim"), 40)
    assert max(len(piece.text) for piece in pieces) <= 40
    assert "".join(piece.text for piece in pieces) == "word " * 50
    assert fold(TextLine("", "dim"), 40) == [TextLine("", "dim")]


def test_the_other_faces_draw_too():
    env = gymnasium.make("flowzoo/Voting-v0", render_mode="rgb_array")
    env.reset(seed=0)
    assert env.render().shape == SHAPE
    from flowzoo import writing_pair_v0

    pair = writing_pair_v0.parallel_env(render_mode="rgb_array")
    pair.reset(seed=0)
    assert pair.render().shape == SHAPE


@pytest.mark.parametrize("module", picture.NEEDED)
def test_pictures_are_offered_where_they_can_be_drawn(module):
    code = (
        f"import sys; sys.modules[{module!r}] = None\n"
        "import gymnasium\n"
        "from flowzoo import voting_v0, writing_pair_v0\n"
        "for env in (voting_v0.env(), writing_pair_v0.parallel_env(),\n"
        "            gymnasium.make('flowzoo/Voting-v0')):\n"
        "    print(*env.metadata['render_modes'])\n"
    )
    assert run_python(code).splitlines() == ["human ansi"] * 3
    assert "rgb_array" in make_env("voting_v0").metadata["render_modes"]


@pytest.mark.parametrize("module", picture.NEEDED)
def test_what_is_missing_is_said_when_the_environment_is_made(module, monkeypatch):
    picture.picture_font.cache_clear()
    assert picture.can_draw()
    monkeypatch.setitem(sys.modules, module, None)
    assert not picture.can_draw()
    with pytest.raises(MissingExtraError, match=r"flowzoo\[report\]"):
        make_env("voting_v0", render_mode="rgb_array")
    with pytest.raises(UsageError, match="rgb_array"):
        make_env("voting_v0", render_mode="rgb")


def test_terminal_codes_and_surrogates_are_shown_not_sent():
    assert printable("a\x1b[31m\ud800\u202eb\n\t") == "a\\u001b[31m\\ud800\\u202eb\n\t"


def test_long_texts_lose_their_middle_and_say_so():
    shown = printable("a" * LONGEST + "b")
    assert "1 characters" in shown
    assert shown.endswith("b")
    assert printable("a" * LONGEST) == "a" * LONGEST


def test_the_transcript_grows_turn_by_turn():
    env = make_env("voting_v0", render_mode="ansi")
    env.reset(seed=0)
    before = env.render()
    assert before.count("--- generator_") == 3
    assert before.count("> …") == 3
    for text in ("\\boxed{1}", "", "[bold]x[/bold]", "\\boxed{2}"):
        env.step(text)
    after = env.render()
    assert "> [bold]x[/bold]" in after
    assert "> …" not in after
    assert after.splitlines()[-1].startswith("=== no answer; gold ")


def test_a_cut_off_episode_says_so():
    env = make_env("eval_opt_v0", render_mode="ansi", max_cycles=1)
    env.reset(seed=0)
    env.step("x")
    env.step("\\boxed{Incorrect}")
    assert "=== cut off by max_cycles; gold" in env.render()


def test_human_mode_prints_each_turn_once(capsys):
    env = make_env("single_v0", render_mode="human")
    env.reset(seed=0)
    env.step("the reply \\boxed{3}")
    env.render()
    shown = capsys.readouterr().out
    assert shown.count("the reply") == 1
    assert shown.count("read as 3") == 1
    assert shown.count("; gold ") == 1


def printed(name: str, *replies: tuple[str, str], **options: Any) -> str:
    """The printed text of an episode with these replies of agents, in one wide column."""
    workflow = make_workflow(name, **options)
    episode = Episode(workflow, workflow.task.problem(0))
    for agent, text in replies:
        episode.reply(agent, text)
        advance(episode)
    out = io.StringIO()
    print_new(episode, 0, Console(file=out, width=200))
    return out.getvalue()


def test_what_programs_print_and_searches_find_is_shown():
    programs = [("tool_0", fence(tool)) for tool in ("print('[  ]')", "1/0", "x = 1")]
    replies = (reply for program in programs for reply in (program, ("planner_0", "[]")))
    shown = printed("tool_planner_v0", *replies, max_turns=3)
    assert "the program printed: [ ]" in shown
    assert "the program failed: RE, exit code 1: ZeroDivisionError" in shown
    assert "the program printed nothing" in shown
    shown = printed(
        "search_team_v0",
        ("verifier_0", "<verify>no</verify>"),
        ("searcher_0", f"<search>{make_task('search', passages=300).problem(0).text}</search>"),
        ("verifier_0", "<verify>no</verify>"),
        ("searcher_0", "<search>zzz</search>"),
        ("answerer_0", ""),
        passages=300, max_turns=3,
    )  # fmt: skip
    assert shown.count("  found: ") == 3
    assert shown.index("  found: ") < shown.rindex("verifier_0")
    assert shown.count("nothing found") == 1
    assert shown.index("nothing found") < shown.index("answerer_0")


def test_runs_on_tests_are_not_shown():
    code, tests = fence("def f(x):\n    return x"), '[{"input": [1], "output": 1}]'
    shown = printed("coder_tester_v0", ("coder_0", code), ("tester_0", tests), max_turns=1)
    assert "program" not in shown.partition("tester_0")[2]


def test_the_end_shows_facts_and_cuts_long_answers():
    shown = printed("writing_pair_v0", ("writer_0", "a" * 500), ("writer_1", "b" * 500))
    assert "characters…" in shown.partition("\nanswer ")[2].splitlines()[0]
    assert shown.rstrip().splitlines()[-1].startswith("reward ")


@pytest.mark.parametrize(
    ("reply", "says"),
    [
        ("The result is \\boxed{7}.", "read as 7"),
        ("no box", "unreadable"),
        ("\\boxed{" + "1+" * 40 + "1}", ""),
    ],
)
def test_a_reading_is_shown_where_it_is_not_plain_to_see(reply, says):
    shown = printed("single_v0", ("generator_0", reply))
    last = [row for row in shown.splitlines() if row.startswith("╰")][-1]
    assert (says in last) if says else set(last) == set("╰─╯")


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE)
def test_hostile_replies_can_be_shown(text):
    workflow = make_workflow("single_v0")
    episode = Episode(workflow, workflow.task.problem(0))
    episode.reply("generator_0", text)
    play_out(episode)
    out = io.StringIO()
    console = Console(file=out, force_terminal=True, width=80)
    assert print_new(episode, 0, console, prompts=True) == 3
    assert print_new(episode, 3, console, prompts=True) == 3
    (out.getvalue() + to_ansi(episode)).encode()
    assert len(to_ansi(episode)) < 10_000
