"""tool_planner_v0: who sees what, what moves the world, when it ends, who is paid what."""

import random
from typing import Any

import pytest

from flowzoo.envs import Episode, Problem, make_workflow
from flowzoo.envs import testing as suite
from flowzoo.envs.episode.effects import resolve
from flowzoo.envs.episode.recording import record
from flowzoo.envs.script import Reply, Run, RunCase, RunResult
from flowzoo.envs.workflows.tool_planner import ToolProposal, report, shorten

BOARD = "P..\n.#.\n..G"
PROBLEM = Problem(
    "plan_path", "test", 0, 0, "Grid\n" + BOARD, '["D","D","R","R"]', {"board": BOARD, "optimal": 4}
)
DOWN = '["D"]'
OUTPUTS = {"a": RunResult("AC", (RunCase("AC", '["R"]\n', ""),)),
           "b": RunResult("RE", (RunCase("RE", "", "NameError: x"),)),
           "c": RunResult("AC", (RunCase("AC", "no list", ""),)),
           "d": RunResult("AC", (RunCase("AC", '["D","D","R","R"]', ""),))}  # fmt: skip


def code(text: str) -> str:
    return f"```python\n{text}\n```"


def play(tools: list[str], plans: list[str], **options: Any) -> Episode:
    """Play scripted replies; programs a to d come to `OUTPUTS` (the sandbox has its own tests)."""
    episode = Episode(make_workflow("tool_planner_v0", "plan_path", side=3, **options), PROBLEM)
    replies = {"tool_0": list(tools), "planner_0": list(plans)}
    while not episode.done:
        if episode.effects:
            episode.resolve(
                [
                    OUTPUTS[effect.source]
                    if isinstance(effect, Run)
                    else resolve(episode.workflow.task, [(PROBLEM, effect)])[0]
                    for effect in episode.effects
                ]
            )
            continue
        (turn,) = episode.waiting
        episode.reply(turn.agent, replies[turn.agent].pop(0))
    assert not replies["tool_0"]
    assert not replies["planner_0"]
    return episode


def prompts(episode: Episode, agent: str) -> list[str]:
    return [turn.messages[-1]["content"] for turn in episode.turns if turn.agent == agent]


def test_the_planner_sees_what_the_tool_did_in_the_same_turn():
    episode = play([code("a"), code("b"), "none"], [DOWN, DOWN, '["R","R"]'])
    first, second, third = prompts(episode, "planner_0")
    assert code("a") in first
    assert 'Output:\n["R"]\nList in it: ["R"]' in first
    assert code("b") in second
    assert code("a") not in second
    assert "The program failed (RE: NameError: x).\nOutput:\n(nothing)\nList in it: none" in second
    assert "No program was written." in third


def test_only_the_planner_moves_the_world_and_prompts_show_where_it_is():
    episode = play([code("a")] * 3, [DOWN, "I am not sure.", '["D","R","R"]'])
    for agent in ("tool_0", "planner_0"):
        first, second, third = prompts(episode, agent)
        assert "P..\n.#.\n..G" in first
        assert "...\nP#.\n..G" in second
        assert "You are at row 1, column 0" in third
    assert episode.finished().answer == '["D","D","R","R"]'
    facts = {"turns": 3, "end": "solved", "solved": True, "ran": 3, "parsed": 3, "agreed": 0}
    assert episode.finished().facts == facts


def test_no_turn_follows_the_last():
    episode = play([code("c")] * 2, ['["U"]', '["L"]'], max_turns=2)
    assert episode.finished().facts["end"] == "turns"
    assert episode.finished().score == 0.0
    assert episode.finished().answer == '["U","L"]'


def test_a_deadlock_ends_the_episode_and_costs_nothing():
    workflow = make_workflow("tool_planner_v0", "sokoban", side=5)
    board = "#####\n#@--#\n#-$.#\n#---#\n#####"
    episode = Episode(
        workflow, Problem("sokoban", "test", 0, 0, "", "", {"board": board, "optimal": 2})
    )
    episode.reply("tool_0", "no program")
    suite.advance(episode)
    episode.reply("planner_0", '["R","D"]')
    suite.advance(episode)
    assert episode.finished().facts["end"] == "deadlock"
    assert record(episode).score == 0.0


