"""The value of an expression at a point in complex doubles, with a bound on the rounding error.

A cheap test for a difference: two values differ if they are further apart than both bounds. Values
out of the range of doubles, or that need more than a short sum, are left to `precise`.

Symbols have dyadic fractions of few bits as values at probe points, so doubles, exact fractions and
any precision refer to the same point. A value depends only on the symbol's name and the point.
"""

from __future__ import annotations

import cmath
import functools
import math
import random
import threading
import zlib
from collections.abc import Callable, Iterator, Mapping
from fractions import Fraction
from itertools import product
from types import MappingProxyType, TracebackType
from typing import Any, Final, Literal, NamedTuple

from flowzoo.reward.listed import names
from flowzoo.reward.math.tree import ExprNode, rational

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


class _State(threading.local):
    left: int | None = None


_state = _State()


class Bounded:
    """Context manager with one budget for all comparisons inside."""

    def __enter__(self) -> None:
        self.is_first = _state.left is None
        if self.is_first:
            _state.left = _BUDGET

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self.is_first:
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


_EPS: Final = 4e-16
_LARGE: Final = 1e90
_SUM_TERMS: Final = 200
_NESTED_TERMS: Final = 400
# Key beside the bound variables: how often the innermost body is evaluated for one value.
_WORK: Final = "#terms"


class OffRealsError(UnreliableValueError):
    """A value leaves the reals at a real point, which is therefore inconclusive."""


class Approx(NamedTuple):
    """A value in doubles with an error bound."""

    value: complex
    error: float


# Functions of one argument.
FUNCTIONS: Final[dict[str, Callable[[complex], complex]]] = {
    "sin": cmath.sin, "cos": cmath.cos, "tan": cmath.tan, "sinh": cmath.sinh, "cosh": cmath.cosh,
    "tanh": cmath.tanh, "arcsin": cmath.asin, "arccos": cmath.acos, "arctan": cmath.atan,
    "arsinh": cmath.asinh, "arcosh": cmath.acosh, "artanh": cmath.atanh, "ln": cmath.log,
    "cot": lambda z: 1 / cmath.tan(z), "sec": lambda z: 1 / cmath.cos(z),
    "csc": lambda z: 1 / cmath.sin(z), "coth": lambda z: 1 / cmath.tanh(z),
    "sech": lambda z: 1 / cmath.cosh(z), "csch": lambda z: 1 / cmath.sinh(z),
    "arccot": lambda z: cmath.atan(1 / z), "arcsec": lambda z: cmath.acos(1 / z),
    "arccsc": lambda z: cmath.asin(1 / z),
}  # fmt: skip
_CONSTANTS: Final = {"pi": complex(math.pi), "e": complex(math.e), "i": 1j}
_PRECISE_ONLY: Final = frozenset(
    {"gamma", "zeta", "erf", "erfc", "normal", "floor", "ceil", "mod", "factorial2"}
)


def approximate(node: ExprNode, point: ProbePoint) -> Approx:
    """The value of a tree at a probe point."""
    spend(1)
    try:
        result = _value(node, point)
    except (OverflowError, ZeroDivisionError, ValueError):
        raise UnreliableValueError from None
    size = abs(result.value)
    if not size < _LARGE or not result.error < _LARGE or 0 < size < 1 / _LARGE:
        raise UnreliableValueError
    return result


def _value(node: ExprNode, point: ProbePoint) -> Approx:
    op, args = node.op, node.args
    if op == "num":
        value = float(args[0])
        return Approx(complex(value), abs(value) * _EPS)
    if op == "sym":
        real, imag = point.value(args[0])
        return Approx(complex(float(real), float(imag)), abs(float(real)) * _EPS)
    if op == "const":
        if args[0] == "inf":
            raise UnreliableValueError
        return Approx(_CONSTANTS[args[0]], 1e-15)
    if op == "add":
        terms = [approximate(arg, point) for arg in args]
        total = sum((term.value for term in terms), 0j)
        error = sum(term.error + _EPS * abs(term.value) for term in terms)
        return Approx(total, error)
    if op == "mul":
        product = Approx(1 + 0j, 0.0)
        for arg in args:
            product = _times(product, approximate(arg, point))
        return product
    if op == "pow":
        base, exponent = approximate(args[0], point), approximate(args[1], point)
        return _on_reals(_power(base, exponent, rational(args[1])), point)
    if op == "bind":
        raise UnreliableValueError
    return _on_reals(_call(args[0], args[1:], point), point)


