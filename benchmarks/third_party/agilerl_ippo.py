"""IPPO on a parallel environment: two writers who are paid together, a network for each."""

from typing import Any

import torch
from agilerl.algorithms.ippo import IPPO
from agilerl.training.train_multi_agent_on_policy import train_multi_agent_on_policy
from pettingzoo.utils.wrappers import BaseParallelWrapper
from writing import pair


class Named(BaseParallelWrapper):
    """Agents by other names, and no infos: every choice is legal here."""

    names: dict[str, str]

    def reset(self, *args: Any, **options: Any) -> tuple[Any, dict[str, Any]]:
        """Start an episode."""
        return self.named(super().reset(*args, **options)[0]), {}

    def step(self, actions: Any) -> tuple[Any, ...]:
        """Act at once."""
        own = {agent: actions[name] for agent, name in self.names.items()}
        return *map(self.named, super().step(own)[:4]), {}

    def named(self, values: dict[str, Any]) -> dict[str, Any]:
        """Values by the other names."""
        return {self.names[agent]: value for agent, value in values.items()}


def train(seed: int, names: tuple[str, ...] = ("first", "second")) -> list[float]:
    """Train; the rewards of the episodes."""
    torch.manual_seed(seed)
    env, steps = Named(pair()), 640
    env.names = dict(zip(env.possible_agents, names, strict=True))
    spaces = [[*map(space, env.names)] for space in (env.observation_space, env.action_space)]
    team = IPPO(*spaces, agent_ids=[*names], learn_step=64, lr=0.01, gamma=0.0)
    train_multi_agent_on_policy(env, "", "IPPO", [team], max_steps=steps, evo_steps=steps)
    return [score / 2 for score in team.scores]  # sums over both
