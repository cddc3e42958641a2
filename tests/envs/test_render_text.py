import io

import pytest
from rich.console import Console

from flowzoo.envs import Episode, make_env, make_workflow
from flowzoo.envs.render import LONGEST, print_new, printable, to_ansi
from flowzoo.envs.testing import HOSTILE, advance, play_out


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


def printed(episode):
    """The printed text of a finished episode, in one wide column."""
    out = io.StringIO()
    print_new(episode, 0, Console(file=out, width=200))
    return out.getvalue()


def test_what_programs_print_and_searches_find_is_shown():
    workflow = make_workflow("tool_planner_v0", max_turns=3)
    episode = Episode(workflow, workflow.task.problem(0))
    for tool in ("print('[  ]')", "1/0", "x = 1"):
        episode.reply("tool_0", f"```python\n{tool}\n```")
        advance(episode)
        episode.reply("planner_0", "[]")
        advance(episode)
    shown = printed(episode)
    assert "the program printed: [ ]" in shown
    assert "the program failed: RE, exit code 1: ZeroDivisionError" in shown
    assert "the program printed nothing" in shown
    search = make_workflow("search_team_v0", passages=300, max_turns=3)
    episode = Episode(search, search.task.problem(0))
    for agent, text in (
        ("verifier_0", "<verify>no</verify>"),
        ("searcher_0", f"<search>{episode.problem.text}</search>"),
        ("verifier_0", "<verify>no</verify>"),
        ("searcher_0", "<search>zzz</search>"),
        ("answerer_0", ""),
    ):
        episode.reply(agent, text)
        advance(episode)
    shown = printed(episode)
    assert shown.count("  found: ") == 3
    assert shown.index("  found: ") < shown.rindex("verifier_0")
    assert shown.count("nothing found") == 1
    assert shown.index("nothing found") < shown.index("answerer_0")


def test_runs_on_tests_are_not_shown():
    workflow = make_workflow("coder_tester_v0", max_turns=1)
    episode = Episode(workflow, workflow.task.problem(0))
    episode.reply("coder_0", "```python\ndef f(x):\n    return x\n```")
    episode.reply("tester_0", '[{"input": [1], "output": 1}]')
    advance(episode)
    assert "program" not in printed(episode).partition("tester_0")[2]


def test_the_end_shows_facts_and_cuts_long_answers():
    workflow = make_workflow("writing_pair_v0")
    episode = Episode(workflow, workflow.task.problem(0))
    episode.reply("writer_0", "a" * 500)
    episode.reply("writer_1", "b" * 500)
    advance(episode)
    shown = printed(episode)
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
    workflow = make_workflow("single_v0")
    episode = Episode(workflow, workflow.task.problem(0))
    episode.reply("generator_0", reply)
    advance(episode)
    last = [row for row in printed(episode).splitlines() if row.startswith("╰")][-1]
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
