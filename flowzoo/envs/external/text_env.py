"""An AEC environment with the hooks that play it in text."""

import copy
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from numbers import Real
from typing import Any, NamedTuple

import numpy as np
from gymnasium.spaces import Discrete, Space, Text
from pettingzoo import AECEnv, ParallelEnv

from flowzoo.envs.script import Message
from flowzoo.errors import UsageError, unknown
from flowzoo.seeding import key_rng

Describe = Callable[[Any, str], str | Sequence[Message]]  # `(observation, agent) -> prompt`
# `(reply, env, agent) -> action`; None if the reply contains no action.
Parse = Callable[[str, Any, str], Any]
# `(observation, env, agent, rng) -> action`: a scripted agent.
Mover = Callable[[Any, Any, str, random.Random], Any]


class EnvTurn(NamedTuple):
    """An agent that acts next, with the values of `last`."""

    agent: str  # name of the agent in the environment
    observation: Any
    mask: Any  # mask of legal actions from the observation or info; None without one
    turn: int  # number of earlier actions of the agent


@dataclass(frozen=True)
class TextEnv:
    """An AEC environment played by text, with hooks for prompts, actions and roles.

    Raises:
        UsageError: `env` is not an AEC environment, an agent is unknown, every agent is scripted,
            or the score range is empty.
    """

    env: AECEnv[Any, Any, Any]
    """A fresh environment; it is reset for one episode and then closed."""
    describe: Describe | None = None
    """Function from an observation to a prompt; None: the observation is text or a chat."""
    parse: Parse | None = None
    """Function from a reply to an action; None: the reply itself is the action."""
    scripted: Mapping[str, Mover] = field(default_factory=dict)
    """Scripted agents, e.g. `{"player_2": random_move}`."""
    roles: Mapping[str, str] = field(default_factory=dict)
    """Role by agent; records and settings number the agents of a role (player_0 …). The others keep
    their names; their role is the name without a trailing number."""
    scored: tuple[str, ...] = ()
    """Agents whose mean return is the score; empty: all agents of policies."""
    score_range: tuple[float, float] = (0.0, 1.0)
    """Lowest and highest return of an agent, which become the scores 0 and 1."""

    def __post_init__(self) -> None:
        if isinstance(self.env, ParallelEnv):
            raise UsageError(
                f"{self.env} is a ParallelEnv, but agents are asked one at a time: return "
                "pettingzoo.utils.parallel_to_aec(env)"
            )
        if not isinstance(self.env, AECEnv):
            raise UsageError(
                f"expected a pettingzoo.AECEnv or a TextEnv around one, got "
                f"{type(self.env).__name__}"
            )
        agents = list(getattr(self.env, "possible_agents", ()))
        if not agents:
            raise UsageError(f"{self.env} has no `possible_agents`: list all its agents there")
        for name in (*self.scripted, *self.roles, *self.scored):
            if name not in agents:
                raise unknown(f"agent of {self.env}", name, agents)
        if set(agents) <= set(self.scripted):
            raise UsageError(
                f"every agent of {self.env} is scripted ({', '.join(agents)}): leave one to a "
                "policy"
            )
        low, high = self.score_range
        if not low < high:
            raise UsageError(f"`score_range` takes (lowest, highest), got {self.score_range}")

    @property
    def name(self) -> str:
        """Name of the environment."""
        named = getattr(self.env, "metadata", {}).get("name")
        return str(named or type(self.env.unwrapped).__name__)

    @property
    def seats(self) -> dict[str, tuple[str, str]]:
        """(name, role) by agent of the environment, for agents that policies play."""
        seats: dict[str, tuple[str, str]] = {}
        counts: dict[str, int] = {}
        for agent in self.env.possible_agents:
            if agent in self.scripted:
                continue
            role = self.roles.get(agent)
            if role is None:
                start, cut, number = agent.rpartition("_")
                seats[agent] = agent, start if cut and number.isdigit() else agent
            else:
                seats[agent] = f"{role}_{counts.get(role, 0)}", role
                counts[role] = counts.get(role, 0) + 1
        names = [name for name, _ in seats.values()]
        if len(set(names)) < len(names):
            raise UsageError(
                f"two agents of {self.env} would have the same name ({', '.join(sorted(names))}): "
                "give every agent a role in `roles`"
            )
        return seats

    def messages(self, observation: Any, agent: str) -> list[Message]:
        """The prompt of an agent.

        Raises:
            UsageError: the observation is not text and there is no `describe`, or `describe`
                returned another type.
        """
        return chat(observation if self.describe is None else self.describe(observation, agent))

    def action(self, reply: str, agent: str) -> tuple[Any] | None:
        """The action in a reply, in a tuple; None without one."""
        if self.parse is None:
            return (reply,)
        action = self.parse(reply, self.env, agent)
        return None if action is None else (action,)

    def legal_action(self, reply: str, turn: EnvTurn) -> tuple[Any] | None:
        """Like `action`, but None for illegal actions; any text is legal if replies are actions."""
        action = self.action(reply, turn.agent)
        if action is None or self.parse is None:
            return action
        return action if is_legal(action[0], self.env.action_space(turn.agent), turn.mask) else None

    def check_text(self) -> None:
        """Raise `UsageError` if actions are not text and there is no `parse`."""
        if self.parse is not None:
            return
        for agent in self.seats:
            space = self.env.action_space(agent)
            if not isinstance(space, Text) and not space.contains("text"):
                raise UsageError(
                    f"{agent} of {self.name} acts by {space}, not by text: return "
                    "TextEnv(env, describe=..., parse=(reply, env, agent -> action)) from the "
                    "function"
                )


