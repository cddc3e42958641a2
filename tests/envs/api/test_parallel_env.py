"""The native parallel environments: PettingZoo's tests, and agreement with the AEC form."""

import inspect
from collections.abc import Mapping
from typing import ClassVar

import pettingzoo
import pytest

import flowzoo
from flowzoo import writing_pair_v0
from flowzoo.envs import Ask, Outcome, Workflow, make_workflow
from flowzoo.envs.api.parallel import ParallelWorkflowEnv
from flowzoo.envs.api.registry import workflow_class
from flowzoo.envs.tasks.math import MathTask
from flowzoo.errors import UsageError


def test_exactly_the_simultaneous_workflows_are_made_as_parallel():
    for name in flowzoo.envs.WORKFLOWS:
        base, _, version = name.replace("_", "-").rpartition("-")
        if not workflow_class(name).simultaneous:
            with pytest.raises(UsageError, match=f"not every agent of {name} acts in every step"):
                pettingzoo.make("parallel", f"flowzoo/{base}-{version}")
    env = pettingzoo.make("parallel", "flowzoo/writing-pair-v0", form="expansion")
    assert "background" in env.reset(seed=0)[0]["writer_0"]["messages"][0]["content"]


def test_it_pays_and_says_what_the_aec_environment_does():
    parallel, aec = writing_pair_v0.parallel_env(), writing_pair_v0.env()
    for seed in range(5):
        observations, infos = parallel.reset(seed=seed)
        aec.reset(seed=seed)
        respond = aec.unwrapped.workflow.responder(aec.unwrapped.episode.problem, 0.5, seed)
        paid = dict.fromkeys(aec.possible_agents, 0.0)
        final, actions = {}, {}
        for agent in aec.agent_iter():
            obs, reward, terminated, truncated, info = aec.last()
            paid[agent] += reward
            if terminated or truncated:
                final[agent] = info
                aec.step(None)
                continue
            assert obs == observations[agent]
            assert info == infos[agent]
            actions[agent] = respond("writer", obs["messages"])
            aec.step(actions[agent])
        _, rewards, terminations, truncations, infos = parallel.step(actions)
        assert rewards == paid
        assert infos == final
        assert all(terminations.values())
        assert not any(truncations.values())
        assert parallel.agents == []
        assert parallel.record() == aec.record()


async def test_a_step_can_be_awaited():
    env = writing_pair_v0.parallel_env()
    env.reset(seed=1)
    _, rewards, terminations, _, _ = await env.astep({"writer_0": "a", "writer_1": "b"})
    assert rewards == {"writer_0": 0.0, "writer_1": 0.0}
    assert all(terminations.values())


def test_mistakes_are_explained():
    with pytest.raises(UsageError, match="use its AEC environment"):
        ParallelWorkflowEnv(make_workflow("voting_v0"))
    env = writing_pair_v0.parallel_env()
    with pytest.raises(UsageError, match="call reset"):
        env.step({})
    env.reset(seed=0)
    with pytest.raises(UsageError, match=r"one action each for .*got \['writer_0'\]"):
        env.step({"writer_0": "a"})
    with pytest.raises(UsageError, match="must be a str, got NoneType"):
        env.step({"writer_0": "a", "writer_1": None})


def test_a_workflow_that_only_claims_to_be_simultaneous_is_found_out():
    class Claims(Workflow):
        name: ClassVar[str] = "claims_v0"
        roles: ClassVar[Mapping[str, int]] = {"writer": 2}
        simultaneous: ClassVar[bool] = True

        def play(self, problem):
            yield Ask("writer_0", problem.text)
            return Outcome(score=0.0)

    env = ParallelWorkflowEnv(Claims(task=MathTask()))
    env.reset(seed=0)
    with pytest.raises(UsageError, match=r"asked only \['writer_0'\]"):
        env.step({"writer_0": "a", "writer_1": "b"})


def test_the_module_offers_all_three_constructors():
    assert not {"env", "parallel_env", "raw_env"} - vars(writing_pair_v0).keys()
    assert inspect.signature(writing_pair_v0.env).parameters["task"].default == "writing"
