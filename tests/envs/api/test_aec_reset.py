"""Spaces (rule 14), seeds, problems and arguments of the AEC adapter."""

from typing import Any

import pytest

from flowzoo.envs.api.parallel import ParallelWorkflowEnv
from flowzoo.envs.api.registry import make_env, make_workflow
from flowzoo.envs.api.solo import SoloEnv
from flowzoo.errors import UsageError


def test_spaces_are_the_same_object_every_time_and_per_environment():
    env, other = make_env("voting_v0"), make_env("voting_v0")
    for agent in env.possible_agents:
        assert env.action_space(agent) is env.action_space(agent)
        assert env.action_space(agent) is not other.action_space(agent)
        assert env.observation_space(agent) is not other.observation_space(agent)
    agents = env.possible_agents
    assert len({id(env.action_space(agent)) for agent in agents}) == len(agents)


def test_sampling_a_forks_space_leaves_the_original_alone():
    """A fork has the spaces' state, not the spaces."""
    env = make_env("voting_v0")
    env.reset(seed=0)
    space = env.action_space("generator_0")
    space.seed(5)
    twin = env.fork().action_space("generator_0")
    others = [twin.sample() for _ in range(20)]
    assert [space.sample() for _ in range(20)] == others
    nested = env.observation_space("generator_0")
    assert env.fork().observation_space("generator_0")["messages"] is not nested["messages"]
    assert env.fork().observation_space("generator_0") == nested
    assert env.fork().state_space is not env.state_space


def test_a_seed_fixes_all_following_problems():
    def problems(seed: int | None, env: Any) -> list[str]:
        env.reset(seed=seed)
        ids = [env.unwrapped.episode.problem.id]
        for _ in range(4):
            env.reset()
            ids.append(env.unwrapped.episode.problem.id)
        return ids

    env = make_env("single_v0")
    assert problems(7, env) == problems(7, make_env("single_v0"))
    assert len(set(problems(7, env))) == 5
    assert problems(0, env) == problems(0, env) != problems(7, env)


def test_the_index_option_picks_a_problem_and_is_checked():
    env = make_env("single_v0", split="validation")
    with pytest.warns(UserWarning, match="reset\\(\\) ignores the unknown option 'whatever'"):
        env.reset(options={"index": 3, "whatever": 1, "options": 1})
    assert env.unwrapped.episode.problem == env.unwrapped.workflow.task.problem(3, "validation")
    for index in (-1, True, "3", 1.5):
        with pytest.raises(UsageError, match="must be an integer >= 0"):
            env.reset(options={"index": index})


@pytest.mark.parametrize(
    ("name", "meant"),
    [("indx", "index"), ("idx", "index"), ("Index", "index"), ("samples", "sample")],
)
def test_a_misspelt_option_is_an_error(name, meant):
    pair = ParallelWorkflowEnv(make_workflow("writing_pair_v0"))
    for env in (make_env("single_v0"), pair, SoloEnv("single_v0")):
        with pytest.raises(UsageError, match=f"no option '{name}': did you mean '{meant}'"):
            env.reset(options={name: 3})
        env.reset(options={meant: 3})


def test_an_index_beyond_a_file_names_its_size(tmp_path):
    rows = '{"question": "1+1?", "answer": "2\\n#### 2"}\n' * 2
    (tmp_path / "two.jsonl").write_text(rows)
    env = make_env("single_v0", data=str(tmp_path / "two.jsonl"), split="all")
    size = env.unwrapped.workflow.task.size("all")
    with pytest.raises(UsageError, match=f"must be below {size}, the size of split 'all'; got 9"):
        env.reset(options={"index": 9})


def test_a_closed_environment_needs_a_reset():
    env = make_env("single_v0")
    env.reset(seed=0)
    env.close()
    with pytest.raises(UsageError, match="no episode"):
        env.step("x")
