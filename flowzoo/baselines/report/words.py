"""Numbers that a page can show, and the words for numbers, differences and lists."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any


def is_finite(value: object) -> bool:
    """True for a finite number."""
    return isinstance(value, (int, float)) and math.isfinite(value)


def finite_only(value: object) -> Any:
    """`value` with None for every number that JSON does not have, recursively."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): finite_only(item) for key, item in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [finite_only(item) for item in value]
    return value


def percent(value: float) -> str:
    """A fraction in percent."""
    return f"{100 * value:.1f}\u00a0%"


def points(value: float, *, sign: bool = False) -> str:
    """A difference of fractions in percentage points."""
    rounded = round(100 * value, 1) + 0.0  # no minus before 0
    return f"{rounded:{'+' if sign else ''}.1f}".replace("-", "−")


def between(low: float, high: float, show: Callable[..., str] = points) -> str:
    """A 95 % interval of a difference, in points; without width it is none."""
    if low == high:
        return "no interval, since all differences are equal"
    return f"95\u00a0% interval {show(low, sign=True)} to {show(high, sign=True)}"


def gain_words(gain: Mapping[str, Any], more: str = "") -> str:
    """A difference in points with its 95 % interval, and what else is in parentheses."""
    ends = between(gain["low"], gain["high"])
    return f"{points(gain['mean'], sign=True)} points ({ends}{more})"


def pluralize(count: int, noun: str) -> str:
    """A number and its noun, in the plural if needed."""
    return f"{count} {noun}" + ("" if count == 1 else "s")


def join_words(items: Sequence[str]) -> str:
    """Words joined with commas and a final `and`."""
    return ", ".join(items[:-1]) + f" and {items[-1]}" if len(items) > 1 else "".join(items)
