"""DQN on one agent, with `Collector`."""

import gymnasium
import torch
from tianshou.algorithm import DQN
from tianshou.algorithm.modelfree.dqn import DiscreteQLearningPolicy
from tianshou.algorithm.optim import AdamOptimizerFactory
from tianshou.data import Collector, VectorReplayBuffer
from tianshou.env import DummyVectorEnv
from tianshou.utils.net.common import Net
from tianshou.utils.torch_utils import policy_within_training_step

import flowzoo  # noqa: F401 - registers the environments
from flowzoo.adapters.arrays import BareInfos, Choose, Encode, NgramEncoder

REPLIES = [f"\\boxed{{{number}}}" for number in (1, 2, 3, 4)]


def make() -> gymnasium.Env:
    """The solver's seat as a choice."""
    env = gymnasium.make("flowzoo/Single-v0", data="benchmarks/third_party/problems.jsonl")
    return BareInfos(Choose(Encode(env, NgramEncoder(64)), REPLIES))


def train(seed: int) -> list[float]:
    """Train, and return the rewards of the episodes."""
    torch.manual_seed(seed)
    net, space = Net(state_shape=64, action_shape=4, hidden_sizes=[64]), make().action_space
    policy = DiscreteQLearningPolicy(model=net, action_space=space, eps_training=0.1)
    paid, optim = list[float](), AdamOptimizerFactory(lr=1e-2)
    algorithm = DQN(policy=policy, optim=optim, gamma=0.0)
    envs, buffer = DummyVectorEnv([make] * 4), VectorReplayBuffer(2000, 4)
    collector = Collector(algorithm, envs, buffer, exploration_noise=True)
    with policy_within_training_step(policy):
        for _ in range(150):
            paid += collector.collect(n_episode=8, reset_before_collect=not paid).returns.tolist()
            algorithm.update(buffer, 64)
    return paid
