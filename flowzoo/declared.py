"""Declared types of settings, and the check of values against them.

A settings class declares type, choices and bounds of a field in its annotation, with the vocabulary
of `annotated_types`: `Positive[int]`, `Literal["a", "b"]`, `ByPolicy[Fraction]`. The command line,
TOML files and Python are checked against that one declaration. `Only` beside them declares when a
setting has an effect.
"""

import math
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from functools import cache
from itertools import product
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from annotated_types import Ge, Gt, Le, Lt

from flowzoo.errors import UsageError, unknown

T = TypeVar("T")
Positive = Annotated[T, Gt(0)]
NonNegative = Annotated[T, Ge(0)]
Fraction = Annotated[float, Ge(0), Le(1)]
ProperFraction = Annotated[float, Ge(0), Lt(1)]
"""A fraction below 1."""
Share = Annotated[float, Gt(0), Le(1)]
"""A fraction above 0."""
Count = Annotated[int, Gt(0), Le(1_000_000)]
"""Number of parts of an iteration or an evaluation."""
CountOrZero = Annotated[int, Ge(0), Le(1_000_000)]
BY_POLICY = "by policy"
ByPolicy = Annotated[T, BY_POLICY]
"""A setting of a run that takes a value for all policies, or words: POLICY=VALUE for individual
policies, and at most one VALUE for the others (`flowzoo.baselines.settings.policies`)."""


@dataclass(frozen=True, slots=True)
class Only:
    """Condition under which a setting has an effect: `Annotated[int, Only(...)]`."""

    holds: Callable[[Any, Any], bool]
    """True for settings of a policy, and the algorithm of the run, with which it has one."""
    subject: str
    """The feature that the setting belongs to, as in messages: `of AdamW`."""
    remedy: str = "has no effect here{here}: leave it at {default!r}"
    """End of the message; `{settings}` are the user's, `{here}` is the algorithm."""


_NAMES = {int: "a whole number", float: "a number", bool: "true or false", NoneType: "None"}
_BOUNDS: tuple[tuple[type, str, Callable[[Any, Any], bool], str], ...] = (
    (Gt, "gt", operator.gt, "greater than"),
    (Ge, "ge", operator.ge, "at least"),
    (Lt, "lt", operator.lt, "below"),
    (Le, "le", operator.le, "at most"),
)


@cache
def declared_types(settings: type) -> Mapping[str, Any]:
    """Annotation of each field of a dataclass, with its bounds."""
    hints = get_type_hints(settings, include_extras=True)
    return {field.name: hints[field.name] for field in fields(settings)}


@cache
def conditions(settings: type) -> Mapping[str, Only]:
    """Condition of each field of a dataclass that has one."""
    return {
        name: part
        for name, kind in declared_types(settings).items()
        for part in get_args(kind)
        if isinstance(part, Only)
    }


def unmet_condition(policies: Sequence[object], name: str, algorithm: object = None) -> Only | None:
    """Condition of a field if it holds for no policy; `policies` are the settings of each."""
    condition = conditions(type(policies[0])).get(name)
    is_met = condition is None or any(condition.holds(policy, algorithm) for policy in policies)
    return None if is_met else condition


def check_effects(policies: Sequence[object], algorithm: object = None, here: str = "") -> None:
    """Refuse a field that differs from its default and has no effect on any policy.

    Args:
        policies: the settings of each policy.
        algorithm: the run's algorithm, on which conditions may depend.
        here: the algorithm as the message names it.
    """
    kind = type(policies[0])
    for name in conditions(kind):
        default = getattr(kind, name)
        changed = [policy for policy in policies if getattr(policy, name) != default]
        if changed and (only := unmet_condition(changed, name, algorithm)):
            remedy = only.remedy.format(name=name, default=default, here=here, settings=changed[0])
            raise UsageError(f"`{name}` is a setting {only.subject}, and {remedy}")


def takes_words(kind: object) -> bool:
    """True for `ByPolicy`."""
    return get_origin(kind) is Annotated and BY_POLICY in get_args(kind)


def without_words(kind: object) -> Any:
    """Declared type of the value of one policy, of `ByPolicy`; other types as they are."""
    if not takes_words(kind):
        return kind
    parts = (part for part in get_args(kind) if part is not BY_POLICY)
    inner, *bounds = (part for part in parts if not isinstance(part, Only))
    return Annotated[(inner, *bounds)] if bounds else inner


def check_declared(
    settings: object, written: Callable[[str], str] = "`{}`".format, *, by_policy: bool = True
) -> None:
    """Check the fields of a dataclass, and of the dataclasses in it, against their declarations.

    A list becomes a tuple, and an integer of another library an int.

    Args:
        written: how a message writes the name of a field.
        by_policy: whether fields of `ByPolicy` may have words.

    Raises:
        UsageError: a value of another type, outside its bounds or choices, or not finite.
    """
    for name, kind in declared_types(type(settings)).items():
        value = getattr(settings, name)
        if is_dataclass(value):
            check_declared(value, written, by_policy=by_policy)
            continue
        kind = kind if by_policy else without_words(kind)
        plain = _plain(value, kind)
        if plain is not value:
            object.__setattr__(settings, name, plain)
        check_value(written(name), plain, kind)


