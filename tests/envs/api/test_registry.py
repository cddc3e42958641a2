"""Names, registration with PettingZoo and Gymnasium, and errors that name the valid choices."""

import inspect
import sys
import warnings

import gymnasium
import pettingzoo
import pytest

import flowzoo
from flowzoo import voting_v0
from flowzoo.agents import PolicyMap
from flowzoo.agents.rollout.episodes import Rollout
from flowzoo.agents.scripted import ScriptedPolicy
from flowzoo.envs import make_env, make_workflow
from flowzoo.envs.api.registry import WORKFLOWS, workflow_class
from flowzoo.envs.api.solo import SoloEnv
from flowzoo.envs.tasks.math import MathTask
from flowzoo.envs.workflows.single import Single
from flowzoo.envs.workflows.voting import Voting
from flowzoo.errors import MissingExtraError, UsageError
from tests.tables import read_tables

TABLES = read_tables(__file__)

assert flowzoo.__version__  # the import is what registers


@pytest.mark.parametrize("name", WORKFLOWS)
def test_pettingzoo_makes_every_workflow(name):
    env = pettingzoo.make("aec", f"flowzoo/{name.replace('_', '-')}", seed=2, max_cycles=1)
    env.reset(seed=0)
    assert (str(env.unwrapped), env.unwrapped.max_cycles) == (name, 1)
    assert env.unwrapped.workflow.task.seed == 2
    assert env.unwrapped.workflow.task.name == workflow_class(name).default_task


def test_one_entry_makes_any_workflow_by_its_name():
    for name in ("code_pair", "flowzoo.envs.workflows.code_pair:CodePair"):
        aec = pettingzoo.make("aec", "flowzoo/workflow-v0", workflow=name, max_cycles=2)
        both = pettingzoo.make("parallel", "flowzoo/workflow-v0", workflow=name, max_cycles=2)
        assert (str(aec), aec.unwrapped.max_cycles) == ("code_pair_v0", 2)
        assert (both.metadata["name"], both.aec.max_cycles) == ("code_pair_v0", 2)
    alone = gymnasium.make("flowzoo/Workflow-v0", workflow="voting", role="aggregator", n_votes=2)
    _, info = alone.reset(seed=0)
    assert info["role"] == "aggregator"
    assert len(alone.unwrapped.aec.possible_agents) == 3


@pytest.mark.parametrize(
    ("camel", "role"),
    [
        ("Voting", "aggregator"),
        ("EvalOpt", "evaluator"),
        ("OrchWorkers", "synthesizer"),
        ("Single", "generator"),
    ],
)
def test_gymnasium_makes_every_workflow_without_a_warning(camel, role):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        env = gymnasium.make(f"flowzoo:flowzoo/{camel}-v0", role=role, task="math", level=1)
        obs, info = env.reset(seed=0)
        assert env.observation_space.contains(obs)
        assert info["role"] == role
        _, _, terminated, _, final = env.step("nothing")
    assert isinstance(env.unwrapped, SoloEnv)
    assert terminated or camel == "EvalOpt"
    assert ("transcript" in final) == terminated


def test_sync_vector_environments_work():
    envs = gymnasium.make_vec(
        "flowzoo/Voting-v0", num_envs=3, vectorization_mode="sync", role="aggregator", level=1
    )
    obs, _ = envs.reset(seed=[1, 2, 3])
    texts = [chat[0]["content"] for chat in obs["messages"]]
    assert len(set(texts)) == 3
    _, rewards, terminated, _, _ = envs.step(["\\boxed{1}", "\\boxed{3}", "no idea"])
    assert rewards.tolist() == [1.0, 1.0, 0.0]
    assert terminated.all()
    envs.close()


@pytest.mark.parametrize("shared", [False, True])
def test_async_vector_environments_work_in_processes_of_their_own(shared):
    envs = gymnasium.vector.AsyncVectorEnv(
        [lambda: SoloEnv("single_v0")] * 2, shared_memory=shared, context="forkserver"
    )
    try:
        obs, _ = envs.reset(seed=[5, 6])
        single = SoloEnv("single_v0")
        assert list(obs["messages"]) == [single.reset(seed=seed)[0]["messages"] for seed in (5, 6)]
    finally:
        envs.close()


def test_a_workflow_is_named_in_three_ways():
    for name in ("voting_v0", "voting", "flowzoo.envs.workflows.voting:Voting"):
        assert type(make_workflow(name)) is Voting


def test_options_go_to_the_workflow_or_the_task_that_has_them():
    workflow = make_workflow("voting_v0", n_votes=5, level=3)
    assert (workflow.n_votes, workflow.task.level) == (5, 3)


def test_env_lists_its_options():
    names = list(inspect.signature(voting_v0.env).parameters)
    assert names[:4] == ["task", "split", "max_cycles", "render_mode"]
    assert {"preset", "credit", "n_votes", "aggregate"} <= set(names)
    assert "unguarded" in str(voting_v0.raw_env.__doc__)


@pytest.mark.parametrize(("arguments", "options", "message"), TABLES["wrong"])
def test_wrong_names_and_options_name_the_valid_choices(arguments, options, message):
    options = {name: tuple(v) if isinstance(v, list) else v for name, v in options.items()}
    with pytest.raises(UsageError, match=message):
        make_env(*arguments, **options)


def test_a_ready_made_workflow_takes_no_options_and_no_other_task():
    workflow = make_workflow("single_v0", level=2)
    assert make_workflow(workflow) is workflow
    assert make_env(workflow).unwrapped.workflow is workflow
    with pytest.raises(UsageError, match="level: a Workflow instance takes no further options"):
        make_workflow(workflow, level=1)
    with pytest.raises(UsageError, match="has a task already"):
        make_workflow(workflow, MathTask(level=1))


def test_a_policy_map_without_a_role_is_refused_before_anything_runs():
    workflow = make_workflow("voting_v0")
    policy = ScriptedPolicy(workflow)
    with pytest.raises(UsageError, match=r"no policy for role aggregator.*roles are generator"):
        Rollout(workflow, PolicyMap({"generator": policy}))
    with pytest.raises(UsageError, match=r"unknown role or agent 'referee'"):
        Rollout(workflow, PolicyMap({"generator": policy, "aggregator": policy, "referee": policy}))


def test_an_unknown_skill_is_refused():
    workflow = Single(task=MathTask())
    with pytest.raises(UsageError, match=r"`skill` must be in \[0, 1\], got 2"):
        workflow.responder(workflow.task.problem(0), skill=2)


def test_a_task_of_another_kind_is_refused_before_its_extra_is_missed(monkeypatch):
    monkeypatch.setitem(sys.modules, "rapidfuzz", None)
    with pytest.raises(MissingExtraError, match=r"\[writing\]"):
        make_workflow("writing_pair", "writing")
    with pytest.raises(UsageError, match="voting_v0 does not support task 'writing'"):
        make_workflow("voting", "writing")


def test_a_task_of_another_kind_is_refused():
    class Searched(MathTask):
        kind = "search"

    with pytest.raises(
        UsageError, match=r"voting_v0 does not support.*kind 'search'.*kind math, code"
    ):
        Voting(task=Searched())
