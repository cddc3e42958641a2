"""SuperSuit: its wrappers and vector environments."""

from __future__ import annotations

from typing import Any

import supersuit
from rows import Row, learned, play, play_parallel, report

from flowzoo import voting_v0, writing_pair_v0

ARRAYS = "it calculates with arrays"


def both(wrap: Any) -> Any:
    """An episode of the wrapped AEC environment, and one of a parallel environment."""

    def check() -> None:
        assert len(play(wrap(voting_v0.env()))) == 4
        assert len(play_parallel(wrap(writing_pair_v0.parallel_env()))) == 2

    return check


def aec(wrap: Any) -> Any:
    """An episode of the wrapped AEC environment."""
    return lambda: play(wrap(voting_v0.env()))


def raised() -> None:
    """Rewards are changed on their way."""
    env = supersuit.reward_lambda_v0(voting_v0.env(credit="local"), lambda reward: reward + 1)
    env.reset(seed=0)
    for _ in range(4):
        env.step("\\boxed{1}")
    assert min(env.rewards.values()) > 1


def last_message(observation: Any, space: Any, agent: str) -> Any:
    """The newest message."""
    return {"messages": observation["messages"][-1:]}


def same_space(space: Any, agent: str = "") -> Any:
    """The space as it is."""
    return space


def stripped(reply: str | None, space: Any) -> str | None:
    """A reply without its blanks."""
    return reply if reply is None else reply.strip()


def vectorised() -> None:
    """The agents of a parallel environment, as the rows of a vector environment."""
    envs = supersuit.pettingzoo_env_to_vec_env_v1(writing_pair_v0.parallel_env())
    envs.reset(seed=0)
    _, rewards, *_ = envs.step(["A summary.", "A longer summary."])
    assert len(rewards) == 2


def concatenated() -> None:
    """Two of those."""
    single = supersuit.pettingzoo_env_to_vec_env_v1(writing_pair_v0.parallel_env())
    envs = supersuit.concat_vec_envs_v1(single, 2, num_cpus=0, base_class="gymnasium")
    observed, _ = envs.reset(seed=0)
    assert len(observed["messages"]) == 4
    _, rewards, *_ = envs.step(["A summary."] * 4)
    assert len(rewards) == 4


def vectorised_aec() -> None:
    """Two AEC environments in step."""
    envs = supersuit.vectorize_aec_env_v0(voting_v0.env(), 2)
    envs.reset(seed=0)
    for agent in envs.agent_iter(4):
        envs.last()
        envs.step([envs.action_space(agent).sample() for _ in range(2)])


ROWS = [
    Row("`reward_lambda_v0`", raised),
    Row("`clip_reward_v0`", both(supersuit.clip_reward_v0)),
    Row(
        "`observation_lambda_v0`",
        both(lambda env: supersuit.observation_lambda_v0(env, last_message, same_space)),
    ),
    Row(
        "`action_lambda_v1`",
        both(lambda env: supersuit.action_lambda_v1(env, stripped, same_space)),
    ),
    Row("`sticky_actions_v0`", both(lambda env: supersuit.sticky_actions_v0(env, 0.5))),
    Row("`pettingzoo_env_to_vec_env_v1`", vectorised),
    Row("`concat_vec_envs_v1`", concatenated),
    Row("`vectorize_aec_env_v0`", vectorised_aec),
    Row(
        "`delay_observations_v0`",
        aec(lambda env: supersuit.delay_observations_v0(env, 1)),
        error="must be of type np.ndarray",
        why=ARRAYS,
    ),
    Row(
        "`frame_stack_v1`",
        aec(lambda env: supersuit.frame_stack_v1(env, 2)),
        error="only allowed for Box and Discrete",
        why=ARRAYS,
    ),
    Row(
        "`max_observation_v0`",
        aec(lambda env: supersuit.max_observation_v0(env, 2)),
        error="not supported between instances of 'dict'",
        why=ARRAYS,
    ),
    Row(
        "`agent_indicator_v0`",
        aec(supersuit.agent_indicator_v0),
        error="must be 1d, 2d, or 3d Box or Discrete",
        why=f"{ARRAYS}; `info` has the role",
    ),
    Row(
        "`pad_observations_v0`, `pad_action_space_v0`",
        aec(lambda env: supersuit.pad_action_space_v0(supersuit.pad_observations_v0(env))),
        error="only supports Discrete and Box",
        why="all agents have the same spaces already",
    ),
    Row(
        "`black_death_v3`",
        lambda: supersuit.black_death_v3(writing_pair_v0.parallel_env()).reset(seed=0),
        error="must be Box spaces",
        why="agents end together, there is nobody to black out",
    ),
    Row(
        "`flatten_v0`, `dtype_v0`, `clip_actions_v0`",
        aec(supersuit.flatten_v0),
        error="has no attribute",
        why=ARRAYS,
    ),
    learned("supersuit_vectors"),
]

if __name__ == "__main__":
    report("SuperSuit", ("supersuit", "pettingzoo"), ROWS)
