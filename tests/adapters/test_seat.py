"""Policies in the other seats of Gymnasium environments."""

import gymnasium
import pytest

import flowzoo  # noqa: F401 - registers
from flowzoo.agents.scripted import ScriptedPolicy
from flowzoo.envs import make_workflow
from flowzoo.errors import UsageError


def mean(others, episodes=30):
    env = gymnasium.make("flowzoo/Voting-v0", role="aggregator", others=others)
    paid = 0.0
    for number in range(episodes):
        env.reset(seed=1 if number == 0 else None)
        paid += env.step("\\boxed{1}")[1]
    return paid / episodes


def test_the_others_play_as_well_as_their_policy():
    skills = {skill: mean(f"scripted:{skill}") for skill in (0, 0.5, 1)}
    assert (skills[0], skills[1]) == (0, 1)
    assert 0.2 < skills[0.5] < 0.8
    policy = ScriptedPolicy(make_workflow("voting"), 0.5)
    assert mean(policy) == skills[0.5]
    assert mean({"generator": "scripted:0.5"}) == skills[0.5]


def test_environments_in_other_processes_play_beside_those_of_this_one():
    assert 0 <= mean("scripted:0.5", episodes=1) <= 1
    options = {"role": "aggregator", "others": "scripted:0"}
    envs = gymnasium.make_vec("flowzoo/Voting-v0", 2, "async", **options)
    envs.reset_async(seed=0)
    envs.reset_wait(timeout=60)
    envs.step_async(("\\boxed{1}",) * 2)
    assert envs.step_wait(timeout=60)[1].tolist() == [0, 0]
    envs.close()


def test_an_agents_siblings_are_among_the_others():
    env = gymnasium.make("flowzoo/Voting-v0", role="generator_1", others="scripted:0")
    env.reset(seed=0)
    assert env.step("\\boxed{1}")[2]
    calls = env.unwrapped.record().calls
    assert [call.agent for call in calls][:3] == ["generator_0", "generator_1", "generator_2"]
    assert gymnasium.make("flowzoo/Single-v0", others="scripted:1").reset(seed=0)


@pytest.mark.parametrize(
    ("others", "said"),
    [
        ("scripted:2", "skill must be a probability"),
        ("gpt", "unknown policy 'gpt'"),
        (3, "must be a policy"),
        ({"generatr": "scripted:1"}, "'generatr'. Did you mean 'generator'"),
        ({"aggregator": "scripted:1"}, "no policy for role generator"),
    ],
)
def test_wrong_others_are_refused_in_one_line(others, said):
    with pytest.raises(UsageError, match=said):
        gymnasium.make("flowzoo/Voting-v0", role="aggregator", others=others)


def test_an_option_that_there_is_not_is_refused_as_python_refuses_a_keyword():
    # TorchRL's GymEnv leaves out what it added when it reads these words in a TypeError.
    with pytest.raises(TypeError, match="unexpected keyword argument 'frameskip'"):
        gymnasium.make("flowzoo/Voting-v0", role="aggregator", frameskip=1)
