"""Spaces for language: `Prose` (replies), `Messages`, `Tools`, `Turns` (whole episodes)."""

import copy
import json
import multiprocessing
from collections.abc import Iterator, Sequence
from types import ModuleType
from typing import Any

from gymnasium.spaces import Space, Tuple
from gymnasium.vector.utils import (
    batch_space,
    create_empty_array,
    create_shared_memory,
    iterate,
    read_from_shared_memory,
    write_to_shared_memory,
)
from gymnasium.wrappers.utils import create_zero_array

from flowzoo.envs.episode.faults import is_message
from flowzoo.envs.script import Message
from flowzoo.envs.tools import Tool
from flowzoo.errors import UsageError

# `gymnasium.spaces.Text` cannot represent language: its default characters are ASCII letters and
# digits, its length limit raises on model output, and vectorized shared memory corrupts it
# silently.


class LanguageSpace(Space[Any]):
    """Base of spaces whose elements have no array form; spaces of one class are equal."""

    empty: type[str | list[Any]] = list
    """Type of an element; called, it makes the empty one."""

    def __init__(self, seed: int | None = None):
        super().__init__(shape=None, dtype=None, seed=seed)

    @property
    def is_np_flattenable(self) -> bool:
        """False: language has no array form."""
        return False

    def _refuse_mask(self, mask: object, probability: object) -> None:
        if mask is not None or probability is not None:
            raise ValueError(
                f"{self!r}.sample takes no mask or probability: elements are free text"
            )

    def __eq__(self, other: object) -> bool:
        return isinstance(other, type(self))

    def __hash__(self) -> int:
        return hash(type(self))

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"


class Prose(LanguageSpace):
    """A model's reply: any string, including the empty string and non-characters.

    `sample()` draws one of `samples`, short plausible replies, so that random play reaches rewards.
    """

    empty = str

    def __init__(self, samples: Sequence[str] = ("",), seed: int | None = None):
        super().__init__(seed)
        self.samples = tuple(samples) or ("",)

    def sample(self, mask: object = None, probability: object = None) -> str:
        """One of the plausible replies, uniformly; masks do not apply to language."""
        self._refuse_mask(mask, probability)
        return self.samples[int(self.np_random.integers(len(self.samples)))]

    def contains(self, x: object) -> bool:
        """Every str is a reply."""
        return isinstance(x, str)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Prose) and other.samples == self.samples

    def __hash__(self) -> int:
        return hash(self.samples)


class Messages(LanguageSpace):
    """A chat: a list or tuple of `{"role": …, "content": …}` dicts with string values."""

    def sample(self, mask: object = None, probability: object = None) -> list[Message]:
        """A chat of one short user message."""
        self._refuse_mask(mask, probability)
        number = int(self.np_random.integers(100))
        return [{"role": "user", "content": f"Compute {number}+1."}]

    def contains(self, x: object) -> bool:
        """A list or tuple of messages; the empty chat is one."""
        return isinstance(x, list | tuple) and all(map(is_message, x))


class Tools(LanguageSpace):
    """Tools in the format of chat templates: `{"type": "function", "function": {...}}` dicts."""

    def sample(self, mask: object = None, probability: object = None) -> list[Message]:
        """No tools, or one without parameters."""
        self._refuse_mask(mask, probability)
        tool = Tool("look", "Look again.", {"type": "object", "properties": {}})
        return [tool.schema()] * int(self.np_random.integers(2))

    def contains(self, x: object) -> bool:
        """A list or tuple of functions with name, description and parameters."""
        return isinstance(x, (list, tuple)) and all(
            isinstance(tool, dict)
            and tool.get("type") == "function"
            and isinstance(function := tool.get("function"), dict)
            and isinstance(function.get("name"), str)
            and isinstance(function.get("description"), str)
            and isinstance(function.get("parameters"), dict)
            for tool in x
        )


