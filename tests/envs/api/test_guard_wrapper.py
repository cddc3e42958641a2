"""The one wrapper: rule 7 of the design's core document."""

import pytest
from pettingzoo.utils.wrappers import OrderEnforcingWrapper

from flowzoo import voting_v0
from flowzoo.envs import Guard, WorkflowEnv
from flowzoo.errors import UsageError

FIELDS = ("agents", "agent_selection", "rewards", "terminations", "truncations", "infos")


@pytest.fixture
def env() -> Guard:
    return voting_v0.env()


def test_env_is_guarded_once_and_raw_env_is_not(env):
    assert isinstance(env, OrderEnforcingWrapper)
    assert type(env.env) is WorkflowEnv
    assert env.unwrapped is env.env
    assert type(voting_v0.raw_env()) is WorkflowEnv


@pytest.mark.parametrize("field", [*FIELDS, "num_agents"])
def test_fields_before_reset_are_an_error_that_says_so(env, field):
    with pytest.raises(AttributeError, match="before reset"):
        getattr(env, field)


def test_verbs_before_reset_are_an_error_that_says_so(env):
    for verb in (
        env.last,
        env.fork,
        lambda: env.transcript(),
        lambda: env.record(),
        lambda: env.step("x"),
        lambda: env.observe("generator_0"),
        lambda: env.agent_iter(),
        env.render,
    ):
        with pytest.raises((AttributeError, AssertionError), match=r"before reset|reset\(\)"):
            verb()


async def test_async_verbs_before_reset_are_an_error_that_says_so(env):
    for verb in (lambda: env.astep("x"), lambda: env.settle()):
        with pytest.raises(AttributeError, match="before reset"):
            await verb()


def test_what_is_known_before_reset_is_readable(env):
    assert env.possible_agents == ["generator_0", "generator_1", "generator_2", "aggregator_0"]
    assert env.metadata["name"] == "voting_v0"
    assert env.max_num_agents == 4
    assert env.render_mode is None


def test_a_turn_of_the_loop_without_a_step_is_an_error(env):
    env.reset(seed=0)
    with pytest.raises(UsageError, match=r"call step\(\) or reset\(\) in every turn"):
        for _ in env.agent_iter():
            pass


def test_agent_iter_stops_after_max_iter(env):
    env.reset(seed=0)
    agents = []
    for agent in env.agent_iter(max_iter=2):
        agents.append(agent)
        env.step("x")
    assert agents == ["generator_0", "generator_1"]


async def test_a_step_after_the_end_only_warns_and_last_explains(env, caplog):
    """As in PettingZoo."""
    env.reset(seed=0)
    for _ in range(4):
        env.step("x")
    for _ in range(4):
        env.step(None)
    log = list(env.unwrapped.episode.log)
    env.step("x")
    await env.astep("x")
    assert caplog.text.count("step() called after all agents are terminated") == 2
    assert env.unwrapped.episode.log == log
    with pytest.raises(UsageError, match=r"every agent has left; call reset\(\)"):
        env.last()


def test_a_fork_stays_guarded_and_knows_whether_it_was_stepped(env):
    env.reset(seed=0)
    twin = env.fork()
    assert type(twin) is Guard
    assert twin.unwrapped is not env.unwrapped
    iterator = iter(env.agent_iter())
    next(iterator)
    with pytest.raises(UsageError, match="in every turn"):
        next(iter(env.fork().agent_iter()))
    twin.step("only here")
    assert (twin.agent_selection, env.agent_selection) == ("generator_1", "generator_0")


def test_the_private_rewards_of_pettingzoo_are_reachable(env):
    env.reset(seed=0)
    assert env._cumulative_rewards == dict.fromkeys(env.possible_agents, 0.0)
