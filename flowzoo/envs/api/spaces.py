"""Spaces for language: `Prose` (replies), `Messages` (chats), `Turns` (whole episodes).

`gymnasium.spaces.Text` cannot hold language: its default characters are ASCII letters and digits,
it has a hard length limit that would raise on model output, and vectorised shared memory corrupts
it silently. These are direct subclasses of `Space`; `flowzoo.envs.api.vector` says how vector
environments hand them on.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

from gymnasium.spaces import Dict, Space

from flowzoo.envs.script import Message

ROLES = frozenset({"system", "user", "assistant", "tool"})


def copy_space(space: Space[Any]) -> Space[Any]:
    """An independent space in the same state; cheap for one that was never sampled."""
    twin = copy.copy(space)
    if isinstance(twin, Dict):
        twin.spaces = {key: copy_space(inner) for key, inner in twin.spaces.items()}
    if space._np_random is not None:
        twin._np_random = copy.deepcopy(space._np_random)
    return twin


def copy_spaces(spaces: dict[str, Space[Any]]) -> dict[str, Space[Any]]:
    """`copy_space` of every agent's space."""
    return {agent: copy_space(space) for agent, space in spaces.items()}


class Prose(Space[str]):
    """Any string, the empty one and non-characters included: a reply of a model.

    `sample()` draws one of `samples`, short plausible replies, so that random play reaches rewards.
    """

    def __init__(self, samples: Sequence[str] = ("",), seed: int | None = None):
        """Make a space that samples from `samples` (at least one string)."""
        super().__init__(shape=None, dtype=None, seed=seed)
        self.samples = tuple(samples) or ("",)

    @property
    def is_np_flattenable(self) -> bool:
        """False: prose has no array form."""
        return False

    def sample(self, mask: Any = None, probability: Any = None) -> str:
        """One of the plausible replies, uniformly; masks do not apply to language."""
        if mask is not None or probability is not None:
            raise ValueError(
                "Prose.sample() takes no mask and no probability: replies are free text"
            )
        return self.samples[int(self.np_random.integers(len(self.samples)))]

    def contains(self, x: Any) -> bool:
        """Every str is a reply."""
        return isinstance(x, str)

    def __eq__(self, other: object) -> bool:
        """Equal if the sampled replies are."""
        return isinstance(other, Prose) and other.samples == self.samples

    def __hash__(self) -> int:
        """Hash of the sampled replies."""
        return hash(self.samples)

    def __repr__(self) -> str:
        """Short: the samples are not listed."""
        return "Prose()"


class Messages(Space[list[Message]]):
    """A chat: a list or tuple of `{"role": …, "content": …}` dicts with string values."""

    def __init__(self, seed: int | None = None):
        """Make the space; it has no parameters but the seed of `sample()`."""
        super().__init__(shape=None, dtype=None, seed=seed)

    @property
    def is_np_flattenable(self) -> bool:
        """False: a chat has no array form."""
        return False

    def sample(self, mask: Any = None, probability: Any = None) -> list[Message]:
        """A chat of one short user message."""
        if mask is not None or probability is not None:
            raise ValueError("Messages.sample() takes no mask and no probability")
        number = int(self.np_random.integers(100))
        return [{"role": "user", "content": f"Compute {number}+1."}]

    def contains(self, x: Any) -> bool:
        """A list or tuple of messages; the empty chat is one."""
        return isinstance(x, (list, tuple)) and all(
            isinstance(message, dict)
            and message.get("role") in ROLES
            and isinstance(message.get("content"), str)
            for message in x
        )

    def __eq__(self, other: object) -> bool:
        """All chat spaces are equal."""
        return isinstance(other, Messages)

    def __hash__(self) -> int:
        """The same for all chat spaces."""
        return hash(Messages)

    def __repr__(self) -> str:
        """The constructor call."""
        return "Messages()"


class Turns(Space[list[dict[str, Any]]]):
    """What was said in an episode: a list with a dict for every turn, in call order.

    A turn has `agent` and `reply` (str; the reply of an open turn is None), `turn` and `phase`
    (whole numbers), and the `messages` that the agent was asked with.
    """

    KEYS = frozenset({"agent", "turn", "phase", "messages", "reply"})

    def __init__(self, seed: int | None = None):
        """Make the space; it has no parameters but the seed of `sample()`."""
        super().__init__(shape=None, dtype=None, seed=seed)
        self._chats = Messages()

    @property
    def is_np_flattenable(self) -> bool:
        """False: a transcript has no array form."""
        return False

    def sample(self, mask: Any = None, probability: Any = None) -> list[dict[str, Any]]:
        """A transcript of one open turn."""
        if mask is not None or probability is not None:
            raise ValueError("Turns.sample() takes no mask and no probability")
        number = int(self.np_random.integers(100))
        chat = [{"role": "user", "content": f"Compute {number}+1."}]
        return [{"agent": "agent_0", "turn": 0, "phase": 0, "messages": chat, "reply": None}]

    def contains(self, x: Any) -> bool:
        """A list of turns; the empty one is a transcript."""
        return isinstance(x, list) and all(
            isinstance(turn, dict)
            and turn.keys() == self.KEYS
            and isinstance(turn["agent"], str)
            and isinstance(turn["turn"], int)
            and isinstance(turn["phase"], int)
            and isinstance(turn["reply"], str | None)
            and self._chats.contains(turn["messages"])
            for turn in x
        )

    def __eq__(self, other: object) -> bool:
        """All spaces of transcripts are equal."""
        return isinstance(other, Turns)

    def __hash__(self) -> int:
        """The same for all spaces of transcripts."""
        return hash(Turns)

    def __repr__(self) -> str:
        """The constructor call."""
        return "Turns()"
