"""Gymnasium's vector environments over spaces of language; importing this module enters them.

`AsyncVectorEnv` passes observations through shared memory unless it is told otherwise, and its
wrappers start from an empty observation: both ask functions that dispatch on the space. In shared
memory a text or chat lies as JSON in a room of fixed size, and is read when it is looked at:
Gymnasium builds its view of the memory once, and copies it at every step.

A batch of such a space is a `Batch`: Gymnasium takes the items of a plain `Tuple` apart where its
spaces can be iterated over, which SuperSuit asks of them, and would step with letters of replies.
"""

from __future__ import annotations

import copy
import json
import multiprocessing
from collections.abc import Iterator, Sequence
from types import ModuleType
from typing import Any

from gymnasium.spaces import Tuple
from gymnasium.vector.utils import (
    batch_space,
    create_empty_array,
    create_shared_memory,
    iterate,
    read_from_shared_memory,
    write_to_shared_memory,
)
from gymnasium.wrappers.utils import create_zero_array

from flowzoo.envs.api.spaces import Messages, Prose
from flowzoo.errors import UsageError

ROOM = 2**20
"""Bytes of JSON that one observation may have in shared memory."""
_HEAD = 8
"""Bytes before them, with their number."""


class Batch(Tuple):
    """Texts or chats of several environments; iterating over a batch gives them whole."""


class SharedTexts(Sequence[Any]):
    """The texts or chats in a piece of shared memory, one per environment, as they are now.

    A deep copy is a tuple of what they are at that moment.
    """

    def __init__(self, memory: Any, count: int, empty: str) -> None:
        """Look at `memory`; `empty` is the JSON of what nobody has written yet."""
        self._memory = memory
        self._count = count
        self._empty = empty

    def __len__(self) -> int:
        """Number of environments."""
        return self._count

    def __getitem__(self, index: Any) -> Any:
        """What the environment number `index` wrote last."""
        if isinstance(index, slice):
            return tuple(self[place] for place in range(*index.indices(self._count)))
        place = range(self._count)[index]
        raw = memoryview(self._memory.get_obj()).cast("B")
        start = place * (_HEAD + ROOM)
        size = int.from_bytes(raw[start : start + _HEAD], "little")
        said = bytes(raw[start + _HEAD : start + _HEAD + size])
        return json.loads(said or self._empty)

    def __deepcopy__(self, memo: dict[int, Any]) -> tuple[Any, ...]:
        """The items, out of the shared memory."""
        return tuple(self)

    def __repr__(self) -> str:
        """The items."""
        return repr(tuple(self))


@create_shared_memory.register(Prose)
@create_shared_memory.register(Messages)
def _make_room(space: Prose | Messages, n: int = 1, ctx: ModuleType = multiprocessing) -> Any:
    return ctx.Array("B", n * (_HEAD + ROOM))


@read_from_shared_memory.register(Prose)
@read_from_shared_memory.register(Messages)
def _look_at(space: Prose | Messages, shared_memory: Any, n: int = 1) -> Any:
    return SharedTexts(shared_memory, n, '""' if isinstance(space, Prose) else "[]")


@write_to_shared_memory.register(Prose)
@write_to_shared_memory.register(Messages)
def _write(space: Prose | Messages, index: int, value: Any, shared_memory: Any) -> None:
    said = json.dumps(value).encode()  # in ASCII, so that lone surrogates survive
    if len(said) > ROOM:
        raise UsageError(
            f"an observation of {len(said)} bytes is over the {ROOM} that it may have in shared "
            'memory: give AsyncVectorEnv shared_memory=False (make_vec: vector_kwargs={"shared_memo'
            'ry": False}).'
        )
    start = index * (_HEAD + ROOM)
    raw = memoryview(shared_memory.get_obj()).cast("B")
    raw[start + _HEAD : start + _HEAD + len(said)] = said
    raw[start : start + _HEAD] = len(said).to_bytes(_HEAD, "little")


@batch_space.register(Prose)
@batch_space.register(Messages)
def _several(space: Prose | Messages, n: int = 1) -> Batch:
    # As Gymnasium does it: every space of the batch, and the batch, draws from a stream of its own.
    rng = copy.deepcopy(space.np_random)
    batch = Batch([copy.deepcopy(space) for _ in range(n)], seed=copy.deepcopy(rng))
    batch.seed([int(seed) for seed in rng.integers(0, 10**8, n)])
    return batch


@iterate.register(Batch)
def _each_of_batch(space: Batch, items: Any) -> Iterator[Any]:
    return iter(items)


@iterate.register(Prose)
@iterate.register(Messages)
def _each(space: Prose | Messages, items: Any) -> Iterator[Any]:
    """Gymnasium hands a batch over with the batch's space, SuperSuit with that of an item."""
    if space.contains(items) and len(items):
        raise TypeError(f"one item of {space!r} is no batch of them: {items!r:.60}")
    return iter(items)


@create_zero_array.register(Prose)
def _no_words(space: Prose) -> str:
    return ""


@create_zero_array.register(Messages)
def _no_chat(space: Messages) -> list[Any]:
    return []


@create_empty_array.register(Prose)
@create_empty_array.register(Messages)
def _nothing_said(space: Prose | Messages, n: int | None = 1, fn: Any = None) -> Any:
    empty = "" if isinstance(space, Prose) else []
    return empty if n is None else tuple(type(empty)() for _ in range(n))
