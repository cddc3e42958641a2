"""Seats of workflows that the caller, a function or a policy takes."""

import pickle
import warnings
from typing import ClassVar

import gymnasium
import pytest
from pettingzoo.test import api_test, parallel_api_test

import flowzoo  # noqa: F401 - registers
from flowzoo import eval_opt_v0, voting_v0, writing_pair_v0
from flowzoo.adapters.arrays import Choose, Encode, NgramEncoder
from flowzoo.adapters.others import Play
from flowzoo.adapters.outside import check_served, free_agents
from flowzoo.agents.policy_map import PolicyMap
from flowzoo.agents.rollout.episodes import EpisodeJob, Rollout
from flowzoo.agents.scripted import ScriptedPolicy
from flowzoo.envs import Ask, Judge, Outcome, Workflow, make_workflow
from flowzoo.errors import UsageError
from tests.envs.playing import opened


class Judged(Workflow):
    """A judge is asked."""

    name = "judged_v0"
    roles: ClassVar = {"writer": 1}
    asks_judge: ClassVar = True

    def play(self, problem):
        reply = yield Ask("writer_0", "Write.")
        yield Judge(reply, "Good?")
        return Outcome(score=1.0)


class Tooled(Judged):
    """A solver has tools."""

    name = "tooled_v0"
    roles: ClassVar = {"writer": 1, "solver": 1}
    tool_roles: ClassVar = ("solver",)
    asks_judge: ClassVar = False


def test_judges_and_tools_are_refused():
    with pytest.raises(UsageError, match="judged_v0 asks a judge, which this adapter does not"):
        check_served(make_workflow(Judged))
    with pytest.raises(UsageError, match="tooled_v0 offers tools to solver, which this adapter"):
        check_served(make_workflow(Tooled))
    check_served(make_workflow(Tooled), {"writer"})  # the others are played by flowzoo
    check_served(make_workflow("voting_v0"))


GENERATORS = ["generator_0", "generator_1", "generator_2"]


@pytest.mark.parametrize(
    ("others", "played", "free"),
    [
        ({}, (), [*GENERATORS, "aggregator_0"]),
        ({"aggregator": "scripted:1"}, (), GENERATORS),
        ({"generator_1": "scripted:1"}, (), ["generator_0", "generator_2", "aggregator_0"]),
        ("scripted:1", "aggregator", ["aggregator_0"]),
        (
            {"generator": "scripted:1"},
            ("generator_0", "aggregator"),
            ["generator_0", "aggregator_0"],
        ),
    ],
)
def test_agents_that_others_leave_free(others, played, free):
    assert free_agents(make_workflow("voting"), others, played) == free


def test_every_adapter_of_whole_episodes_asks_at_load():
    trl = pytest.importorskip("trl")
    from flowzoo.adapters.trl_spec import TRLSpec

    assert trl
    with pytest.raises(UsageError, match="asks a judge"):
        TRLSpec(Judged, "writer")


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
    env = opened(gymnasium.make("flowzoo/Voting-v0", role="generator_1", others="scripted:0"))
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
