"""Names, registration with PettingZoo and Gymnasium, and values that people type in Python."""

import inspect
import pickle
import sys
import warnings

import gymnasium
import numpy as np
import pettingzoo
import pytest
from pettingzoo.utils.conversions import aec_to_parallel
from processes import run_python

import flowzoo
from flowzoo import code_pair_v0, voting_v0, writing_pair_v0
from flowzoo.agents import PolicyMap
from flowzoo.agents.rollout.episodes import Rollout
from flowzoo.agents.scripted import ScriptedPolicy
from flowzoo.baselines.settings.config import TrainConfig
from flowzoo.envs import SampledReply, make_env, make_workflow
from flowzoo.envs.api import aec
from flowzoo.envs.api.registry import WORKFLOWS, workflow_class
from flowzoo.envs.api.solo import SoloEnv
from flowzoo.envs.tasks import make_task
from flowzoo.envs.tasks.math import MathTask
from flowzoo.envs.workflows.single import Single
from flowzoo.envs.workflows.voting import Voting
from flowzoo.errors import MissingExtraError, UsageError
from flowzoo.seeding import key_int
from tests.envs.playing import opened
from tests.tables import read_tables

TABLES = read_tables(__file__)

assert flowzoo.__version__  # the import is what registers


@pytest.mark.parametrize("name", WORKFLOWS)
def test_pettingzoo_makes_every_workflow(name):
    env = opened(pettingzoo.make("aec", f"flowzoo/{name.replace('_', '-')}", seed=2, max_cycles=1))
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


def test_a_seed_is_an_integer_of_any_library():
    env, same = voting_v0.env(), voting_v0.env()
    env.reset(seed=42)
    same.reset(seed=np.int64(42))
    assert env.last() == same.last()
    assert key_int("a", np.int32(3)) == key_int("a", 3)
    assert make_task("math", seed=np.int64(3)) == make_task("math", seed=3)
    assert type(make_workflow("voting", n_votes=np.int8(5)).n_votes) is int
    view = SoloEnv("single_v0")
    assert view.reset(seed=np.uint8(7))[0] == SoloEnv("single_v0").reset(seed=7)[0]


@pytest.mark.parametrize("seed", [True, 1.5, "a", np.float64(1), [1]])
def test_what_is_no_integer_is_no_seed(seed):
    with pytest.raises(UsageError, match="seed: expected an integer"):
        voting_v0.env().reset(seed=seed)


def test_options_are_integers_and_unknown_ones_are_told_of_once(monkeypatch):
    monkeypatch.setattr(aec, "_TOLD", {"options"})
    env = voting_v0.env()
    env.reset(options={"index": np.int64(3)})
    assert env.unwrapped.episode.problem.index == 3
    with pytest.warns(
        UserWarning, match=r"unknown option 'problem'; its options are index, sample"
    ) as caught:
        env.reset(options={"problem": 3})
    assert caught[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        env.reset(options={"problem": 3, "options": 1})
    with pytest.raises(UsageError, match=r"must be an integer >= 0, got 1\.5"):
        env.reset(options={"sample": 1.5})


VIEWS = {
    "env": voting_v0.env, "raw_env": voting_v0.raw_env, "parallel_env": code_pair_v0.parallel_env,
    "aec_to_parallel": lambda: aec_to_parallel(code_pair_v0.env()),
    "gymnasium": lambda: gymnasium.make("flowzoo/Single-v0"),
}  # fmt: skip


@pytest.mark.parametrize("view", VIEWS)
def test_a_warning_shows_the_line_of_the_user_through_every_view(view, monkeypatch):
    monkeypatch.setattr(aec, "_TOLD", {"options"})
    with pytest.warns(UserWarning, match="unknown option 'problem'") as caught:
        VIEWS[view]().reset(options={"problem": 3})
    assert [item.filename for item in caught] == [__file__]


def test_episodes_of_one_problem_have_keys_of_their_own():
    env = voting_v0.env()
    keys = []
    for options in ({}, {}, {"sample": 7}):
        env.reset(options={"index": 3, **options})
        keys.append(env.last()[4]["episode_key"])
    assert keys == [f"math/train/0/level-1:3#{sample}" for sample in (0, 1, 7)]
    assert env.unwrapped.episode.key == keys[-1]


@pytest.mark.parametrize("module", [writing_pair_v0, code_pair_v0])
def test_one_cycle_is_a_step_of_everybody(module):
    for env in (module.parallel_env(max_cycles=1), aec_to_parallel(module.env(max_cycles=1))):
        observations, _ = env.reset(seed=0)
        assert all(chat["messages"] for chat in observations.values())
        actions = {agent: env.action_space(agent).sample() for agent in env.agents}
        _, _, terminated, truncated, _ = env.step(actions)
        assert all(terminated[agent] or truncated[agent] for agent in actions)


@pytest.mark.parametrize("module", [writing_pair_v0, code_pair_v0])
def test_pettingzoos_conversion_plays_the_same(module):
    converted, native = aec_to_parallel(module.env()), module.parallel_env()
    assert converted.metadata["is_parallelizable"]
    first, _ = converted.reset(seed=3)
    assert first == native.reset(seed=3)[0]
    while native.agents:
        actions = {agent: f"def {agent}(): pass" for agent in native.agents}
        converted_step, ours = converted.step(actions), native.step(actions)
        assert {a: converted_step[1][a] for a in actions} == ours[1]
        assert converted.agents == native.agents
    assert not voting_v0.env().metadata["is_parallelizable"]


def test_a_workflow_is_a_module_of_flowzoo():
    code = (
        "import flowzoo.voting_v0, flowzoo.envs.voting_v0, flowzoo\n"
        "from flowzoo.single_v0 import env\n"
        "print(flowzoo.voting_v0 is flowzoo.envs.voting_v0, env().metadata['name'])\n"
        "try:\n    import flowzoo.nothing_v0\n"
        "except ModuleNotFoundError as error:\n    print(error)"
    )
    assert run_python(code).splitlines() == [
        "True single_v0",
        "No module named 'flowzoo.nothing_v0'",
    ]


def test_settings_of_a_run_take_classes():
    config = TrainConfig(workflow=Voting, task=MathTask)  # type: ignore[arg-type]
    assert config.workflow == "flowzoo.envs.workflows.voting:Voting"
    assert config.task == "flowzoo.envs.tasks.math:MathTask"
    assert "/" not in config.directory.name
    assert ":" not in config.directory.name
    assert type(make_workflow(config.workflow, config.task)) is Voting

    class Local(Voting):
        pass

    with pytest.raises(UsageError, match="Local cannot be found by its name"):
        TrainConfig(workflow=Local)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="settings of a task go into `options`"):
        TrainConfig(task=MathTask(level=2))  # type: ignore[arg-type]
    assert make_env(Voting, MathTask, level=2).unwrapped.workflow.task.level == 2


