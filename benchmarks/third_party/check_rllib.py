"""RLlib: its wrappers of PettingZoo, and an algorithm."""

from __future__ import annotations

import logging
from typing import Any

from arrays import choose_candidate
from ray.rllib.algorithms.ppo import PPOConfig
from ray.rllib.env.wrappers.pettingzoo_env import ParallelPettingZooEnv, PettingZooEnv
from ray.tune.registry import register_env
from rows import Row, report

from flowzoo import voting_v0, writing_pair_v0

logging.disable(logging.WARNING)


def aec() -> None:
    """An episode in RLlib's multi-agent interface."""
    env = PettingZooEnv(voting_v0.env())
    observed, _ = env.reset(seed=0)
    turns, spaces = 0, dict(env.action_spaces or {})
    while True:
        replies = {agent: spaces[agent].sample() for agent in observed}
        observed, rewards, ended, _, _ = env.step(replies)
        turns += 1
        if ended["__all__"]:
            break
    assert turns == 4
    assert len(rewards) == 4


def parallel() -> None:
    """A step of a pair."""
    env = ParallelPettingZooEnv(writing_pair_v0.parallel_env())
    observed, _ = env.reset(seed=0)
    _, rewards, ended, *_ = env.step(dict.fromkeys(observed, "A summary."))
    assert ended["__all__"]
    assert len(rewards) == 2


def small(name: str) -> Any:
    """PPO at its smallest, in this process."""
    config = PPOConfig().environment(name).learners(num_learners=0)
    config = config.env_runners(num_env_runners=0, rollout_fragment_length=64)
    return config.training(train_batch_size_per_learner=128, minibatch_size=64, num_epochs=1)


def text() -> None:
    """An algorithm on texts."""
    register_env("voting", lambda _: PettingZooEnv(voting_v0.env()))
    config = small("voting").multi_agent(
        policies={"shared"}, policy_mapping_fn=lambda *_, **__: "shared"
    )
    config.build_algo().stop()


def numbers() -> None:
    """An iteration of PPO on a role in numbers."""
    register_env("ballot", choose_candidate)
    algorithm = small("ballot").build_algo()
    result = algorithm.train()
    algorithm.stop()
    assert 0 <= result["env_runners"]["episode_return_mean"] <= 1


ROWS = [
    Row("`PettingZooEnv`, AEC", aec),
    Row("`ParallelPettingZooEnv`", parallel),
    Row(
        "PPO, its default modules on texts",
        text,
        error="No default encoder config for obs space",
        why="its encoders and action distributions are for arrays",
    ),
    Row(
        "PPO on a role in numbers",
        numbers,
        using="`Choose`, `Encode`, `BareInfos` of `flowzoo.adapters.arrays`",
    ),
]

if __name__ == "__main__":
    report("RLlib", ("ray", "gymnasium", "torch"), ROWS)
