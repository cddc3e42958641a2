"""Thoughts: never graded, hidden from team-mates unless asked for, whole in the record."""

import pytest

from flowzoo.envs import Episode, make_workflow
from flowzoo.envs.episode.recording import record
from flowzoo.errors import UsageError
from tests.envs.playing import finish

THOUGHT = "<think>I guess \\boxed{12345} SECRET</think>"
OPEN = "<think>SECRET \\boxed{12345} Correct 1"


def play(name: str, reply, **settings: object) -> Episode:
    """One episode of workflow `name`; `reply(agent)` answers."""
    workflow = make_workflow(name, "math", **settings)
    episode = Episode(workflow, workflow.task.problem(0, "validation"))
    return finish(episode, lambda turn: reply(turn.agent))


@pytest.mark.parametrize("name", ["voting_v0", "eval_opt_v0", "orch_workers_v0"])
@pytest.mark.parametrize("preset", ["strict", "paper"])
def test_team_mates_do_not_see_thoughts_and_the_record_keeps_them(name, preset):
    episode = play(name, lambda agent: f"{THOUGHT} it is \\boxed{{7}} ", preset=preset)
    calls = record(episode).calls
    assert len(calls) > 1
    for call in calls:
        assert call.reply == f"{THOUGHT} it is \\boxed{{7}} "
        assert all("SECRET" not in message["content"] for message in call.messages)
    assert all(turn.reply and "SECRET" not in turn.reply.text for turn in episode.turns)
    assert "SECRET" in str(episode.transcript())


@pytest.mark.parametrize("name", ["voting_v0", "eval_opt_v0", "orch_workers_v0"])
def test_asked_for_thoughts_are_shown_and_still_not_graded(name):
    def reply(agent: str) -> str:
        return f"\\boxed{{Correct}} STRATEGY 1: add {OPEN}" if agent[0] in "eo" else OPEN

    episode = play(name, reply, thoughts="show")
    calls = record(episode).calls
    assert any("SECRET" in message["content"] for call in calls for message in call.messages)
    assert episode.finished().answer is None


def test_a_thought_that_was_cut_off_says_nothing_under_any_preset():
    for preset in ("strict", "paper"):
        calls = record(play("voting_v0", lambda agent: OPEN, preset=preset)).calls
        assert not any(call.strict or call.lenient for call in calls)
        calls = record(play("eval_opt_v0", lambda agent: OPEN, preset=preset)).calls
        assert not any(call.strict or call.lenient for call in calls)


def test_an_unknown_way_with_thoughts_is_refused():
    with pytest.raises(UsageError, match=r"unknown thoughts 'shown'.*show"):
        make_workflow("voting_v0", "math", thoughts="shown")
