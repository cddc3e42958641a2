"""A plain loop in torch, as CleanRL writes them, in a vector environment of Gymnasium."""

from typing import Any

import gymnasium
import torch
from gymnasium.vector import AutoresetMode
from torch import nn

import flowzoo  # noqa: F401 - registers the environments
from flowzoo.adapters.arrays import Choose, Encode, NgramEncoder

REPLIES = [f"\\boxed{{{number}}}" for number in (1, 2, 3, 4)]


def learn(envs: Any, replies: int, steps: int, seed: int) -> list[float]:
    """Learn in episodes of one step with an actor and a critic; the rewards of the episodes."""
    torch.manual_seed(seed)
    net = nn.Sequential(nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, replies + 1))
    optimizer, paid = torch.optim.Adam(net.parameters(), 0.02), list[float]()
    seen, _ = envs.reset(seed=seed)
    for _ in range(steps):
        scores, expected = net(torch.as_tensor(seen)).split((replies, 1), 1)
        actions = (drawn := torch.distributions.Categorical(logits=scores)).sample()
        seen, rewards, *_ = envs.step(actions.numpy())
        paid += rewards.tolist()
        gap = torch.as_tensor(rewards) - expected[:, 0]
        optimizer.zero_grad()
        (gap**2 - gap.detach() * drawn.log_prob(actions)).mean().backward()
        optimizer.step()
    return paid


def train(seed: int) -> list[float]:
    """Train in sixteen environments at once."""
    options = {"data": "benchmarks/third_party/problems.jsonl", "num_envs": 16}
    wrappers = [lambda env: Choose(Encode(env, NgramEncoder(64)), REPLIES)]
    mode = {"autoreset_mode": AutoresetMode.SAME_STEP}
    envs = gymnasium.make_vec("flowzoo/Single-v0", vector_kwargs=mode, wrappers=wrappers, **options)
    return learn(envs, 4, 60, seed)
