"""Stand-ins for what has no value: functions that nobody knows, and sums that are not summed.

The stand-in of a function is a fixed rational function of its arguments whose coefficients come
from its name. It is not linear, even, odd or periodic, so values agree where the arguments do and,
but by accident, nowhere else: `F(b) - F(a)` is not `F(b - a) - F(0)`.
"""

from __future__ import annotations

import functools
import random
import zlib
from fractions import Fraction
from typing import Any, Final

_TERMS: Final = 3
_STEPS: Final = 4096


class _Term(tuple[Fraction, ...]):
    """Weight, slope, shift, width, then one factor for each argument."""


@functools.lru_cache(maxsize=1024)
def _terms(name: str, arity: int) -> tuple[_Term, ...]:
    rng = random.Random(zlib.crc32(f"{name}/{arity}".encode("utf-8", "surrogatepass")))

    def drawn(low: float, high: float) -> Fraction:
        return Fraction(round(rng.uniform(low, high) * _STEPS), _STEPS)

    return tuple(
        _Term(
            (
                drawn(0.5, 2), drawn(-1, 1), drawn(-2, 2), drawn(0.7, 2),
                *(drawn(0.6, 1.6) * rng.choice((-1, 1)) for _ in range(arity)),
            )
        )
        for _ in range(_TERMS)
    )  # fmt: skip


def modelled(name: str, values: list[Any], number: Any) -> Any:
    """The stand-in's value: a sum of `(w + s u) / ((u - c)^2 + d)`, `u` linear in the arguments.

    Args:
        name: the function.
        values: its arguments, numbers of one arithmetic.
        number: makes such a number of a `Fraction`.

    Raises:
        ZeroDivisionError: an argument is a pole.
    """
    total = number(Fraction(0))
    for weight, slope, shift, width, *factors in _terms(name, len(values)):
        inner = number(Fraction(0))
        for factor, item in zip(factors, values, strict=True):
            inner = inner + number(factor) * item
        apart = inner - number(shift)
        total = total + (number(weight) + number(slope) * inner) / (apart * apart + number(width))
    return total


def sample(name: str, index: int) -> Fraction:
    """The value of a bound variable at which the body of a sum that is not summed is taken."""
    rng = random.Random(zlib.crc32(f"sample/{name}/{index}".encode()))
    return Fraction(round(rng.uniform(0.4, 1.9) * _STEPS), _STEPS)