def _times(a: Approx, b: Approx) -> Approx:
    product = a.value * b.value
    off = abs(a.value) * b.error + abs(b.value) * a.error + a.error * b.error
    return Approx(product, off + _EPS * abs(product))


def _on_reals(result: Approx, point: ProbePoint) -> Approx:
    if not point.is_real or result.value.imag == 0:
        return result
    if abs(result.value.imag) > max(1e-9 * abs(result.value), result.error):
        raise OffRealsError
    return Approx(complex(result.value.real), result.error + abs(result.value.imag))


def _power(base: Approx, exponent: Approx, exact: Fraction | None) -> Approx:
    size = abs(base.value)
    if size <= 2 * base.error:
        # Zero, or too close to zero for a meaningful logarithm.
        if base.value == 0 and base.error == 0 and exponent.value.real > 0:
            return Approx(0j, 0.0)
        raise UnreliableValueError
    z = complex(base.value.real, base.value.imag or 0.0)  # not -0.0, which is across the branch cut
    log = cmath.log(z)
    if abs(exponent.value) * abs(log) > 200:
        raise UnreliableValueError
    is_whole = exact is not None and exact.denominator == 1
    if not is_whole and z.real < 0 and 0 < abs(z.imag) <= 4 * base.error:
        raise UnreliableValueError  # both sides of the branch cut
    value = z ** (int(exact) if is_whole and exact is not None else exponent.value)
    spread = abs(exponent.value) * base.error / (size - base.error) + abs(log) * exponent.error
    if spread > 0.1:
        raise UnreliableValueError
    return Approx(value, abs(value) * (1.2 * spread + _EPS * (4 + abs(exponent.value * log))))


def _call(name: str, args: tuple[ExprNode, ...], point: ProbePoint) -> Approx:
    if name in _PRECISE_ONLY:
        raise UnreliableValueError
    values = [approximate(arg, point) for arg in args]
    plain = FUNCTIONS.get(name)
    if plain is not None:
        return _through(plain, values[0])
    if name == "abs":
        return Approx(complex(abs(values[0].value)), values[0].error)
    if name == "factorial":
        return _factorial(values[0])
    if name in ("max", "min"):
        return _extreme(name, values)
    if name in ("binom", "sign", "gcd", "lcm"):
        raise UnreliableValueError
    plain_values = [item.value for item in values]
    value = model_function(name, plain_values, float)
    off = 0.0
    for idx, item in enumerate(values):
        step = max(item.error, 1e-7)
        moved = [*plain_values[:idx], item.value + step, *plain_values[idx + 1 :]]
        off += 4 * abs(model_function(name, moved, float) - value) * item.error / step
    return Approx(complex(value), off + 64 * _EPS)


def _through(function: Callable[[complex], complex], item: Approx) -> Approx:
    # The error of the argument is multiplied by the slope.
    z = complex(item.value.real, item.value.imag or 0.0)
    value = function(z)
    step = max(item.error, 1e-7 * abs(z), 1e-12)
    slope = max(abs(function(z + step) - value), abs(function(z - step) - value)) / step
    if slope * step > 0.1 * max(abs(value), 1.0) or slope > 1e6:
        raise UnreliableValueError
    return Approx(value, 4 * slope * (item.error + _EPS * abs(z)) + 4 * _EPS * abs(value))


def _factorial(item: Approx) -> Approx:
    z = item.value
    if abs(z.imag) > 1e-12 or not -0.9 < z.real < 60:
        raise UnreliableValueError
    value = math.gamma(z.real + 1)
    return Approx(complex(value), abs(value) * (1e-13 + 8 * item.error))


def _extreme(name: str, values: list[Approx]) -> Approx:
    if any(abs(item.value.imag) > 1e-9 for item in values):
        raise OffRealsError
    reals = [item.value.real for item in values]
    value = max(reals) if name == "max" else min(reals)
    return Approx(complex(value), max(item.error for item in values))


def deeper(bound: Mapping[str, float], terms: int) -> dict[str, float]:
    """`bound` with one more binder."""
    work = bound.get(_WORK, 1) * terms
    if work > _NESTED_TERMS:
        raise UnreliableValueError
    return {**bound, _WORK: work}


def span(first: Fraction | None, last: Fraction | None) -> range:
    """The integers from `first` to `last`."""
    if first is None or last is None or first.denominator != 1 or last.denominator != 1:
        raise UnreliableValueError
    if not -1 <= last - first < _SUM_TERMS or abs(first) > 10**9:
        raise UnreliableValueError
    return range(int(first), int(last) + 1)