def test_local_rewards_are_the_documented_sums():
    episode = play([code("d"), code("c"), code("b"), "none"], [DOWN, DOWN, '["R"]', '["R"]'],
                   credit="mix")  # fmt: skip
    calls = record(episode).calls
    tools = [call for call in calls if call.role == "tool"]
    planners = [call for call in calls if call.role == "planner"]
    # ran and parsed, and its list would have solved it; ran; nothing; nothing
    local = [call.parts["local"] for call in tools]
    assert local == pytest.approx([0.1 + 0.1 + 0.8, 0.1, 0.0, 0.0])
    assert [call.parts["local"] for call in planners] == pytest.approx([0.2, 0.2, 0.2, 1.0])
    # The last tool abstained: under strict it gets no team reward.
    assert [call.reward for call in tools] == pytest.approx([2.0, 1.1, 1.0, 0.0])


def test_weights_of_form_and_role_are_penalties_but_for_a_constant():
    """In the published code a planner has its score twice, and the two have -2 without a list."""

    def pay(tool: str, plan: str) -> dict[str, float]:
        episode = play([code(tool)], [plan], max_turns=1, reward="shaped", credit="mix",
                       local_weights="2+1")  # fmt: skip
        assert episode.workflow.local_weights == (2.0, 1.0)
        return {call.agent: call.reward for call in record(episode).calls}

    solved, lost = '["D","D","R","R"]', "I am not sure."
    assert pay("d", solved)["planner_0"] - 2 == 1 + 1
    assert pay("d", lost)["planner_0"] - 2 == -2
    # The tool's candidates share the team's outcome, here 0.
    own = {tool: pay(tool, lost)["tool_0"] - 2 for tool in OUTPUTS}
    step = (1 / 6 - 0.01) / (4 / 6 - 0.04 + 1.5)  # of the best return, by the task's page
    assert own == pytest.approx({"a": step, "b": -2.0, "c": -1.0, "d": 1.0})


def test_the_value_of_the_tool_is_of_its_list_where_the_world_then_stood():
    episode = play([code("d"), code("d")], ['["R"]', '["R","D","D"]'])
    role_scores = [
        episode.role_scores[turn.call] for turn in episode.turns if turn.agent == "tool_0"
    ]
    assert role_scores == [1.0, 0.0]


def test_paper_reads_words_and_open_blocks():
    episode = play(["```python\na", code("c")], ["down", "[D, R, R]"], preset="paper")
    assert episode.finished().answer == '["D","D","R","R"]'
    assert episode.finished().facts["ran"] == 2
    strict = play(["```python\na", code("c")], ["down", "[D, R, R]"], max_turns=2)
    assert strict.finished().answer == "[]"
    assert strict.finished().facts["ran"] == 1


def test_the_planner_expert_takes_a_right_list_and_mends_a_wrong_one():
    workflow = make_workflow("tool_planner_v0", "plan_path", side=3)
    right, wrong = '["R","R","D","D"]', '["R"]'
    for offered in (right, wrong):
        ran = RunResult("AC", (RunCase("AC", offered, ""),))
        tool = Reply(0, "tool_0", "", "", "")
        offer = ToolProposal(tool, f"print({offered!r})", ran, offered)
        text = workflow.planner_prompt(workflow.task.prompt_at(PROBLEM, "[]"), offer)
        messages = [{"role": "user", "content": text}]
        for is_right in (True, False):
            reply = workflow.expert("planner", messages, PROBLEM, random.Random(0), is_right)
            solved = workflow.task.grade_batch([PROBLEM], [reply])[0].status == "solved"
            assert solved == is_right
            assert (reply == offered) == (is_right == (offered == right))


def test_long_outputs_are_shortened_and_failures_named():
    assert shorten("x" * 1500) == "x" * 1500
    cut = shorten("a" * 1000 + "b" * 1000)
    assert cut.startswith("a" * 750)
    assert cut.endswith("b" * 750)
    assert "[500 characters left out]" in cut
    assert report(None) == "No program was written."
    assert report(RunResult("TLE", (RunCase("TLE", "", ""),))) == "The program failed (TLE)."


@pytest.mark.full
@pytest.mark.parametrize(
    "options",
    [
        pytest.param(
            {"task": "sokoban", "boxes": 2, "reward": "shaped", "credit": "mix"},
            marks=pytest.mark.full,
        ),
        {"task": "sudoku", "preset": "paper", "max_turns": 2, "format_penalty": 0.5},
    ],
)
def test_the_other_worlds_conform(options):
    suite.check_workflow(make_workflow("tool_planner_v0", **options))
