from __future__ import annotations

import io

import pytest
from rich.console import Console

from flowzoo.envs import Episode, make_env, make_workflow
from flowzoo.envs.render import LONGEST, print_new, printable, to_ansi
from flowzoo.envs.testing import HOSTILE, play_out


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
