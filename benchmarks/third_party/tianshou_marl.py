"""DQN for each of two roles, with `PettingZooEnv` and the multi-agent `Collector`."""

import torch
from tianshou.algorithm.modelfree.dqn import DQN, DiscreteQLearningPolicy
from tianshou.algorithm.multiagent.marl import MultiAgentOffPolicyAlgorithm
from tianshou.algorithm.optim import AdamOptimizerFactory
from tianshou.data import Collector, VectorReplayBuffer
from tianshou.env import DummyVectorEnv, PettingZooEnv
from tianshou.utils.net.common import Net
from tianshou.utils.torch_utils import policy_within_training_step

from flowzoo import voting_v0
from flowzoo.adapters.arrays import BareInfos, Choose, Encode, NgramEncoder
from flowzoo.adapters.others import Play


def make() -> PettingZooEnv:
    """One solver and the judge of its candidate and a wrong one."""
    env = voting_v0.env(n_votes=2, data="benchmarks/third_party/problems.jsonl")
    env = Encode(Play(env, {"generator_1": "scripted:0"}), NgramEncoder(64))
    return PettingZooEnv(BareInfos(Choose(env, [f"\\boxed{{{n}}}" for n in (1, 2, 3, 4)])))


def train(seed: int) -> list[float]:
    """Train; the rewards of the episodes."""
    torch.manual_seed(seed)
    env, paid, optim = make(), list[float](), AdamOptimizerFactory(lr=1e-2)
    nets = [Net(state_shape=64, action_shape=4, hidden_sizes=[64]) for _ in env.agents]
    seats = [DiscreteQLearningPolicy(model=net, action_space=env.action_space) for net in nets]
    each = [DQN(policy=seat, optim=optim, gamma=1.0, n_step_return_horizon=2) for seat in seats]
    team = MultiAgentOffPolicyAlgorithm(algorithms=each, env=env)
    buffer = VectorReplayBuffer(4000, 4)
    collector = Collector(team, DummyVectorEnv([make] * 4), buffer, exploration_noise=True)
    for left in range(149, -1, -1):
        for seat in seats:  # the team does not tell them that it trains
            seat.set_eps_inference(max(0.05, left / 100 - 0.5))
        paid += collector.collect(n_episode=8, reset_before_collect=not paid).returns[:, 0].tolist()
        with policy_within_training_step(team.policy):
            team.update(buffer, 128)
    return paid
