"""The points at which expressions are compared, stand-ins for unknown functions, and the budget.

Symbols have dyadic fractions of few bits as values at probe points, so doubles, exact fractions and
any precision refer to the same point. A value depends only on the symbol's name and the point.
"""

import functools
import random
import threading
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from fractions import Fraction
from itertools import product
from types import MappingProxyType
from typing import Any, Final, Literal, NamedTuple

from flowzoo.reward.listed import names

Signs = Literal["complex", "plus", "minus", "mixed"]

# Letters that are integers by convention, with or without a subscript.
_INTEGERS: Final = names("n k m j l N M K")
_UNIT: Final = 1024


class ProbePoint(NamedTuple):
    """One point; symbols in `fixed` have these values, other values are drawn."""

    salt: int
    signs: Signs
    size: float = 1.0
    fixed: Mapping[str, Fraction] = MappingProxyType({})

    @property
    def is_real(self) -> bool:
        """True if all symbols are real; values outside the reals are then inconclusive."""
        return self.signs != "complex"

    def value(self, name: str) -> tuple[Fraction, Fraction]:
        """Real and imaginary part of the symbol `name`."""
        if name in self.fixed:
            return self.fixed[name], Fraction(0)
        return _draw_value(name, self.salt, self.signs, self.size)

    def real(self, name: str) -> Fraction:
        """The symbol's value at a real point."""
        return self.value(name)[0]


@functools.lru_cache(maxsize=8192)
def _draw_value(name: str, salt: int, signs: Signs, size: float) -> tuple[Fraction, Fraction]:
    rng = random.Random(zlib.crc32(name.encode("utf-8", "surrogatepass")) * 64 + salt)
    length = rng.uniform(0.45, 1.75)
    if signs == "complex":
        slope = rng.choice((-1, 1)) * rng.uniform(0.15, 0.6)
        return _dyadic(length), _dyadic(length * slope)
    negative = signs == "minus" or (signs == "mixed" and rng.random() < 0.5)
    return _dyadic((-1 if negative else 1) * length * size), Fraction(0)


def _dyadic(value: float) -> Fraction:
    # A fraction close to `value`, odd in its last bit and therefore never an integer.
    return Fraction(2 * round(value * _UNIT / 2) + 1, _UNIT)


COMPLEX: Final = tuple(ProbePoint(salt, "complex") for salt in range(3))
NEAR: Final = (ProbePoint(3, "plus"), ProbePoint(4, "mixed"), ProbePoint(5, "minus"))
_SIGNS: Final[tuple[Signs, ...]] = ("plus", "minus", "mixed")
_SIZES: Final = (3.0, 16.0, 140.0, 5e3, 1e6, 0.02)
# Real points of both signs at many magnitudes, for piecewise functions.
WIDE: Final = tuple(
    ProbePoint(6 + idx, signs, size) for idx, (size, signs) in enumerate(product(_SIZES, _SIGNS))
)

_WHOLE: Final = (*range(1, 13), 0, -1, -2, -3, -4, -7, 15, 24, 37, 60, 100, 101, 1000, 1001, -60)
_PAIRS: Final = 44


def is_whole(name: str) -> bool:
    """Return True if a symbol is an integer by the convention of its letter."""
    return name.partition("_")[0] in _INTEGERS


def whole_points(chosen: frozenset[str], near: frozenset[int]) -> Iterator[ProbePoint]:
    """Points at which the symbols `chosen` are integers, small ones first."""
    ordered = sorted(chosen)
    values = [*_WHOLE, *(n for n in sorted(near) if n not in _WHOLE)]
    if len(ordered) == 1:
        for idx, n in enumerate(values):
            yield ProbePoint(idx % 8, "mixed", 1.0, {ordered[0]: Fraction(n)})
        return
    rng = random.Random(len(ordered))
    for idx in range(_PAIRS):
        pool = range(6) if idx < _PAIRS // 2 else values
        fixed = {name: Fraction(rng.choice(pool)) for name in ordered}
        yield ProbePoint(idx % 8, "mixed", 1.0, fixed)


_BUDGET: Final = 150_000  # nodes in doubles; a node at many digits costs a dozen and more


class UnreliableValueError(Exception):
    """The value is unreliable or out of range."""


class OffRealsError(UnreliableValueError):
    """A value leaves the reals at a real point, which is therefore inconclusive."""


class _State(threading.local):
    left: int | None = None


_state = _State()


@contextmanager
def bounded() -> Iterator[None]:
    """One budget for all comparisons inside."""
    is_first = _state.left is None
    if is_first:
        _state.left = _BUDGET
    try:
        yield
    finally:
        if is_first:
            _state.left = None


def spend(units: int) -> None:
    """Count work."""
    if _state.left is not None:
        _state.left -= units
        if _state.left < 0:
            raise UnreliableValueError


def is_spent() -> bool:
    """Return True if the budget is used up and evaluation has stopped."""
    return _state.left is not None and _state.left < 0


_TERMS: Final = 3
_STEPS: Final = 4096


@functools.lru_cache(maxsize=1024)
def _terms(name: str, arity: int) -> tuple[tuple[Fraction, ...], ...]:
    # Weight, slope, shift, width, then one factor for each argument.
    rng = random.Random(zlib.crc32(f"{name}/{arity}".encode("utf-8", "surrogatepass")))

    def drawn(low: float, high: float) -> Fraction:
        return Fraction(round(rng.uniform(low, high) * _STEPS), _STEPS)

    return tuple(
        (
            drawn(0.5, 2), drawn(-1, 1), drawn(-2, 2), drawn(0.7, 2),
            *(drawn(0.6, 1.6) * rng.choice((-1, 1)) for _ in range(arity)),
        )
        for _ in range(_TERMS)
    )  # fmt: skip


def model_function(name: str, values: list[Any], number: Any) -> Any:
    """Value of the stand-in, a sum of `(w + s u) / ((u - c)^2 + d)`; `u` is linear in `values`."""
    total = number(Fraction(0))
    for weight, slope, shift, width, *factors in _terms(name, len(values)):
        inner = number(Fraction(0))
        for factor, item in zip(factors, values, strict=True):
            inner = inner + number(factor) * item
        apart = inner - number(shift)
        total = total + (number(weight) + number(slope) * inner) / (apart * apart + number(width))
    return total


def sample(name: str, index: int) -> Fraction:
    """Value of a bound variable for the body of a sum that is not computed."""
    rng = random.Random(zlib.crc32(f"sample/{name}/{index}".encode()))
    return Fraction(round(rng.uniform(0.4, 1.9) * _STEPS), _STEPS)
