"""IPPO on a parallel environment: two writers who are paid together."""

from typing import Any

import torch
from agilerl.algorithms.ippo import IPPO
from agilerl.training.train_multi_agent_on_policy import train_multi_agent_on_policy
from pettingzoo.utils.wrappers import BaseParallelWrapper
from writing import pair


class WithoutInfos(BaseParallelWrapper):
    """Every choice is legal here, and IPPO takes no masks that are arrays."""

    def reset(self, *args: Any, **options: Any) -> tuple[Any, dict[str, Any]]:
        """Start an episode."""
        return super().reset(*args, **options)[0], {agent: {} for agent in self.agents}

    def step(self, actions: Any) -> tuple[Any, ...]:
        """Act at once."""
        return *super().step(actions)[:4], {agent: {} for agent in self.agents}


def train(seed: int, env: Any = None) -> list[float]:
    """Train; the rewards of the episodes."""
    torch.manual_seed(seed)
    env, steps = env or WithoutInfos(pair()), 640
    agents = env.possible_agents
    seen, choices = [
        list(map(space, agents)) for space in (env.observation_space, env.action_space)
    ]
    team = IPPO([*seen], [*choices], agent_ids=agents, learn_step=64, batch_size=64, lr=0.01)
    train_multi_agent_on_policy(
        env, "writing", "IPPO", [team], max_steps=steps, evo_steps=steps, verbose=False
    )
    return [score / 2 for score in team.scores]  # sums over both
