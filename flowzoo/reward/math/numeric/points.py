"""Probe points: the value of every symbol at a point.

All values are dyadic fractions of few bits, so that doubles, exact fractions and any precision mean
the same point. A value depends on the name of the symbol and on the point only.
"""

from __future__ import annotations

import functools
import random
import zlib
from collections.abc import Iterator, Mapping
from fractions import Fraction
from itertools import product
from types import MappingProxyType
from typing import Final, Literal, NamedTuple

from flowzoo.reward.listed import names

Signs = Literal["complex", "plus", "minus", "mixed"]

# Letters that are whole numbers by custom, with or without a subscript.
_INTEGERS: Final = names("n k m j l N M K")
_STEPS: Final = 1024


class ProbePoint(NamedTuple):
    """One point; `fixed` gives the values of some symbols, the others are drawn."""

    salt: int
    signs: Signs
    size: float = 1.0
    fixed: Mapping[str, Fraction] = MappingProxyType({})

    @property
    def is_real(self) -> bool:
        """True if all symbols are real here, so that what leaves the reals says nothing."""
        return self.signs != "complex"

    def value(self, name: str) -> tuple[Fraction, Fraction]:
        """Real and imaginary part of the symbol `name`."""
        if name in self.fixed:
            return self.fixed[name], Fraction(0)
        return _drawn(name, self.salt, self.signs, self.size)

    def real(self, name: str) -> Fraction:
        """The symbol's value at a real point."""
        return self.value(name)[0]


@functools.lru_cache(maxsize=8192)
def _drawn(name: str, salt: int, signs: Signs, size: float) -> tuple[Fraction, Fraction]:
    rng = random.Random(zlib.crc32(name.encode("utf-8", "surrogatepass")) * 64 + salt)
    length = rng.uniform(0.45, 1.75)
    if signs == "complex":
        slope = rng.choice((-1, 1)) * rng.uniform(0.15, 0.6)
        return _dyadic(length), _dyadic(length * slope)
    negative = signs == "minus" or (signs == "mixed" and rng.random() < 0.5)
    return _dyadic((-1 if negative else 1) * length * size), Fraction(0)


def _dyadic(value: float) -> Fraction:
    # A fraction close to `value`, odd in its last place, so that it is never whole.
    return Fraction(2 * round(value * _STEPS / 2) + 1, _STEPS)


COMPLEX: Final = tuple(ProbePoint(salt, "complex") for salt in range(3))
NEAR: Final = (ProbePoint(3, "plus"), ProbePoint(4, "mixed"), ProbePoint(5, "minus"))
_SIGNS: Final[tuple[Signs, ...]] = ("plus", "minus", "mixed")
_SIZES: Final = (3.0, 16.0, 140.0, 5e3, 1e6, 0.02)
# Real points of either sign at many magnitudes, for what is put together from pieces.
WIDE: Final = tuple(
    ProbePoint(6 + idx, signs, size) for idx, (size, signs) in enumerate(product(_SIZES, _SIGNS))
)

_WHOLE: Final = (*range(1, 13), 0, -1, -2, -3, -4, -7, 15, 24, 37, 60, 100, 101, 1000, 1001, -60)
_PAIRS: Final = 44


def is_whole(name: str) -> bool:
    """Return True if a symbol is a whole number by the custom of its letter."""
    return name.partition("_")[0] in _INTEGERS


def whole_points(chosen: frozenset[str], near: frozenset[int]) -> Iterator[ProbePoint]:
    """Points at which the symbols `chosen` are whole numbers, small ones first."""
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
