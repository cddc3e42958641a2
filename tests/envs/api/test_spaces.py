"""Spaces of language, alone and in vector environments."""

import copy
from functools import partial

import gymnasium
import pytest
from gymnasium.spaces import Dict
from gymnasium.vector import AsyncVectorEnv
from gymnasium.vector.utils import (
    batch_space,
    create_empty_array,
    create_shared_memory,
    iterate,
    read_from_shared_memory,
    write_to_shared_memory,
)
from gymnasium.wrappers import DelayObservation
from gymnasium.wrappers.utils import create_zero_array
from gymnasium.wrappers.vector import TransformObservation

import flowzoo  # noqa: F401 - registers the environments
from flowzoo.envs.api import spaces
from flowzoo.envs.api.spaces import Messages, Prose, Tools
from flowzoo.envs.testing import HOSTILE
from flowzoo.errors import UsageError

USER = {"role": "user", "content": "hi"}


TEXTS = [*HOSTILE.values(), "π ∑ 🎉", "plain"]
CHATS = [[], (), [USER], (USER,), [{"role": "system", "content": ""}, USER]]
NEITHER = [None, 7, b"bytes", USER, ["a"], [{"role": "user"}], [{"role": "robot", "content": "hi"}],
           [{"role": "user", "content": None}]]  # fmt: skip


@pytest.mark.parametrize("value", [*TEXTS, *CHATS, *NEITHER])
def test_prose_contains_every_str_and_messages_every_chat(value):
    assert Prose().contains(value) == (value in TEXTS)
    assert Messages().contains(value) == (value in CHATS)


def test_samples_are_seeded_plausible_and_in_the_space():
    space = Prose(("a", "b", "c"), seed=1)
    drawn = [space.sample() for _ in range(50)]
    assert set(drawn) == {"a", "b", "c"}
    space.seed(1)
    assert [space.sample() for _ in range(50)] == drawn
    chats = Messages(seed=1)
    assert chats.contains(chats.sample())


@pytest.mark.parametrize("space", [Prose(), Messages()])
def test_masks_are_refused_and_arrays_do_not_exist(space):
    assert not space.is_np_flattenable
    with pytest.raises(ValueError, match="no mask"):
        space.sample(mask=[1])


def test_equality_and_repr():
    assert Prose(("a",)) == Prose(("a",)) != Prose(("b",))
    assert Messages() == Messages() != Prose()
    assert hash(Messages()) == hash(Messages())
    assert hash(Prose(("a",))) == hash(Prose(("a",)))
    assert repr(Dict({"messages": Messages()})) == "Dict('messages': Messages())"
    assert repr(Prose(("a",) * 1000)) == "Prose()"


def test_tools_are_functions_with_a_schema():
    space = Tools(seed=0)
    look = {"name": "look", "description": "", "parameters": {"type": "object"}}
    assert space.contains([])
    assert space.contains(({"type": "function", "function": look},))
    for wrong in (None, {}, ["look"], [look], [{"type": "function", "function": {"name": "look"}}]):
        assert not space.contains(wrong)
    assert all(space.contains(space.sample()) for _ in range(10))


REPLIES = ("\\boxed{1} for \ud800 π \x00", "a reply of several words")
make = partial(gymnasium.make_vec, "flowzoo/Single-v0", num_envs=2)


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_both_kinds_step_with_whole_texts_and_say_the_same(mode):
    envs = make(vectorization_mode=mode)
    alone = [gymnasium.make("flowzoo/Single-v0") for _ in REPLIES]
    try:
        observed, _ = envs.reset(seed=7)
        for index, env in enumerate(alone):
            assert observed["messages"][index] == env.reset(seed=7 + index)[0]["messages"]
        assert observed in envs.observation_space
        assert REPLIES in envs.action_space
        final, _, ended, _, infos = envs.step(REPLIES)
        assert ended.all()
        message = [row[0]["reply"] for row in infos["transcript"]]
        assert message == list(REPLIES)
        envs.step(REPLIES)  # the next episode of each
        assert observed["messages"][0][0]["content"].startswith("Compute")
        assert final["messages"] == observed["messages"]
    finally:
        envs.close()


def test_a_wrapper_of_a_vector_environment_gets_chats_one_by_one():
    envs = TransformObservation(
        make(vectorization_mode="sync"),
        lambda batch: {"messages": tuple(chat[-1:] for chat in batch["messages"])},
    )
    observed, _ = envs.reset(seed=0)
    assert [len(chat) for chat in observed["messages"]] == [1, 1]
    items = list(iterate(envs.observation_space, observed))
    assert [item["messages"] for item in items] == list(observed["messages"])


def test_batches_give_their_items_and_one_item_is_no_batch():
    prose, chats = Prose(("a", "b")), Messages()
    assert list(iterate(batch_space(prose, 2), ("whole", "words"))) == ["whole", "words"]
    assert list(iterate(prose, ["whole", "words"])) == ["whole", "words"]
    chat = [{"role": "user", "content": "hi"}]
    assert list(iterate(chats, (chat, []))) == [chat, []]
    for space, item in ((prose, "word"), (chats, chat)):
        with pytest.raises(TypeError, match="expected a batch"):
            iterate(space, item)
    batch = batch_space(prose, 4)
    assert batch.sample() in batch
    assert len({tuple(batch.sample()) for _ in range(20)}) > 1


def test_empty_values_are_in_the_space():
    space = Dict({"messages": Messages(), "reply": Prose()})
    assert create_zero_array(space) == {"messages": [], "reply": ""}
    assert create_zero_array(space) in space
    assert create_empty_array(space, 2) in batch_space(space, 2)
    assert create_empty_array(Messages(), None) == []
    first, _ = DelayObservation(gymnasium.make("flowzoo/Single-v0"), delay=1).reset(seed=0)
    assert first == {"messages": []}


def test_shared_memory_shows_what_was_written_last():
    space = Prose()
    memory = create_shared_memory(space, n=2)
    view = read_from_shared_memory(space, memory, n=2)
    assert tuple(view) == ("", "")
    for text in HOSTILE.values():
        if len(text) < spaces.ROOM / 8:
            write_to_shared_memory(space, 1, text, memory)
            assert view[1] == text
    write_to_shared_memory(space, 0, "long " * 100, memory)
    write_to_shared_memory(space, 0, "short", memory)
    remaining = copy.deepcopy(view)
    write_to_shared_memory(space, 0, "later", memory)
    assert (remaining[0], view[0], view[-2], view[:1]) == ("short", "later", "later", ("later",))
    assert read_from_shared_memory(Messages(), create_shared_memory(Messages(), n=1), n=1)[0] == []


def test_a_chat_over_the_room_is_refused_with_the_remedy(monkeypatch):
    memory = create_shared_memory(Prose(), n=1)
    with pytest.raises(UsageError, match=r"1048577 bytes .* shared_memory=False"):
        write_to_shared_memory(Prose(), 0, "x" * (spaces.ROOM - 1), memory)
    write_to_shared_memory(Prose(), 0, "x" * (spaces.ROOM - 2), memory)


def test_without_copies_the_observation_is_a_view():
    envs = AsyncVectorEnv([partial(gymnasium.make, "flowzoo/Single-v0")], copy=False)
    try:
        observed, _ = envs.reset(seed=0)
        before = observed["messages"][0]
        envs.step(("x",))
        envs.step(("x",))
        assert observed["messages"][0] != before
    finally:
        envs.close()
