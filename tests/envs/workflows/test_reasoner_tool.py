"""Reasoner and tool: agreement stops, truth never does; programs run for real."""

import pytest

from flowzoo.envs import Problem, make_workflow
from flowzoo.envs.episode.recording import record
from flowzoo.envs.script import RunCase, RunResult
from flowzoo.envs.workflows.reasoner_tool import printed_answer, short
from tests.envs.playing import play_experts, play_turns

PROBLEM = Problem("math", "test", 0, 0, "Compute 2+3*4.", "14")


def program(code):
    return f"```python\n{code}\n```"


def run(*turns, **options):
    """Play turns of (reasoner, tool); returns the record, or the episode if it goes on."""
    workflow = make_workflow("reasoner_tool_v0", **options)
    replies = [{"tool_0": tool, "reasoner_0": reasoner} for reasoner, tool in turns]
    return play_turns(workflow, PROBLEM, *replies)


def test_agreement_stops_and_pays_team_and_local():
    done = run(("\\boxed{14}", program("print(2+3*4)")))
    assert done.score == 1.0
    assert done.returns == {"reasoner_0": 2.0, "tool_0": 2.0}
    assert done.facts == {
        "turns": 1, "agreed": True, "agreed_wrongly": False, "ran": 1, "parsed": 1,
        "tool_right": True,
    }  # fmt: skip


def test_equivalent_answers_agree():
    assert run(("\\boxed{14}", program("print('working')\nprint(14.0)\nprint()"))).facts["agreed"]


def test_they_stop_on_a_wrong_agreement_and_go_on_after_a_right_answer():
    """Ground truth steers nothing."""
    wrong = run(("\\boxed{15}", program("print(15)")))
    assert (wrong.score, wrong.facts["agreed_wrongly"], wrong.facts["turns"]) == (0.0, True, 1)
    assert not run(("\\boxed{14}", program("print(15)"))).done
    assert not run(("\\boxed{15}", program("print(14)"))).done


def test_two_missing_answers_do_not_agree():
    done = run(("hm", "hm"), max_turns=1)
    assert (done.score, done.facts["agreed"]) == (0.0, False)


def test_the_board_shows_both_earlier_answers_in_short():
    episode = run(("\\boxed{15}", program("print('9' * 400)")), ("x", program("1/0")))
    for turn in episode.waiting:
        text = turn.messages[0]["content"]
        assert "Turn 1: reasoner 15; tool 9999" in text
        assert "9" * 81 not in text
        assert "Turn 2: reasoner no answer; tool no answer" in text
    first = run()
    assert all("Answers so far" not in turn.messages[0]["content"] for turn in first.waiting)


def test_local_rewards_of_the_tool():
    """0.1 ran + 0.1 parsed + 0.8 right; nothing for a reply without a program."""
    cases = [
        (program("print(14)"), 1.0),
        (program("print(15)"), 0.2),
        (program("x = 14"), 0.1),
        (program("print(14)\n1/0"), 0.0),
        ("14", 0.0),
    ]
    for text, local in cases:
        done = run(("\\boxed{1}", text), max_turns=1)
        assert done.calls[1].parts["local"] == pytest.approx(local)


def test_the_last_answer_counts_even_if_an_earlier_one_was_right():
    done = run(
        ("\\boxed{14}", program("print(1)")), ("\\boxed{15}", program("print(2)")), max_turns=2
    )
    assert (done.score, done.answer) == (0.0, "15")
    assert [call.role_score for call in done.calls] == [1.0, 0.0, 0.0, 0.0]


def test_what_was_printed():
    assert printed_answer(None) is None
    assert printed_answer(RunResult("RE", (RunCase("RE", "14", ""),))) is None
    assert printed_answer(RunResult("AC", (RunCase("AC", "a\n 14 \n\n", ""),))) == "14"
    assert printed_answer(RunResult("AC", (RunCase("AC", "9" * 501, ""),))) is None
    assert short("a\nb" * 100).endswith(" …")


def test_experts_play():
    workflow = make_workflow("reasoner_tool_v0", level="1-5")
    for index in range(10):
        done = record(play_experts(workflow, workflow.task.problem(index)))
        assert (done.score, done.facts["turns"]) == (1.0, 1)
