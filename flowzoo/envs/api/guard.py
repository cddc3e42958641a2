"""Wrapper that checks the order of calls and the type of actions."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

from pettingzoo.utils.wrappers import OrderEnforcingWrapper

from flowzoo.envs.api.aec import WorkflowEnv
from flowzoo.envs.records import EpisodeRecord
from flowzoo.envs.script import Message
from flowzoo.errors import UsageError

Obs = dict[str, list[Message]]


# PettingZoo's own stack (OrderEnforcing over AssertOutOfBounds) checks this too, through a
# recursive `__getattr__` that costs more than the environment itself.
class Guard(OrderEnforcingWrapper[str, Obs, str | None]):
    """Guards a `WorkflowEnv`; forking and the async verbs stay guarded."""

    env: WorkflowEnv  # pyrefly: ignore[bad-override-mutable-attribute]

    def __init__(self, env: WorkflowEnv) -> None:
        super().__init__(env)

    def _live(self, what: str) -> WorkflowEnv:
        if not self._has_reset:
            raise AttributeError(f"{what} cannot be accessed before reset")
        return self.env

    # Plain properties: BaseWrapper would find these through __getattr__, at ten times the cost.

    @property
    def agents(self) -> list[str]:  # type: ignore[override]
        """Agents that have not left the episode."""
        return self._live("agents").agents

    @property
    def agent_selection(self) -> str:  # type: ignore[override]
        """The agent whose turn it is."""
        return self._live("agent_selection").agent_selection

    @property
    def rewards(self) -> dict[str, float]:  # type: ignore[override]
        """Rewards of the last step."""
        return self._live("rewards").rewards

    @property
    def _cumulative_rewards(self) -> dict[str, float]:  # type: ignore[override]
        return self._live("_cumulative_rewards")._cumulative_rewards

    @property
    def terminations(self) -> dict[str, bool]:  # type: ignore[override]
        """Terminations by agent."""
        return self._live("terminations").terminations

    @property
    def truncations(self) -> dict[str, bool]:  # type: ignore[override]
        """Truncations by agent."""
        return self._live("truncations").truncations

    @property
    def infos(self) -> dict[str, dict[str, Any]]:  # type: ignore[override]
        """Infos by agent."""
        return self._live("infos").infos

    @property
    def possible_agents(self) -> list[str]:  # type: ignore[override]
        """All agents, in order."""
        return self.env.possible_agents

    @property
    def state_space(self) -> Any:
        """The space of `state()`."""
        return self.env.state_space

    @property
    def metadata(self) -> dict[str, Any]:  # type: ignore[override]
        """Name and render modes."""
        return self.env.metadata

    @property
    def render_mode(self) -> str | None:
        """Render mode of the environment."""
        return self.env.render_mode

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> None:
        """See `WorkflowEnv.reset`."""
        self.env.reset(seed=seed, options=options)
        self._has_reset = self._has_updated = True

    async def areset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> None:
        """See `WorkflowEnv.areset`."""
        import asyncio  # as in `WorkflowEnv.settle`

        try:
            await self.env.areset(seed=seed, options=options)
        except asyncio.CancelledError:
            self._has_reset = self._has_updated = True  # so that `settle` can complete it
            raise
        self._has_reset = self._has_updated = True

    def agent_iter(self, max_iter: int = 2**63) -> Iterator[str]:  # type: ignore[override]
        """Yields the selected agent until none is left; every turn of the loop must step."""
        self._live("agent_iter")
        return self._iterate(max_iter)

    def last(self, observe: bool = True) -> tuple[Obs | None, float, bool, bool, dict[str, Any]]:
        """See `WorkflowEnv.last`."""
        if not self._has_reset:
            raise AttributeError("last cannot be called before reset")
        env = self.env
        if not env.agents:
            raise UsageError("`last` after the episode: every agent has left; call reset()")
        return env.last(observe)

    def step(self, action: str | None) -> None:
        """See `WorkflowEnv.step`."""
        env = self.env
        if self._has_reset and env.agents:
            self._has_updated = True
            env.step(action)
        else:
            self._refuse_step()

    async def astep(self, action: str | None) -> None:
        """See `WorkflowEnv.astep`."""
        env = self.env
        if self._has_reset and env.agents:
            self._has_updated = True
            await env.astep(action)
        else:
            self._refuse_step()

    async def settle(self) -> None:
        """See `WorkflowEnv.settle`."""
        await self._live("settle").settle()

    def observe(self, agent: str) -> Obs:
        """See `WorkflowEnv.observe`."""
        return self._live("observe").observe(agent)

    def record(self) -> EpisodeRecord:
        """See `WorkflowEnv.record`."""
        return self._live("record").record()

    def transcript(self) -> list[dict[str, Any]]:
        """See `WorkflowEnv.transcript`."""
        return self._live("transcript").transcript()

    def state(self) -> Any:
        """See `WorkflowEnv.state`."""
        return self._live("state").state()

    def fork(self) -> Guard:
        """An independent guarded environment in the same state."""
        twin = Guard(self._live("fork").fork())
        twin._has_reset, twin._has_updated = self._has_reset, self._has_updated
        return twin

    def __getstate__(self) -> dict[str, Any]:
        # The fields; needed because BaseWrapper's `__getattr__` hides private names.
        return dict(vars(self))

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)

    def __str__(self) -> str:
        return str(self.env)

    def _refuse_step(self) -> None:
        # Before reset an error; after the end only a warning, as in PettingZoo.
        self._live("step")
        OrderEnforcingWrapper.step(self, None)

    def _iterate(self, max_iter: int) -> Iterator[str]:
        env = self.env
        for _ in range(min(max_iter, sys.maxsize)):
            if not env.agents:
                return
            if not self._has_updated:
                raise UsageError("call step() or reset() in every turn of an `agent_iter` loop")
            self._has_updated = False
            yield env.agent_selection
