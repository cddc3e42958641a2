"""The floor that environments and rollouts are measured against, and what leaves out the rest.

An AEC environment of as many agents that only rotates the selection and pays rewards in the
dead-step flush: PettingZoo's own bookkeeping. Grading is left out by a task that answers
instantly, models by a policy that does.
"""

from __future__ import annotations

from collections.abc import Sequence

import gymnasium
from pettingzoo import AECEnv

from flowzoo.agents import Completion, Request
from flowzoo.agents.policy import Batching
from flowzoo.envs import GradeResult, Problem
from flowzoo.envs.tasks.math import MathTask

REPLY = "\\boxed{1}"


class UngradedMath(MathTask):
    """The math task with grading and reading taken out of the measurement."""

    def problem(self, index: int, split: str = "train") -> Problem:
        """One fixed problem."""
        return Problem("math", split, 0, index, "Compute 2+3*4.", "14")

    def answer(self, text: str) -> str | None:
        """The text itself."""
        return text

    def grade_batch(
        self, problems: Sequence[Problem], answers: Sequence[str | None]
    ) -> list[GradeResult]:
        """Everything is right."""
        return [GradeResult(1.0, "equal")] * len(problems)


class FloorEnv(AECEnv):
    """PettingZoo's bookkeeping and nothing else: every agent has one turn."""

    metadata = {"name": "floor_v0", "render_modes": []}  # noqa: RUF012

    def __init__(self, agents: int = 4) -> None:
        super().__init__()
        self.possible_agents = [f"agent_{number}" for number in range(agents)]
        self._spaces = {agent: gymnasium.spaces.Discrete(2) for agent in self.possible_agents}

    def observation_space(self, agent: str) -> gymnasium.Space:
        """Any."""
        return self._spaces[agent]

    def action_space(self, agent: str) -> gymnasium.Space:
        """Any."""
        return self._spaces[agent]

    def observe(self, agent: str) -> int:
        """Nothing."""
        return 0

    def reset(self, seed: int | None = None, options: dict | None = None) -> None:
        """Start over."""
        self.agents = list(self.possible_agents)
        self.rewards = dict.fromkeys(self.agents, 0.0)
        self._cumulative_rewards = dict.fromkeys(self.agents, 0.0)
        self.terminations = dict.fromkeys(self.agents, False)
        self.truncations = dict.fromkeys(self.agents, False)
        self.infos = {agent: {} for agent in self.agents}
        self.agent_selection = self.agents[0]
        self._skip_agent_selection = None
        self._turn = 0

    def step(self, action: object) -> None:
        """Rotate; end after everyone's turn."""
        if self.terminations[self.agent_selection]:
            self._was_dead_step(action)
            return
        self._cumulative_rewards[self.agent_selection] = 0.0
        self._clear_rewards()
        self._turn += 1
        if self._turn == len(self.possible_agents):
            self.rewards = dict.fromkeys(self.possible_agents, 1.0)
            self.terminations = dict.fromkeys(self.possible_agents, True)
            self.agent_selection = self.possible_agents[0]
        else:
            self.agent_selection = self.possible_agents[self._turn]
        self._accumulate_rewards()


class InstantPolicy:
    """A policy that takes no time: what is left is the rollout engine."""

    name = "instant"
    batching: Batching = "stream"

    def __init__(self, reply: str = REPLY) -> None:
        self.reply = reply

    async def generate(self, requests: Sequence[Request]) -> list[Completion]:
        """The same reply to everything."""
        return [Completion(self.reply)] * len(requests)

    async def close(self) -> None:
        """Nothing to close."""


def play_through(env: AECEnv, episodes: int) -> int:
    """PettingZoo's documented loop; returns the number of live steps."""
    live = 0
    for _ in range(episodes):
        env.reset()
        for _ in env.agent_iter():
            _, _, terminated, truncated, _ = env.last()
            over = terminated or truncated
            live += not over
            env.step(None if over else REPLY)
    return live