def chat(content: Any) -> list[Message]:
    """The messages of an observation: a string, a chat, or a dict with one."""
    if isinstance(content, Mapping):
        keys = [key for key in ("messages", "observation") if key in content]
        content = content[keys[0]] if keys else content
    if isinstance(content, str):
        return [{"role": "user", "content": str(content)}]
    if isinstance(content, (list, tuple)) and all(isinstance(item, Mapping) for item in content):
        return [dict(item) for item in content]
    raise UsageError(
        f"cannot read an observation of type {type(content).__name__} as chat messages: give a "
        "function that converts it to a text or a list of messages (`describe` of a TextEnv, "
        "`observe` of arun_envs)"
    )


def mask_of(observation: Any, info: Any) -> Any:
    """The mask of legal actions in an observation or info, by PettingZoo's convention, or None."""
    for source in (observation, info):
        if isinstance(source, Mapping) and source.get("action_mask") is not None:
            return source["action_mask"]
    return None


def is_legal(action: Any, space: Space[Any], mask: Any = None) -> bool:
    """True if `action` is in the space and allowed by the mask, if there is one."""
    if not space.contains(action):
        return False
    if mask is None or not isinstance(space, Discrete):
        return True
    return bool(np.asarray(mask)[int(action) - int(space.start)])


def random_move(observation: Any, env: Any, agent: str, rng: random.Random) -> Any:
    """Draw a legal action: a `Mover` for fixed opponents.

    Raises:
        UsageError: no action is legal.
    """
    space = env.action_space(agent)
    return random_action(space, mask_of(observation, env.infos.get(agent)), rng)


def random_action(space: Space[Any], mask: Any, rng: random.Random) -> Any:
    """Draw an action of `space` that the mask allows, using only `rng`."""
    if isinstance(space, Discrete):
        allowed = range(int(space.n)) if mask is None else np.flatnonzero(np.asarray(mask)).tolist()
        if not allowed:
            raise UsageError("the action mask allows no action")
        return int(space.start) + rng.choice(allowed)
    # A space draws from its own generator, which the environment may have seeded.
    private = copy.deepcopy(space)
    private.seed(rng.getrandbits(31))
    return private.sample()


class EnvRun:
    """One episode of an environment: the agent to act, and the rewards.

    As in PettingZoo, the reward that `last` gives at an agent's next turn or dead step belongs to
    its previous action. An agent's return is the sum of its rewards.
    """

    def __init__(self, game: TextEnv, key: str, max_steps: int | None = None) -> None:
        self.game, self.key, self.max_steps = game, key, max_steps
        # Return so far by agent of the environment.
        self.returns: dict[str, float] = dict.fromkeys(game.env.possible_agents, 0.0)
        # Reward of every turn of `next_turn` until its agent's next turn.
        self.rewards: list[float] = []
        self.steps = 0  # number of actions so far, scripted agents included
        self.truncated = False  # the environment truncated an agent
        self.cut = False  # True if the episode did not end within `max_steps`
        self.score: float | None = None  # the latest `score` in an info
        self._newest: dict[str, int] = {}  # index in `rewards` of the latest turn, by agent
        self._turns: dict[str, int] = {}
        self._left: set[str] = set()

    def next_turn(self) -> EnvTurn | None:
        """The next turn of an unscripted agent; None at the end of the episode."""
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
        self.steps += 1
        self.game.env.step(action)

    def forfeit(self, agent: str) -> None:
        """End the episode; the agent to act gets the lowest possible return."""
        self._pay(agent, self.game.score_range[0] - self.returns[agent])
        self._left.add(agent)
        self._settle()

    def _settle(self) -> None:
        # Add the rewards of agents that were not selected again.
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
        if not isinstance(stated, Real) or not 0 <= float(stated) <= 1:
            raise UsageError(
                f'"score" in infos of {self.game.name} must be a number from 0 to 1, got {stated!r}'
            )
        self.score = float(stated)
