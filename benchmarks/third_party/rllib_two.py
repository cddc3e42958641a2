"""PPO with a policy for each of two roles, with `PettingZooEnv`."""

from typing import Any

from ray.rllib.algorithms.ppo import PPOConfig
from ray.rllib.env.wrappers.pettingzoo_env import PettingZooEnv
from ray.tune.registry import register_env

from flowzoo import voting_v0
from flowzoo.adapters.arrays import Choose, Encode, NgramEncoder
from flowzoo.adapters.others import Play

REPLIES = [f"\\boxed{{{number}}}" for number in (1, 2, 3, 4)]


def make(_: Any) -> PettingZooEnv:
    """One solver and the judge of its candidate and a wrong one."""
    env = voting_v0.env(n_votes=2, data="benchmarks/third_party/problems.jsonl")
    env = Encode(Play(env, {"generator_1": "scripted:0"}), NgramEncoder(64))
    return PettingZooEnv(Choose(env, REPLIES))


def train(seed: int) -> list[float]:
    """Train, and return the rewards of the episodes."""
    register_env("voting", make)
    paid = list[float]()
    keep = lambda episode, **_: paid.append(episode.get_return() / 2)  # noqa: E731 - both are paid
    config = PPOConfig().environment("voting").callbacks(on_episode_end=keep)
    config = config.env_runners(num_env_runners=0).debugging(seed=seed)
    config = config.training(train_batch_size_per_learner=200, minibatch_size=64, lr=3e-3)
    names = {"generator_0", "aggregator_0"}
    config = config.multi_agent(
        policies=names, policy_mapping_fn=lambda agent, *_, **__: str(agent)
    )
    algorithm = config.build_algo()
    for _ in range(8):
        algorithm.train()
    algorithm.stop()
    return paid