class Turns(LanguageSpace):
    """The transcript of an episode: a list with a dict for every turn, in call order.

    A turn has `agent` and `reply` (str; the reply of an open turn is None), `turn` and `phase`
    (whole numbers), and the `messages` that the agent was asked with; `tools` if it had some.
    """

    KEYS = frozenset({"agent", "turn", "phase", "messages", "reply"})

    def __init__(self, seed: int | None = None):
        super().__init__(seed)
        self._chats, self._tools = Messages(), Tools()

    def sample(self, mask: object = None, probability: object = None) -> list[Message]:
        """A transcript of one open turn."""
        self._refuse_mask(mask, probability)
        number = int(self.np_random.integers(100))
        chat = [{"role": "user", "content": f"Compute {number}+1."}]
        return [{"agent": "agent_0", "turn": 0, "phase": 0, "messages": chat, "reply": None}]

    def contains(self, x: object) -> bool:
        """A list of turns; the empty list is a valid transcript."""
        return isinstance(x, list) and all(
            isinstance(turn, dict)
            and turn.keys() - {"tools"} == self.KEYS
            and self._tools.contains(turn.get("tools", ()))
            and isinstance(turn["agent"], str)
            and isinstance(turn["turn"], int)
            and isinstance(turn["phase"], int)
            and isinstance(turn["reply"], str | None)
            and self._chats.contains(turn["messages"])
            for turn in x
        )


ROOM = 2**20  # bytes of JSON that one observation may have in shared memory
_HEAD = 8  # bytes of the header with the length


class Batch(Tuple):
    """Texts or chats of several environments; iteration yields one per environment."""


class SharedTexts(Sequence[Any]):
    """Live view of texts or chats in shared memory, one per environment.

    A deep copy is a tuple of their values at that moment.
    """

    def __init__(self, memory: Any, count: int, empty: str) -> None:
        self._memory = memory
        self._count = count
        self._empty = empty

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return tuple(self[position] for position in range(*index.indices(self._count)))
        position = range(self._count)[index]
        raw = memoryview(self._memory.get_obj()).cast("B")
        start = position * (_HEAD + ROOM)
        size = int.from_bytes(raw[start : start + _HEAD], "little")
        content = bytes(raw[start + _HEAD : start + _HEAD + size])
        return json.loads(content or self._empty)

    def __deepcopy__(self, memo: dict[int, Any]) -> tuple[Any, ...]:
        return tuple(self)

    def __repr__(self) -> str:
        return repr(tuple(self))


@create_shared_memory.register(LanguageSpace)
def _make_room(space: LanguageSpace, n: int = 1, ctx: ModuleType = multiprocessing) -> Any:
    return ctx.Array("B", n * (_HEAD + ROOM))


@read_from_shared_memory.register(LanguageSpace)
def _look_at(space: LanguageSpace, shared_memory: object, n: int = 1) -> Any:
    return SharedTexts(shared_memory, n, json.dumps(space.empty()))


@write_to_shared_memory.register(LanguageSpace)
def _write(space: LanguageSpace, index: int, value: Any, shared_memory: Any) -> None:
    content = json.dumps(value).encode()  # in ASCII, so that lone surrogates survive
    if len(content) > ROOM:
        raise UsageError(
            f"an observation of {len(content)} bytes exceeds its {ROOM} bytes of shared memory: "
            "give AsyncVectorEnv shared_memory=False (for make_vec: "
            'vector_kwargs={"shared_memory": False}).'
        )
    start = index * (_HEAD + ROOM)
    raw = memoryview(shared_memory.get_obj()).cast("B")
    raw[start + _HEAD : start + _HEAD + len(content)] = content
    raw[start : start + _HEAD] = len(content).to_bytes(_HEAD, "little")


@batch_space.register(LanguageSpace)
def _several(space: LanguageSpace, n: int = 1) -> Batch:
    # As in Gymnasium: every space of the batch, and the batch itself, has a separate random stream.
    rng = copy.deepcopy(space.np_random)
    batch = Batch([copy.deepcopy(space) for _ in range(n)], seed=copy.deepcopy(rng))
    batch.seed([int(seed) for seed in rng.integers(0, 10**8, n)])
    return batch


@iterate.register(Batch)
def _each_of_batch(space: Batch, items: Any) -> Iterator[Any]:
    return iter(items)


@iterate.register(LanguageSpace)
def _iterate_batch(space: LanguageSpace, items: Any) -> Iterator[Any]:
    # Gymnasium passes a batch with the batch's space, SuperSuit with an item's space.
    if space.contains(items) and len(items):
        raise TypeError(f"expected a batch of items of {space!r}, got one item: {items!r:.60}")
    return iter(items)


@create_zero_array.register(LanguageSpace)
def _no_words(space: LanguageSpace) -> Any:
    return space.empty()


@create_empty_array.register(LanguageSpace)
def _nothing_said(space: LanguageSpace, n: int | None = 1, fn: object = None) -> Any:
    return space.empty() if n is None else tuple(space.empty() for _ in range(n))