def check_value(label: str, value: object, kind: object) -> None:
    """Raise `UsageError` unless `value` is of the declared `kind`; messages name it `label`."""
    if not fits(value, kind):
        choices = choices_of(kind)
        if choices and isinstance(value, str):
            raise UsageError(f"{label}: {unknown('choice', value, choices)}")
        raise UsageError(f"{label} must be {describe(kind)}, got {value!r}")
    for fault in _faults(label, value, kind):
        raise UsageError(fault)


def members_of(kind: object) -> tuple[Any, ...]:
    """Types of a union; another type alone."""
    if get_origin(kind) is Annotated:
        return members_of(get_args(kind)[0])
    return get_args(kind) if get_origin(kind) in (Union, UnionType) else (kind,)


def read_text(text: str, kind: object) -> Any:
    """Read a value of the declared `kind` from a word of a command line or a list.

    Raises:
        ValueError: the word is no such value.
    """
    members = members_of(kind)
    if text == str(None) and NoneType in members:
        return None
    if choices := choices_of(kind):
        return choices[list(map(str, choices)).index(text)]
    return next(member for member in members if member is not NoneType)(text)


def fits(value: object, kind: object) -> bool:
    """True if `value` is of the declared type, inside its bounds or not."""
    origin, inside = get_origin(kind), get_args(kind)
    if origin is Annotated:
        return (takes_words(kind) and fits(value, tuple[str, ...])) or fits(value, inside[0])
    if origin is Literal:
        return any(value == choice and type(value) is type(choice) for choice in inside)
    if origin in (Union, UnionType):
        return any(fits(value, choice) for choice in inside)
    if origin is tuple:
        return isinstance(value, tuple) and (
            all(fits(member, inside[0]) for member in value)
            if Ellipsis in inside
            else len(value) == len(inside) and all(map(fits, value, inside))
        )
    if isinstance(value, bool) or kind is bool:  # in Python True is an int
        return isinstance(value, bool) and kind in (bool, Any)
    if kind is float:
        return isinstance(value, (int, float))
    checked = origin or kind
    return checked is Any or not isinstance(checked, type) or isinstance(value, checked)


def choices_of(kind: object) -> tuple[Any, ...]:
    """Values of the `Literal` in a declaration; empty without one."""
    if get_origin(kind) is Literal:
        return get_args(kind)
    inner = get_args(kind) if get_origin(kind) in (Annotated, Union, UnionType) else ()
    return next(filter(None, map(choices_of, inner)), ())


def describe(kind: Any) -> str:
    """Describe a declared type in the words of messages."""
    origin, inside = get_origin(kind), get_args(kind)
    if origin is Annotated:
        return describe(inside[0]) + " or a list (POLICY=VALUE)" * takes_words(kind)
    if origin is Literal:
        return "one of " + ", ".join(map(repr, inside))
    if origin in (Union, UnionType):
        return " or ".join(describe(choice) for choice in inside if choice is not NoneType)
    if origin is tuple:
        count = "a list" if Ellipsis in inside else f"a list of {len(inside)}"
        return f"{count} ({describe(inside[0])} each)"
    if isinstance(origin or kind, type) and issubclass(origin or kind, Mapping):
        return "a table"
    return _NAMES.get(kind, "text" if kind is str else getattr(kind, "__name__", str(kind)))


def _faults(label: str, value: Any, kind: Any) -> Iterator[str]:
    """Messages for what is outside its bounds in a value that has the declared type."""
    origin, inside = get_origin(kind), get_args(kind)
    if origin is Annotated:
        if takes_words(kind) and isinstance(value, tuple):
            return  # each policy's value is checked where the words are read
        yield from _faults(label, value, inside[0])
        yield from _bound_faults(label, value, inside[1:])
    elif origin in (Union, UnionType):
        yield from _faults(label, value, next(choice for choice in inside if fits(value, choice)))
    elif origin is tuple:
        for index, member in enumerate(value):
            yield from _faults(label, member, inside[0 if Ellipsis in inside else index])
    elif isinstance(value, Mapping) and inside:
        for key, member in value.items():
            name = f"{label} of {key!r}"
            if not fits(member, inside[1]):
                yield f"{name} must be {describe(inside[1])}, got {member!r}"
            yield from _faults(name, member, inside[1])
    elif isinstance(value, float) and not math.isfinite(value):
        yield f"{label} must be a finite number, got {value}"


def _bound_faults(label: str, value: object, bounds: tuple[object, ...]) -> Iterator[str]:
    for bound, (kind, field, holds, phrase) in product(bounds, _BOUNDS):
        if value is not None and isinstance(bound, kind):
            limit = getattr(bound, field)
            if not holds(value, limit):
                yield f"{label} must be {phrase} {limit:,}, got {value}"


def _plain(value: Any, kind: Any) -> Any:
    if isinstance(value, list) and not fits(value, kind):
        return tuple(value)
    if isinstance(value, (bool, int)) or not hasattr(value, "__index__"):
        return value
    return operator.index(value)
