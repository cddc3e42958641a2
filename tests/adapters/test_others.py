"""Environments of some agents, beside policies of the others."""

import pickle
import warnings

import pytest
from pettingzoo.test import api_test, parallel_api_test

from flowzoo import eval_opt_v0, voting_v0, writing_pair_v0
from flowzoo.adapters.arrays import Choose, Encode, NgramEncoder
from flowzoo.adapters.others import Play
from flowzoo.agents.policy_map import PolicyMap
from flowzoo.agents.rollout.episodes import EpisodeJob, Rollout
from flowzoo.agents.scripted import ScriptedPolicy
from flowzoo.errors import UsageError


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("module", "others", "played", "agents"),
    [
        (voting_v0, {"aggregator": "scripted:1"}, (),
         ["generator_0", "generator_1", "generator_2"]),
        (voting_v0, "scripted:0.5", "aggregator", ["aggregator_0"]),
        (eval_opt_v0, "scripted:0.5", "evaluator", ["evaluator_0"]),
    ],
)  # fmt: skip
def test_what_is_left_conforms(module, others, played, agents):
    env = Play(module.env(), others, played)
    assert env.possible_agents == agents
    api_test(env, num_cycles=40)
    api_test(Choose(Encode(env, NgramEncoder(16)), ["\\boxed{1}", "\\boxed{2}"]), num_cycles=40)
    copy = pickle.loads(pickle.dumps(env))
    copy.reset(seed=1)
    assert copy.agents == agents


def test_parallel_environments_have_policies_in_seats_too():
    env = Play(writing_pair_v0.parallel_env(), {"writer_1": "scripted:1"})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        parallel_api_test(env, num_cycles=5)
    env.reset(seed=0)
    observed, rewards, ended, _, _ = env.step({"writer_0": "Some words."})
    assert list(observed) == list(rewards) == list(ended) == ["writer_0"]
    assert [call.agent for call in env.unwrapped.record().calls] == ["writer_0", "writer_1"]


def test_an_episode_is_the_one_that_the_policies_play_together():
    env = Play(voting_v0.env(), {"aggregator": "scripted:1"})
    workflow = env.unwrapped.workflow
    team = {
        "generator": ScriptedPolicy(workflow, 0.3),
        "aggregator": ScriptedPolicy(workflow, name="right"),
    }
    scores = set[float]()
    for index in range(12):
        job = EpisodeJob(workflow.task.problem(index), 0)
        (record,) = Rollout(workflow, PolicyMap(team)).run([job])
        replies = {call.agent: call.reply for call in record.calls}
        env.reset(options={"index": index})
        paid = dict.fromkeys(env.possible_agents, 0.0)
        for agent in env.agent_iter():
            _, reward, ended, cut, _ = env.last()
            paid[agent] += reward
            env.step(None if ended or cut else replies[agent])
        assert [call.agent for call in env.unwrapped.record().calls] == list(replies)
        scores.add(record.score)
        assert paid == dict.fromkeys(env.possible_agents, record.score)
    assert scores == {0.0, 1.0}


@pytest.mark.parametrize(
    ("others", "played", "said"),
    [
        ({"critic": "scripted:1"}, (), "unknown role or agent 'critic'"),
        ("scripted:1", (), "`others` plays every agent"),
        ({"generator": "scripted:1", "aggregator": "scripted:1"}, (), "`others` plays every agent"),
        ({"aggregator": "scriptd:1"}, (), "unknown policy 'scriptd:1'"),
        ("scripted:1", "critic", "unknown role or agent 'critic'"),
    ],
)
def test_wrong_seats_are_refused_at_once(others, played, said):
    with pytest.raises(UsageError, match=said):
        Play(voting_v0.env(), others, played)


def test_other_environments_are_refused():
    with pytest.raises(UsageError, match="expected an AEC or parallel environment of flowzoo"):
        Play(3, "scripted:1")  # type: ignore[type-var]
