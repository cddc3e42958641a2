"""RLlib: its wrappers of PettingZoo, and an algorithm."""

from __future__ import annotations

import logging

from ray.rllib.algorithms.ppo import PPOConfig
from ray.rllib.env.wrappers.pettingzoo_env import ParallelPettingZooEnv, PettingZooEnv
from ray.tune.registry import register_env
from rows import Row, learned, report

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


def text() -> None:
    """An algorithm on texts."""
    register_env("voting", lambda _: PettingZooEnv(voting_v0.env()))
    config = PPOConfig().environment("voting").env_runners(num_env_runners=0)
    config = config.multi_agent(policies={"shared"}, policy_mapping_fn=lambda *_, **__: "shared")
    config.build_algo().stop()


ROWS = [
    Row("`PettingZooEnv`, AEC", aec),
    Row("`ParallelPettingZooEnv`", parallel),
    Row(
        "PPO, its default modules on texts",
        text,
        error="No default encoder config for obs space",
        why="its encoders and action distributions are for arrays",
    ),
    learned("rllib_two"),
]

if __name__ == "__main__":
    report("RLlib", ("ray", "gymnasium", "torch"), ROWS)
