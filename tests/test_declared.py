"""Values of settings are checked against their declarations, wherever they come from."""

import ast
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin

import numpy as np
import pytest
from annotated_types import Ge, Gt, Le, Lt
from hypothesis import given, settings
from hypothesis import strategies as st

import flowzoo
from flowzoo.baselines.learner.config import LearnerConfig
from flowzoo.declared import (
    ByPolicy,
    Count,
    NonNegative,
    Positive,
    ProperFraction,
    check_declared,
    check_value,
    choices_of,
    declared_types,
    fits,
    read_text,
    without_words,
)
from flowzoo.errors import UsageError

REQUIRED: Mapping[str, Mapping[str, Any]] = {
    "Endpoint": {"url": "http://localhost:1/v1"},
}
"""Arguments without which a class of settings cannot be made."""


def declared_classes() -> Iterator[type]:
    """Every class of the package whose `__post_init__` calls `check_declared`."""
    root = Path(flowzoo.__file__).parent
    for path in sorted(root.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            methods = node.body if isinstance(node, ast.ClassDef) else []
            made = next((it for it in methods if getattr(it, "name", "") == "__post_init__"), None)
            if made is not None and "check_declared(self" in ast.unparse(made):
                parts = path.relative_to(root.parent).with_suffix("").parts
                yield getattr(import_module(".".join(parts)), node.name)  # type: ignore[attr-defined]


CLASSES = [pytest.param(cls, id=cls.__name__) for cls in declared_classes()]
WRONG = (1.5, -1, "nonsense", "3", True, None, math.nan, math.inf, (1.5,), b"1", {}, object())
"""Values of types of which few settings have more than one."""
OUTSIDE = {Gt: ("gt", 0), Ge: ("ge", -1), Lt: ("lt", 0), Le: ("le", 1)}
"""Distance of a value just outside from each bound."""


def bounds(kind: Any) -> Iterator[tuple[Any, int]]:
    """Bounds of a declaration, with a value just outside each."""
    for part in get_args(kind):
        if get_origin(kind) is Annotated and type(part) in OUTSIDE:
            field, distance = OUTSIDE[type(part)]
            yield part, getattr(part, field) + distance
        yield from bounds(part)


def make(cls: type) -> Any:
    return cls(**REQUIRED.get(cls.__name__, {}))


def refusal(settings: Any, **values: Any) -> str:
    """Message that refuses values in place of those of `settings`; empty if none does."""
    try:
        replace(settings, **values)
    except UsageError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("cls", CLASSES)
def test_values_of_another_type_are_refused_by_name(cls):
    settings, count = make(cls), 0
    for name, kind in declared_types(cls).items():
        for value in WRONG:
            if not fits(value, kind):
                message = refusal(settings, **{name: value})
                assert re.match(rf"(`|the ){name}\b", message), (name, value, message)
                assert "\n" not in message
                count += 1
    assert count >= 9 * len(declared_types(cls))


@pytest.mark.parametrize("cls", CLASSES)
def test_values_just_outside_a_bound_are_refused(cls):
    for name, kind in declared_types(cls).items():
        if get_origin(without_words(kind)) is Mapping or "Mapping" in str(kind):
            continue
        for bound, value in bounds(kind):
            given_value = (value, value) if get_origin(kind) is tuple else value
            message = refusal(make(cls), **{name: given_value})
            assert re.match(rf"(`|the ){name}\b[^,]* must be ", message), (name, bound, message)
            assert message.endswith(f"got {value}")


@pytest.mark.parametrize("cls", CLASSES)
@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_legal_values_resolve_or_are_refused_in_a_line(cls, data):
    types = declared_types(cls)
    kinds = {name: kind for name, kind in types.items() if is_drawn(kind)}
    name = data.draw(st.sampled_from(sorted(kinds)))
    value = data.draw(st.from_type(without_words(kinds[name])).filter(is_finite))
    check_value(f"`{name}`", value, kinds[name])
    assert "\n" not in refusal(make(cls), **{name: value})


def is_drawn(kind: Any) -> bool:
    """True for types that Hypothesis draws: numbers, choices and texts."""
    kind = without_words(kind)
    parts = get_args(kind) if get_origin(kind) is not Literal else ()
    return "Mapping" not in str(kind) and all(
        part in (int, float, bool, str, type(None), ...)
        or get_origin(part) in (Literal, Annotated)
        or not isinstance(part, type)
        for part in (kind, *parts)
    )


def is_finite(value: Any) -> bool:
    """True unless a number is NaN or infinite."""
    members = value if isinstance(value, tuple) else (value,)
    return all(math.isfinite(number) for number in members if isinstance(number, float))


@dataclass(frozen=True)
class Inner:
    """Settings in settings."""

    share: ProperFraction = 0.5


@dataclass(frozen=True)
class Settings:
    """One field of each kind of declaration."""

    inner: Inner = Inner()
    count: Count = 1
    rates: tuple[Positive[float], ...] = ()
    pair: tuple[int, int] = (1, 2)
    mode: Literal["fast", "slow"] | None = None
    roles: Mapping[str, NonNegative[float]] | None = None
    rank: ByPolicy[NonNegative[int]] = 0
    path: Path | None = None

    def __post_init__(self) -> None:
        check_declared(self)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"inner": Inner(1.0)}, "`share` must be below 1, got 1.0"),
        ({"count": 2_000_000}, "`count` must be at most 1,000,000, got 2000000"),
        ({"rates": (1.0, 0.0)}, "`rates` must be greater than 0, got 0.0"),
        ({"rates": 1.0}, "`rates` must be a list (a number each), got 1.0"),
        ({"pair": (1,)}, "`pair` must be a list of 2 (a whole number each), got (1,)"),
        ({"mode": "fats"}, "`mode`: unknown choice 'fats'. Did you mean 'fast'? Valid choices"),
        ({"mode": 1}, "`mode` must be one of 'fast', 'slow', got 1"),
        ({"roles": {"a": -1.0}}, "`roles` of 'a' must be at least 0, got -1.0"),
        ({"roles": {"a": "1"}}, "`roles` of 'a' must be a number, got '1'"),
        ({"rank": -1}, "`rank` must be at least 0, got -1"),
        ({"rank": "a=1"}, "`rank` must be a whole number or a list (POLICY=VALUE), got 'a=1'"),
        ({"path": "x"}, "`path` must be Path, got 'x'"),
    ],
)
def test_a_message_says_what_is_expected_and_what_came(values, message):
    assert refusal(Settings(), **values).startswith(message)


