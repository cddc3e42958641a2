"""One episode of an AEC environment, through `last` and `step` alone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from flowzoo.envs.external.text_env import EnvTurn, TextEnv, mask_of
from flowzoo.errors import UsageError
from flowzoo.seeding import key_rng


class EnvRun:
    """Whose turn it is in an environment that was reset, and what everybody was paid.

    Rewards are PettingZoo's: what `last` gives an agent at its next turn, or in its dead step, was
    earned by its action before. An agent's return is the sum of all that it was given.
    """

    def __init__(self, game: TextEnv, key: str, max_steps: int | None = None) -> None:
        self.game, self.key, self.max_steps = game, key, max_steps
        # Agent of the environment -> its return so far.
        self.returns: dict[str, float] = dict.fromkeys(game.env.possible_agents, 0.0)
        # Reward of every turn of `next_turn` until its agent's next turn.
        self.rewards: list[float] = []
        self.steps = 0  # number of actions so far, scripted agents included
        self.truncated = False  # the environment truncated an agent
        self.cut = False  # True if the episode did not end within `max_steps`
        self.score: float | None = None  # the latest `score` in an info
        self._newest: dict[str, int] = {}  # agent -> place in `rewards` of its newest turn
        self._turns: dict[str, int] = {}
        self._left: set[str] = set()

    def next_turn(self) -> EnvTurn | None:
        """The next turn of an agent that no script plays; None at the end of the episode."""
        env = self.game.env
        while env.agents:
            agent = env.agent_selection
            observation, reward, terminated, truncated, info = env.last()
            self._pay(agent, reward)
            self._read_score(info)
            if terminated or truncated:
                self.truncated |= bool(truncated)
                self._left.add(agent)
                env.step(None)
                if agent in env.agents:
                    raise UsageError(
                        f"{agent} of {self.game.name} has died and stays in `agents` after "
                        "step(None): let the environment call `_was_dead_step` there"
                    )
                continue
            if self.steps == self.max_steps:
                self.cut = True
                self._left.add(agent)
                break
            turn = EnvTurn(
                agent, observation, mask_of(observation, info), self._turns.get(agent, 0)
            )
            self._turns[agent] = turn.turn + 1
            mover = self.game.scripted.get(agent)
            if mover is None:
                self._newest[agent] = len(self.rewards)
                self.rewards.append(0.0)
                return turn
            rng = key_rng("scripted", self.key, agent, turn.turn)
            self.act(mover(observation, env, agent, rng))
        self._settle()
        return None

    def act(self, action: Any) -> None:
        """The selected agent acts."""
        self.steps += 1
        self.game.env.step(action)

    def forfeit(self, agent: str) -> None:
        """End the episode; the agent that is to act ends with the lowest return there is."""
        self._pay(agent, self.game.score_range[0] - self.returns[agent])
        self._left.add(agent)
        self._settle()

    def _settle(self) -> None:
        # Pay what agents have been credited with that were not selected any more.
        waiting: Mapping[str, float] = getattr(self.game.env, "_cumulative_rewards", {})
        for agent in self.returns:
            if agent not in self._left:
                self._pay(agent, waiting.get(agent, 0.0))

    def _pay(self, agent: str, reward: float) -> None:
        self.returns[agent] = self.returns.get(agent, 0.0) + float(reward)
        if agent in self._newest:
            self.rewards[self._newest[agent]] += float(reward)

    def _read_score(self, info: Any) -> None:
        stated = info.get("score") if isinstance(info, Mapping) else None
        if stated is None:
            return
        if not isinstance(stated, (int, float)) or not 0 <= stated <= 1:
            raise UsageError(
                f'"score" in infos of {self.game.name} must be a number from 0 to 1, got {stated!r}'
            )
        self.score = float(stated)
