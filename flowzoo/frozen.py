"""Frozen dataclasses, and tuples with names, that are made by the hundred thousand.

The `__init__` of one calls `object.__setattr__` for every field. A dataclass of the same slots that
is not frozen stores them as any class does, at a quarter of the cost (of `Call`, with 35 fields),
and an object of it may then become one of the frozen class: the layout is the same.
"""

from collections.abc import Callable
from dataclasses import field, fields, make_dataclass
from typing import Any, TypeVar

T = TypeVar("T")

quick_tuple: Callable[[Any, tuple[Any, ...]], Any] = tuple.__new__
"""`quick_tuple(Kind, (a, b))` is `Kind(a, b)` for a NamedTuple, at a third of the cost: the class's
own `__new__` is a function in Python."""


def quick_maker(frozen: type[T]) -> Callable[..., T]:
    """A faster constructor of `frozen`, a frozen dataclass with slots."""
    if hasattr(frozen, "__post_init__"):
        raise TypeError(f"{frozen.__name__} has a __post_init__, which would not be called")

    def close(instance: object) -> None:
        instance.__class__ = frozen

    columns: list[tuple[str, Any, Any]] = []
    for column in fields(frozen):  # type: ignore[arg-type]
        given: dict[str, Any] = {
            "default": column.default,
            "default_factory": column.default_factory,
        }
        columns.append((column.name, column.type, field(**given)))
    namespace = {"__post_init__": close}
    return make_dataclass(frozen.__name__, columns, slots=True, namespace=namespace)
