"""Comparison of returned values; both sides are plain data of exact builtin types.

- `exact`: equal values of equal types at every depth: a tuple is no list, True is not 1, 1 is not
  1.0. NaN equals NaN (a program that must return it could not be judged otherwise), -0.0 equals
  0.0, and the order of sets and dicts does not count.
- `tokens`: as `exact`, but strings are equal when they are after splitting at ASCII white space.
- `number`: as `tokens`, but where one of two numbers is a float they may differ by
  `max(absolute, relative * |expected|)`, and one of them may be an int, a Fraction or a Decimal;
  two whole numbers must be equal (see `outputs`), and True and False are the numbers 1 and 0, as
  Python has it. Infinities and NaN equal only themselves. Keys of dicts, and sets that hold
  anything but numbers, are compared as under `exact`.

With `tuples_as_lists` a tuple equals a list of equal items: for tests that went through JSON.
"""

from __future__ import annotations

import math
from collections import deque
from decimal import Decimal
from fractions import Fraction
from typing import Any

from flowzoo.sandbox.compare.kernel import NEAR_WHOLE, WHOLE
from flowzoo.sandbox.program import Compare


def values_match(value: Any, expected: Any, rule: Compare) -> bool:
    """True if `value` matches `expected` under `rule`."""
    if rule.mode == "number" and _is_number(value) and _is_number(expected):
        return _close(_counted(value), _counted(expected), rule)
    if rule.tuples_as_lists and isinstance(value, list | tuple):
        value = list(value)
        expected = list(expected) if type(expected) is tuple else expected
    if type(value) is not type(expected):
        return False
    if isinstance(value, str):
        if rule.mode == "exact":
            return value == expected
        return _tokens(value) == _tokens(expected)
    if isinstance(value, list | tuple | deque):
        return len(value) == len(expected) and all(
            values_match(member, other, rule) for member, other in zip(value, expected, strict=True)
        )
    if isinstance(value, set | frozenset):
        return _sets_match(value, expected, rule)
    if isinstance(value, dict):
        return _dicts_match(value, expected, rule)
    return _typed(value) == _typed(expected)


def _dicts_match(value: dict[Any, Any], expected: dict[Any, Any], rule: Compare) -> bool:
    items = {_typed(key): item for key, item in value.items()}
    targets = {_typed(key): item for key, item in expected.items()}
    return items.keys() == targets.keys() and all(
        values_match(items[key], item, rule) for key, item in targets.items()
    )


def _sets_match(
    value: set[Any] | frozenset[Any], expected: set[Any] | frozenset[Any], rule: Compare
) -> bool:
    if len(value) != len(expected):
        return False
    if rule.mode == "number" and all(map(_is_ordered, (*value, *expected))):
        pairs = zip(sorted(value), sorted(expected), strict=True)
        return all(values_match(member, other, rule) for member, other in pairs)
    return {_typed(item) for item in value} == {_typed(item) for item in expected}


def _typed(value: Any) -> Any:
    """A hashable stand-in that is equal exactly where type and value are, NaN included."""
    if isinstance(value, float) and math.isnan(value):
        return float, "nan"
    if isinstance(value, complex):
        return complex, _typed(value.real), _typed(value.imag)
    if isinstance(value, tuple):
        return tuple, tuple(map(_typed, value))
    if isinstance(value, frozenset):
        return frozenset, frozenset(map(_typed, value))
    return type(value), value


def _tokens(text: str) -> list[bytes]:
    # Lone surrogates stay.
    return text.encode("utf-8", "surrogatepass").split()


def _is_number(value: Any) -> bool:
    return type(value) in (int, float, complex, bool, Fraction, Decimal)


def _counted(value: Any) -> Any:
    return int(value) if type(value) is bool else value


def _is_nan(value: Any) -> bool:
    return bool(value != value)


def _reals_match(value: Any, expected: Any, rule: Compare) -> bool:
    try:
        number, target = float(value), float(expected)
    except OverflowError:  # an int beyond the floats
        return type(value) is type(expected) and value == expected
    if math.isinf(number) or math.isinf(target):
        return number == target
    if math.isnan(number) or math.isnan(target):
        return False
    return floats_match(number, target, type(expected) is int, rule)


def floats_match(value: float, target: float, is_whole: bool, rule: Compare) -> bool:
    """True if two spellings of finite numbers are within the tolerance; see `outputs`."""
    if (is_whole or abs(target) <= WHOLE) and value.is_integer() and target.is_integer():
        return value == target
    share = rule.relative * abs(target)
    return abs(value - target) <= max(rule.absolute, min(share, NEAR_WHOLE) if is_whole else share)


def _is_ordered(value: Any) -> bool:
    return type(value) in (int, bool) or (type(value) is float and not math.isnan(value))


def _close(value: complex, expected: complex, rule: Compare) -> bool:
    if type(value) is int and type(expected) is int:
        return value == expected
    if complex in (type(value), type(expected)):
        if type(value) is not type(expected):
            return False
    elif type(value) in (Fraction, Decimal) or not (_is_nan(value) or _is_nan(expected)):
        return _reals_match(value, expected, rule)
    if _typed(value) == _typed(expected):
        return True
    try:
        gap = abs(value - expected)
        return math.isfinite(gap) and gap <= max(rule.absolute, rule.relative * abs(expected))
    except OverflowError:  # an int beyond the floats beside a float, or a complex's absolute value
        return False
