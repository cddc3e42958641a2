"""AEC and parallel environments of some agents, with policies in the seats of the others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from pettingzoo import AECEnv, ParallelEnv
from pettingzoo.utils.wrappers import BaseParallelWrapper, BaseWrapper

from flowzoo.adapters.outside import Others, PolicyPlayer, free_agents
from flowzoo.aliases import AgentInfo, ResetOptions
from flowzoo.envs.api.aec import WorkflowEnv
from flowzoo.errors import UsageError

E = TypeVar("E", bound=AECEnv | ParallelEnv)


def Play(env: E, others: Others, played: str | Sequence[str] = ()) -> E:
    """An environment of the agents that `others` leaves free; policies play the rest.

    Args:
        env: a workflow's AEC or parallel environment.
        others: policies by role or agent, as `flowzoo eval --policy` takes them ("scripted:0.5",
            "hf:PATH", "openai:MODEL@URL") or Policy objects; or one for all but `played`.
        played: roles or agents that are left free, with one policy for all others.

    Raises:
        UsageError: an unknown role or agent, or policies that leave no agent free.
    """
    core = getattr(getattr(env, "aec", env), "unwrapped", None)
    if not isinstance(core, WorkflowEnv):
        raise UsageError(f"expected an AEC or parallel environment of flowzoo, got {env!r:.80}.")
    free = free_agents(core.workflow, others, played)
    player = PolicyPlayer(core.workflow, others, free)
    make = PlayedParallel if isinstance(env, ParallelEnv) else PlayedAEC
    return make(env, free, player)  # type: ignore[return-value]


class _Played:
    """Some agents of an environment, and who plays the others."""

    env: Any

    def __init__(self, env: Any, played: Sequence[str], player: PolicyPlayer) -> None:
        super().__init__(env)  # type: ignore[call-arg] - of PettingZoo's wrapper
        self.player = player
        self.possible_agents = list(played)

    @property
    def agents(self) -> list[str]:  # type: ignore[override]
        """Agents of yours that have not left the episode."""
        return [agent for agent in self.env.agents if agent in self.possible_agents]

    def _select_agents(self, values: Mapping[str, Any]) -> dict[str, Any]:
        return {agent: value for agent, value in values.items() if agent in self.possible_agents}


class PlayedAEC(_Played, BaseWrapper[str, Any, Any]):
    """An AEC environment of some agents."""

    def __init__(self, env: Any, played: Sequence[str], player: PolicyPlayer) -> None:
        super().__init__(env, played, player)
        self._rewards = dict[str, float]()

    def reset(self, seed: int | None = None, options: ResetOptions | None = None) -> None:
        """Start an episode; see `WorkflowEnv.reset`."""
        self.env.reset(seed=seed, options=options)
        self._rewards = dict.fromkeys(self.possible_agents, 0.0)
        self._play()

    def step(self, action: Any) -> None:
        """Submit the action of the selected agent, and play until one of yours is selected."""
        self._rewards = dict.fromkeys(self.agents, 0.0)
        self._step(action)
        self._play()

    def _play(self) -> None:
        env = self.env
        while env.agents and (agent := env.agent_selection) not in self.possible_agents:
            ended = env.terminations[agent] or env.truncations[agent]
            core: Any = env.unwrapped
            self._step(None if ended else self.player.reply(core.episode, agent))

    def _step(self, action: Any) -> None:
        self.env.step(action)
        for agent in self._rewards:
            self._rewards[agent] += self.env.rewards.get(agent, 0.0)

    @property
    def rewards(self) -> dict[str, float]:  # type: ignore[override]
        """Rewards of your last step and of the steps of the others after it."""
        return {agent: self._rewards.get(agent, 0.0) for agent in self.agents}

    @property
    def terminations(self) -> dict[str, bool]:  # type: ignore[override]
        """Terminations by agent."""
        return self._select_agents(self.env.terminations)

    @property
    def truncations(self) -> dict[str, bool]:  # type: ignore[override]
        """Truncations by agent."""
        return self._select_agents(self.env.truncations)

    @property
    def infos(self) -> dict[str, AgentInfo]:  # type: ignore[override]
        """Infos by agent."""
        return self._select_agents(self.env.infos)


class PlayedParallel(_Played, BaseParallelWrapper[str, Any, Any]):
    """A parallel environment of some agents."""

    def reset(
        self, seed: int | None = None, options: ResetOptions | None = None
    ) -> tuple[dict[str, Any], dict[str, AgentInfo]]:
        """Start an episode; see `WorkflowEnv.reset`."""
        observations, infos = self.env.reset(seed=seed, options=options)
        return self._select_agents(observations), self._select_agents(infos)

    def step(self, actions: Mapping[str, Any]) -> Any:
        """Submit the actions of your agents beside the replies of the others."""
        core: Any = self.env.unwrapped
        episode = core.aec.episode
        replies = {
            agent: self.player.reply(episode, agent)
            for agent in self.env.agents
            if agent not in self.possible_agents
        }
        return tuple(map(self._select_agents, self.env.step({**actions, **replies})))
