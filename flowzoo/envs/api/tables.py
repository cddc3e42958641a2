"""PettingZoo's fields of an AEC environment: who is left, what each was paid and is told.

Agents all end at once. In the dead-step flush each comes round once more and leaves, in order.
"""

from __future__ import annotations

from typing import Any

from pettingzoo import AECEnv

from flowzoo.envs.episode.episode import Episode
from flowzoo.envs.episode.recording import episode_rewards, final_infos, fresh_info
from flowzoo.envs.episode.turns import Turn
from flowzoo.envs.script import Message
from flowzoo.errors import UsageError


class AgentTables(AECEnv[str, dict[str, list[Message]], str | None]):
    """The fields, and what changes them."""

    _prompts: dict[str, Turn]
    """The newest turn of each agent that was asked."""

    def _open_tables(self, infos: dict[str, dict[str, Any]]) -> None:
        """An episode begins: nobody was asked or paid yet."""
        agents = self.possible_agents
        self.agents = agents.copy()
        self.rewards = dict.fromkeys(agents, 0.0)
        self._cumulative_rewards = self.rewards.copy()
        self.terminations = dict.fromkeys(agents, False)
        self.truncations = self.terminations.copy()
        self.infos = infos
        self.agent_selection = agents[0]
        self._prompts = {}

    def _copy_tables(self, other: AgentTables) -> None:
        """The same values as another's, in fields of our own."""
        self.agents = list(other.agents)
        for name in ("rewards", "_cumulative_rewards", "terminations", "truncations"):
            setattr(self, name, dict(getattr(other, name)))
        self.infos = {agent: fresh_info(info) for agent, info in other.infos.items()}

    def _publish(self, phase: tuple[Turn, ...]) -> None:
        """Open a phase: what each of its agents sees and is told."""
        prompts, infos = self._prompts, self.infos
        for turn in phase:
            agent = turn.agent
            prompts[agent] = turn
            info = infos[agent]
            if turn.turn:  # an earlier one has been handed out
                info = infos[agent] = fresh_info(info)
            info["phase"], info["slot"], info["turn"] = turn.phase, turn.slot, turn.turn
            info["acted"] = True

    def _finish(self, episode: Episode) -> None:
        """The episode has ended: everyone is paid, and ends."""
        settled = episode_rewards(episode)
        agents, paid = self.agents, self._cumulative_rewards
        self.infos = final_infos(episode, settled, self.infos)
        self.rewards = dict(settled.returns)
        for agent, value in settled.returns.items():
            paid[agent] += value
        self.terminations = dict.fromkeys(agents, not episode.truncated)
        self.truncations = dict.fromkeys(agents, episode.truncated)
        self.agent_selection = agents[0]

    def _leave(self, agent: str, action: object) -> None:
        """The dead step of `agent`. All die at once, so the next in line is simply the first.

        Does what PettingZoo's `_was_dead_step` does in that case, without its scans.
        """
        if action is not None:
            raise UsageError(
                f"the episode of {agent} has ended: step(None), got {type(action).__name__}. "
                "Loop with `action = None if termination or truncation else ...`."
            )
        agents = self.agents
        if len(agents) == len(self.possible_agents):  # the first to leave: nobody is paid again
            self._clear_rewards()
        del self.terminations[agent], self.truncations[agent], self.infos[agent]
        del self.rewards[agent], self._cumulative_rewards[agent]
        agents.remove(agent)
        if agents:
            self.agent_selection = agents[0]