def test_a_list_becomes_a_tuple_and_an_integer_an_int():
    made = Settings(rates=[1.0, 2], count=np.int64(3), rank=("a=1",))
    assert made.rates == (1.0, 2)
    assert type(made.count) is int
    assert choices_of(declared_types(Settings)["mode"]) == ("fast", "slow")


def test_words_are_of_runs_only():
    assert "must be a number, got ('a=1',)" in refusal(LearnerConfig(), clip_norm=("a=1",))


@pytest.mark.parametrize(
    ("text", "kind", "value"),
    [
        ("3", Positive[int], 3), ("1e-3", ByPolicy[float | None], 1e-3),
        ("None", float | None, None), ("None", str, "None"), ("b", Literal["a", "b"], "b"),
        ("2", Literal[1, 2], 2),
        ("a", Literal["a"] | None, "a"), ("4", int | tuple[str, ...], 4),
    ],
)  # fmt: skip
def test_a_word_is_read_by_the_declared_type(text, kind, value):
    read = read_text(text, kind)
    assert (read, type(read)) == (value, type(value))


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("x", int),
        ("1.5", int),
        ("None", float),
        ("c", Literal["a", "b"]),
        ("1", Literal["a"] | None),
    ],
)  # fmt: skip
def test_a_word_of_another_type_is_no_value(text, kind):
    with pytest.raises(ValueError):
        read_text(text, kind)
