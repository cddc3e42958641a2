"""Frozen dataclasses made quickly are those that their class makes."""

import copy
import pickle
from dataclasses import FrozenInstanceError, dataclass, field, fields, replace

import pytest

from flowzoo.agents.policy import Sampling
from flowzoo.envs.records import Call, call_values, changed_call, make_call
from flowzoo.frozen import quick_maker


@dataclass(frozen=True, slots=True)
class Point:
    x: int
    names: list[str] = field(default_factory=list)
    y: float = 0.5


def test_it_makes_what_the_class_makes():
    make = quick_maker(Point)
    built = make(3, y=1.0)
    assert (built, hash(type(built))) == (Point(3, y=1.0), hash(Point))
    assert type(built) is Point
    assert make(1).names is not make(1).names
    with pytest.raises(FrozenInstanceError):
        built.x = 4
    for twin in (pickle.loads(pickle.dumps(built)), copy.deepcopy(built), replace(built)):
        assert type(twin) is Point
        assert twin == built
    with pytest.raises(TypeError, match=r"missing 1 required positional argument: 'x'"):
        make()
    with pytest.raises(TypeError, match="has a __post_init__, which would not be called"):
        quick_maker(Sampling)


def test_calls_are_made_and_changed_as_by_dataclasses():
    values = {item.name: item.name for item in fields(Call)}
    call = Call(**values)
    assert make_call(**values) == call
    assert call_values(call) == values
    assert make_call(**{**call_values(call), "reply": "x"}) == replace(call, reply="x")
    assert changed_call(call, {"reply": "x"}) == replace(call, reply="x")
