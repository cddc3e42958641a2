"""DQN of Stable-Baselines3 in the seat of the solver."""

import gymnasium
from stable_baselines3 import DQN
from stable_baselines3.common.monitor import Monitor

import flowzoo  # noqa: F401 - registers the environments
from flowzoo.adapters.arrays import Choose, Encode, NgramEncoder

PROBLEMS = "benchmarks/third_party/problems.jsonl"
REPLIES = [f"\\boxed{{{number}}}" for number in (1, 2, 3, 4)]


def train(seed: int) -> list[float]:
    """Train, and return the rewards of the episodes."""
    env = gymnasium.make("flowzoo/Single-v0", data=PROBLEMS)
    env = Monitor(Choose(Encode(env, NgramEncoder(64)), REPLIES))
    model = DQN("MlpPolicy", env, learning_rate=3e-3, learning_starts=100, gamma=0.0, seed=seed)
    model.learn(1500)
    return env.get_episode_rewards()
