"""DQN in the seat of the solver, in a vector environment of Gymnasium."""

import gymnasium
import torch
from agilerl.algorithms.dqn import DQN
from agilerl.components.replay_buffer import ReplayBuffer
from agilerl.training.train_off_policy import train_off_policy
from gymnasium.vector import AutoresetMode, SyncVectorEnv

import flowzoo  # noqa: F401 - registers the environments
from flowzoo.adapters.arrays import Choose, Encode, NgramEncoder

REPLIES = [f"\\boxed{{{number}}}" for number in (1, 2, 3, 4)]


def make() -> gymnasium.Env:
    """The solver's seat as a choice."""
    env = gymnasium.make("flowzoo/Single-v0", data="benchmarks/third_party/problems.jsonl")
    return Choose(Encode(env, NgramEncoder(64)), REPLIES)


def train(seed: int) -> list[float]:
    """Train, and return the rewards of the episodes."""
    torch.manual_seed(seed)
    env, steps = SyncVectorEnv([make] * 4, autoreset_mode=AutoresetMode.SAME_STEP), 1600
    agent = DQN(env.single_observation_space, env.single_action_space, lr=3e-3, gamma=0.0)
    train_off_policy(
        env, "solver", "DQN", [agent], ReplayBuffer(steps), max_steps=steps, evo_steps=steps,
        eps_decay=0.98, verbose=False,
    )  # fmt: skip
    return agent.scores
