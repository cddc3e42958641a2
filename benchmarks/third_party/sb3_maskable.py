"""MaskablePPO of sb3-contrib in the seat of the judge of three candidates, the second right."""

import gymnasium
from sb3_contrib import MaskablePPO
from stable_baselines3.common.monitor import Monitor

import flowzoo  # noqa: F401 - registers the environments
from flowzoo.adapters.arrays import ByteEncoder, Choose, Encode

OTHERS = {"generator": "scripted:0", "generator_1": "scripted:1"}
REPLIES = [f"\\boxed{{{number}}}" for number in range(1, 9)]


def train(seed: int) -> list[float]:
    """Train, and return the rewards of the episodes."""
    env = gymnasium.make("flowzoo/Voting-v0", role="aggregator", others=OTHERS)
    env = Monitor(Choose(Encode(env, ByteEncoder(64)), REPLIES))
    MaskablePPO("MlpPolicy", env, n_steps=64, learning_rate=3e-3, seed=seed).learn(1000)
    return env.get_episode_rewards()
