import pytest

from flowzoo import voting_v0, writing_pair_v0
from flowzoo.envs.api.spaces import Turns


def test_the_state_is_the_transcript_so_far():
    env = voting_v0.env()
    with pytest.raises(AttributeError, match="before reset"):
        env.state()
    env.reset(seed=0)
    assert [turn["reply"] for turn in env.state()] == [None] * 3
    for text in ("a", "b", "c", "\\boxed{1}"):
        assert env.state_space.contains(env.state())
        env.step(text)
    assert [turn["reply"] for turn in env.state()] == ["a", "b", "c", "\\boxed{1}"]
    env.state()[0]["messages"].clear()
    assert env.state() == env.transcript()
    assert env.state()[0]["messages"]


def test_the_parallel_environment_has_the_same():
    env = writing_pair_v0.parallel_env()
    env.reset(seed=0)
    env.step(dict.fromkeys(env.agents, "A summary."))
    assert env.state_space.contains(env.state())
    assert {turn["reply"] for turn in env.state()} == {"A summary."}


def test_the_space_of_transcripts():
    space = Turns(seed=1)
    turn = space.sample()[0]
    assert [] in space
    assert [turn] in space
    assert (turn,) not in space
    for broken in ({**turn, "reply": 3}, {**turn, "more": 1}, {**turn, "messages": "hi"}, "turn"):
        assert [broken] not in space
    assert space == Turns() != object()
    assert (hash(space), repr(space)) == (hash(Turns()), "Turns()")
    assert not space.is_np_flattenable
    with pytest.raises(ValueError, match="no mask"):
        space.sample(mask=[1])