def first_candidate(role, messages):
    return "\\boxed{1}"


@pytest.mark.parametrize("others", [None, {"aggregator": first_candidate}, "scripted:0.5"])
def test_a_view_is_pickled_in_the_middle_of_an_episode(others):
    env = opened(gymnasium.make("flowzoo/Voting-v0", role="generator", others=others))
    env.step("\\boxed{1}")
    twin = pickle.loads(pickle.dumps(env))
    for text in ("\\boxed{2}", "\\boxed{3}"):
        assert twin.step(text) == env.step(text)


def test_environments_share_no_list_of_render_modes():
    modes = [env.metadata["render_modes"] for env in (voting_v0.env(), voting_v0.env())]
    modes += [code_pair_v0.parallel_env().metadata["render_modes"]]
    modes[0].append("mine")
    assert "mine" not in (*modes[1], *modes[2], *voting_v0.env().metadata["render_modes"])


@pytest.mark.parametrize("kind", ["guarded", "parallel", "solo", "forked", "pickled"])
def test_what_a_sampler_knows_of_a_reply_comes_back_in_the_record(kind):
    expected = {"policy": "mine", "prompt_ids": [1, 2], "output_ids": [5, 6], "logps": [-0.5, -1.0]}
    reply = SampledReply("a short text", **expected, version=3)
    if kind == "solo":
        env = opened(SoloEnv("single_v0"))
        env.step(reply)
    elif kind == "parallel":
        env = opened(writing_pair_v0.parallel_env())
        env.step({"writer_0": reply, "writer_1": "plain"})
    else:
        env = opened(writing_pair_v0.env())
        env.step(reply)
        if kind != "guarded":
            env = env.fork() if kind == "forked" else pickle.loads(pickle.dumps(env))
        env.step("plain")
    first, *rest = env.record().calls
    assert {name: getattr(first, name) for name in expected} == expected
    assert (first.reply, type(first.reply), first.version) == ("a short text", str, 3)
    assert all((call.policy, call.output_ids) == ("", ()) for call in rest)


def test_arrays_are_taken_and_copies_keep_what_is_known():
    ids, logps = np.array([5, 6]), np.array([-0.5, -1.0], np.float32)
    reply = SampledReply("text", output_ids=ids, logps=logps)
    again = pickle.loads(pickle.dumps(reply))
    assert (again, again.engine()) == ("text", reply.engine())
    assert (reply.output_ids, type(reply.output_ids[0])) == ([5, 6], int)


@pytest.mark.parametrize(
    ("sampled", "message"),
    [
        (
            {"output_ids": [1, 2], "logps": [-1.0]},
            "one log-prob for each output token, got 1 for 2",
        ),
        ({"output_ids": [1.5], "logps": [-1.0]}, "token ids must be integers"),
        ({"output_ids": [1], "logps": [float("nan")]}, "log-probs must be finite and at most 0"),
        ({"output_ids": [1], "logps": [0.5]}, "log-probs must be finite and at most 0, got 0.5"),
        ({"finish": "stopped"}, "unknown finish 'stopped'. Did you mean 'stop'"),
    ],
)
def test_tokens_that_cannot_be_are_refused(sampled, message):
    with pytest.raises(UsageError, match=message):
        SampledReply("text", **sampled)
