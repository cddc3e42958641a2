"""The reasoners: calls run, faults are told, agreement stops and truth never does."""

import json
import pickle
from dataclasses import replace

import pytest

from flowzoo.agents.evaluation.evaluate import record_from_json
from flowzoo.agents.rollout.drivers import offered
from flowzoo.envs import Episode, WorkflowEnv, WorkflowError, make_workflow
from flowzoo.envs.episode.recording import record
from flowzoo.envs.episode.turn import prompt_digest
from flowzoo.envs.script import RunCase, RunResult
from flowzoo.envs.testing import advance
from flowzoo.envs.workflows.reasoner_python import PYTHON, ReasonerPython, python_call
from flowzoo.envs.workflows.reasoner_tool import printed_answer, short
from tests.envs.playing import SUM, play_turns


def run(*replies, **options):
    workflow = make_workflow("reasoner_python_v0", **options)
    return play_turns(workflow, SUM, *({"reasoner_0": reply} for reply in replies))


def test_the_result_of_a_call_is_a_message_of_the_tool():
    turn = run("I run it. " + python_call("print(2+3*4)")).waiting[0]
    _, said, result = turn.messages
    assert (said["role"], said["content"]) == ("assistant", "I run it.")
    assert said["tool_calls"] == [
        {
            "id": "000000000",
            "type": "function",
            "function": {"name": "python", "arguments": {"code": "print(2+3*4)"}},
        }
    ]
    assert result == {
        "role": "tool", "tool_call_id": "000000000", "name": "python", "content": "14",
    }  # fmt: skip


def test_an_answer_after_a_call_is_graded():
    done = run(python_call("print(2+3*4)"), "\\boxed{14}")
    assert (done.score, done.answer) == (1.0, "14")
    assert done.facts == {"runs": 1, "ran": 1, "faults": 0, "fault": ""}
    assert [call.strict for call in done.calls] == [True, True]
    assert done.calls[0].tools == (PYTHON.schema(),)


def test_a_fault_is_an_unreadable_reply_with_its_reason():
    done = run("<tool_call>print(1)</tool_call>", "\\boxed{14}")
    assert [(call.strict, call.lenient) for call in done.calls] == [(False, False), (True, True)]
    assert done.calls[0].fault.startswith("a call that is no JSON")
    assert done.calls[0].fault in done.calls[1].messages[-1]["content"]
    assert done.facts["faults"] == 1


def test_failed_programs_say_why():
    turn = run(python_call("print('so far'); 1 / 0")).waiting[0]
    assert "so far" in turn.messages[-1]["content"]
    assert "ZeroDivisionError" in turn.messages[-1]["content"]
    assert run(python_call("x = 1")).waiting[0].messages[-1]["content"] == "It printed nothing."


def test_the_last_reply_has_no_tools():
    episode = run(python_call("print(1)"), max_runs=1)
    assert episode.waiting[0].tools == ()
    episode.reply("reasoner_0", python_call("print(2)"))
    advance(episode)
    assert record(episode).answer is None


def test_a_record_survives_json():
    done = run(python_call("print(2+3*4)"), "\\boxed{14}")
    assert record_from_json(json.loads(json.dumps(done.to_json()))) == done


def test_copies_share_nothing_and_replays_compare_calls_and_tools():
    episode = run(python_call("print(1)"))
    turn = episode.waiting[0]
    turn.observe()[1]["tool_calls"][0]["function"]["arguments"]["code"] = "changed"
    assert turn.messages[1]["tool_calls"][0]["function"]["arguments"] == {"code": "print(1)"}
    thawed = pickle.loads(pickle.dumps(episode))
    assert thawed.waiting[0].messages == turn.messages
    assert episode.fork().transcript() == episode.transcript()
    other = run(python_call("print(2)")).waiting[0]
    assert prompt_digest(turn.messages) != prompt_digest(
        [turn.messages[0], other.messages[1], turn.messages[2]]
    )


def test_observations_have_tools_while_there_are_some():
    env = WorkflowEnv(make_workflow("reasoner_python_v0", max_runs=1))
    env.reset(seed=0)
    space = env.observation_space("reasoner_0")
    assert env.observe("reasoner_0")["tools"] == [PYTHON.schema()]
    assert space.contains(env.observe("reasoner_0"))
    env.step(python_call("print(1)"))
    assert env.observe("reasoner_0")["tools"] == []
    assert space.contains(env.observe("reasoner_0"))
    assert env.state_space.contains(env.state())


class Undeclared(ReasonerPython):
    tool_roles = ()


def test_tools_must_be_declared():
    workflow = Undeclared(make_workflow("reasoner_python_v0").task)
    with pytest.raises(WorkflowError, match="set `tool_roles = \\('reasoner',\\)`"):
        Episode(workflow, SUM)


def test_tools_reach_the_policy_from_episodes_and_environments():
    """A request has the tools of its ask, whichever way it is played."""
    workflow = make_workflow("reasoner_python_v0")
    env = WorkflowEnv(workflow)
    env.reset(seed=0)
    # An observation has the schema alone: what checks arguments is the workflow's tool.
    assert offered(env.observe("reasoner_0")) == (replace(PYTHON, checked=False),)
    assert env.episode.waiting[0].tools == (PYTHON,)


def program(code):
    return f"```python\n{code}\n```"


def run_both(*turns, **options):
    """Play turns of (reasoner, tool); returns the record, or the episode if it goes on."""
    workflow = make_workflow("reasoner_tool_v0", **options)
    replies = [{"tool_0": tool, "reasoner_0": reasoner} for reasoner, tool in turns]
    return play_turns(workflow, SUM, *replies)


def test_agreement_stops_and_pays_team_and_local():
    done = run_both(("\\boxed{14}", program("print(2+3*4)")))
    assert done.score == 1.0
    assert done.returns == {"reasoner_0": 2.0, "tool_0": 2.0}
    assert done.facts == {
        "turns": 1, "agreed": True, "agreed_wrongly": False, "ran": 1, "parsed": 1,
        "tool_right": True,
    }  # fmt: skip


def test_equivalent_answers_agree():
    assert run_both(("\\boxed{14}", program("print('working')\nprint(14.0)\nprint()"))).facts[
        "agreed"
    ]


def test_they_stop_on_a_wrong_agreement_and_go_on_after_a_right_answer():
    """Ground truth steers nothing."""
    wrong = run_both(("\\boxed{15}", program("print(15)")))
    assert (wrong.score, wrong.facts["agreed_wrongly"], wrong.facts["turns"]) == (0.0, True, 1)
    assert not run_both(("\\boxed{14}", program("print(15)"))).done
    assert not run_both(("\\boxed{15}", program("print(14)"))).done


def test_two_missing_answers_do_not_agree():
    done = run_both(("hm", "hm"), max_turns=1)
    assert (done.score, done.facts["agreed"]) == (0.0, False)


def test_the_board_shows_both_earlier_answers_in_short():
    episode = run_both(("\\boxed{15}", program("print('9' * 400)")), ("x", program("1/0")))
    for turn in episode.waiting:
        text = turn.messages[0]["content"]
        assert "Turn 1: reasoner 15; tool 9999" in text
        assert "9" * 81 not in text
        assert "Turn 2: reasoner no answer; tool no answer" in text
    first = run_both()
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
        done = run_both(("\\boxed{1}", text), max_turns=1)
        assert done.calls[1].parts["local"] == pytest.approx(local)


def test_the_last_answer_counts_even_if_an_earlier_one_was_right():
    done = run_both(
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
