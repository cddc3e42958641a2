"""Values that people type in Python: NumPy integers, classes, modules, cycles, their own tokens."""

import pickle
import warnings

import gymnasium
import numpy as np
import pytest
from pettingzoo.utils.conversions import aec_to_parallel
from processes import run_python

from flowzoo import code_pair_v0, voting_v0, writing_pair_v0
from flowzoo.baselines.settings.config import TrainConfig
from flowzoo.envs import SampledReply, make_env, make_workflow
from flowzoo.envs.api import aec
from flowzoo.envs.api.solo import SoloEnv
from flowzoo.envs.tasks import make_task
from flowzoo.envs.tasks.math import MathTask
from flowzoo.envs.workflows.voting import Voting
from flowzoo.errors import UsageError
from flowzoo.seeding import key_int


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


def test_a_vote_takes_one_cycle():
    env = voting_v0.env(max_cycles=1)
    env.reset(seed=0)
    gold = env.unwrapped.episode.problem.gold
    for agent in env.agent_iter():
        over = env.last()[2] or env.last()[3]
        env.step(
            None if over else "\\boxed{1}" if agent == "aggregator_0" else f"\\boxed{{{gold}}}"
        )
    assert not env.record().truncated
    assert env.record().score == 1.0


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
    env = gymnasium.make("flowzoo/Voting-v0", role="generator", others=others)
    env.reset(seed=0)
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
        env = SoloEnv("single_v0")
        env.reset(seed=0)
        env.step(reply)
    elif kind == "parallel":
        env = writing_pair_v0.parallel_env()
        env.reset(seed=0)
        env.step({"writer_0": reply, "writer_1": "plain"})
    else:
        env = writing_pair_v0.env()
        env.reset(seed=0)
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
