"""Spaces for language: rule 8 of the design's core document."""

import pytest
from gymnasium.spaces import Dict

from flowzoo.envs.api.spaces import Messages, Prose, Tools
from flowzoo.envs.testing import HOSTILE

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
