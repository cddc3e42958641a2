"""An AEC environment with what it takes to play it in text."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from gymnasium.spaces import Discrete, Space, Text
from pettingzoo import AECEnv, ParallelEnv

from flowzoo.envs.script import Message
from flowzoo.envs.workflow import Roles
from flowzoo.errors import UsageError, unknown

Describe = Callable[[Any, str], str | Sequence[Message]]
"""`(observation, agent) -> prompt`."""
Parse = Callable[[str, Any, str], Any]
"""`(reply, env, agent) -> action`; None where the reply says no action."""
Mover = Callable[[Any, Any, str, random.Random], Any]
"""`(observation, env, agent, rng) -> action`: an agent that is no policy."""


class EnvTurn(NamedTuple):
    """An agent that is to act, and what `last` said to it."""

    agent: str
    """Its name in the environment."""
    observation: Any
    mask: Any
    """Which actions are legal, from the observation or the info; None where neither says it."""
    turn: int
    """How often it acted before."""


@dataclass(frozen=True)
class TextEnv:
    """What a function for `--env` may return beside a plain AEC environment of text.

    Raises:
        UsageError: no AEC environment, an agent that it does not have, no agent left to a policy,
            or a range without width.
    """

    env: AECEnv[Any, Any, Any]
    """Fresh; it is reset for one episode and then closed."""
    describe: Describe | None = None
    """The prompt for an observation; None: the observation is text or a chat."""
    parse: Parse | None = None
    """The action that a reply says; None: the reply itself is the action."""
    scripted: Mapping[str, Mover] = field(default_factory=dict)
    """Agents that are no policy, e.g. `{"player_2": random_move}`."""
    roles: Mapping[str, str] = field(default_factory=dict)
    """Agent -> role; the agents are then called `ROLE_0`, `ROLE_1` … in records and settings. An
    agent that is left out keeps its name, and its role is the name without a number at its end."""
    scored: tuple[str, ...] = ()
    """Agents whose mean return is the score; none: all that a policy plays."""
    score_range: tuple[float, float] = (0.0, 1.0)
    """Lowest and highest return of an agent, which become the scores 0 and 1."""

    def __post_init__(self) -> None:
        """Check what can be known before a reset."""
        if isinstance(self.env, ParallelEnv):
            raise UsageError(
                f"{self.env} is a ParallelEnv, and agents are asked one at a time: return "
                "pettingzoo.utils.parallel_to_aec(env)"
            )
        if not isinstance(self.env, AECEnv):
            raise UsageError(
                f"expected a pettingzoo.AECEnv or a TextEnv around one, got "
                f"{type(self.env).__name__}"
            )
        agents = list(getattr(self.env, "possible_agents", ()))
        if not agents:
            raise UsageError(f"{self.env} has no `possible_agents`: name all its agents there")
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
        """What the environment calls itself."""
        named = getattr(self.env, "metadata", {}).get("name")
        return str(named or type(self.env.unwrapped).__name__)

    @property
    def seats(self) -> dict[str, tuple[str, str]]:
        """Agent of the environment -> (name, role), of those that policies play."""
        found: dict[str, tuple[str, str]] = {}
        counts: dict[str, int] = {}
        for agent in self.env.possible_agents:
            if agent in self.scripted:
                continue
            role = self.roles.get(agent)
            if role is None:
                start, cut, number = agent.rpartition("_")
                found[agent] = agent, start if cut and number.isdigit() else agent
            else:
                found[agent] = f"{role}_{counts.get(role, 0)}", role
                counts[role] = counts.get(role, 0) + 1
        names = [name for name, _ in found.values()]
        if len(set(names)) < len(names):
            raise UsageError(
                f"two agents of {self.env} would have one name ({', '.join(sorted(names))}): give "
                "every agent a role in `roles`"
            )
        return found

    @property
    def seats_by_role(self) -> Roles:
        """Role -> the names of its agents."""
        found: dict[str, tuple[str, ...]] = {}
        for name, role in self.seats.values():
            found[role] = (*found.get(role, ()), name)
        return found

    def messages(self, observation: Any, agent: str) -> list[Message]:
        """The prompt of an agent.

        Raises:
            UsageError: the observation is no text and there is no `describe`, or that returned
                something else.
        """
        if self.describe is None:
            return chat(observation)
        shown = self.describe(observation, agent)
        return chat(shown)

    def action(self, reply: str, agent: str) -> tuple[Any] | None:
        """The action that a reply says, in a tuple; None if it says none."""
        if self.parse is None:
            return (reply,)
        action = self.parse(reply, self.env, agent)
        return None if action is None else (action,)

    def legal_action(self, reply: str, turn: EnvTurn) -> tuple[Any] | None:
        """Likewise; None for an illegal one, too. Any text is legal where replies are actions."""
        found = self.action(reply, turn.agent)
        if found is None or self.parse is None:
            return found
        return found if is_legal(found[0], self.env.action_space(turn.agent), turn.mask) else None

    def check_text(self) -> None:
        """Raise `UsageError` if actions are no texts and there is no `parse`."""
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


def chat(shown: Any) -> list[Message]:
    """The messages of an observation: a string, a chat, or a dict with one of the two under
    `messages` or `observation`.

    Raises:
        UsageError: anything else.
    """
    if isinstance(shown, Mapping):
        shown = next((shown[key] for key in ("messages", "observation") if key in shown), shown)
    if isinstance(shown, str):
        return [{"role": "user", "content": str(shown)}]
    if isinstance(shown, (list, tuple)) and all(isinstance(message, Mapping) for message in shown):
        return [dict(message) for message in shown]
    raise UsageError(
        f"cannot read an observation of type {type(shown).__name__} as chat messages: give a "
        "function that makes a text or a list of messages of it (`describe` of a TextEnv, "
        "`observe` of arun_envs)"
    )


def mask_of(observation: Any, info: Any) -> Any:
    """The mask of legal actions in an observation or an info, where PettingZoo puts it, or None."""
    for place in (observation, info):
        if isinstance(place, Mapping) and place.get("action_mask") is not None:
            return place["action_mask"]
    return None


def is_legal(action: Any, space: Space[Any], mask: Any = None) -> bool:
    """Whether `action` is in the space and, where it is one of n, allowed by the mask."""
    if not space.contains(action):
        return False
    if mask is None or not isinstance(space, Discrete):
        return True
    return bool(np.asarray(mask)[int(action) - int(space.start)])


def random_move(observation: Any, env: Any, agent: str, rng: random.Random) -> Any:
    """A legal action at random: a `Mover` for fixed opponents.

    Raises:
        UsageError: no action is legal.
    """
    space = env.action_space(agent)
    return random_action(space, mask_of(observation, env.infos.get(agent)), rng)


def random_action(space: Space[Any], mask: Any, rng: random.Random) -> Any:
    """An action of `space` that the mask allows, by `rng` alone.

    Raises:
        UsageError: the mask allows none.
    """
    if isinstance(space, Discrete):
        allowed = range(int(space.n)) if mask is None else np.flatnonzero(np.asarray(mask)).tolist()
        if not allowed:
            raise UsageError("the action mask allows nothing: there is no legal action to take")
        return int(space.start) + rng.choice(allowed)
    own = copy.deepcopy(space)  # a space draws from a generator of its own, which belongs to others
    own.seed(rng.getrandbits(31))
    return own.sample()
