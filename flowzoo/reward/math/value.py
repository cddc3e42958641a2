"""The value of an expression at a probe point, in complex doubles.

A point gives every symbol a value that depends on its name only. What is not finite or out of
range, and what real points lead off the reals, is undecided.
"""

from __future__ import annotations

import cmath
import functools
import math
import random
import zlib
from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import Final

from flowzoo.reward.math.tree import ExprNode, rational

COMPLEX_POINTS: Final = (0, 1, 2)
REAL_POINTS: Final = (3, 4, 5, 6)
_LARGE: Final = 1e90
_SUM_TERMS: Final = 200
_NESTED_TERMS: Final = 400
_WORK: Final = "#terms"
"""Key beside the bound variables: how often the innermost body is evaluated for one value."""


class UnreliableValueError(Exception):
    """A value that cannot be trusted."""


@functools.lru_cache(maxsize=4096)
def symbol_value(name: str, point: int) -> complex:
    """The value of the symbol `name` at a probe point, the same in every process."""
    rng = random.Random(zlib.crc32(name.encode("utf-8", "surrogatepass")) * 16 + point)
    size = rng.uniform(0.45, 1.75)
    if point in COMPLEX_POINTS:
        return cmath.rect(size, rng.choice((-1, 1)) * rng.uniform(0.15, 0.6))
    sign = -1 if point != REAL_POINTS[0] and (rng.random() < 0.5 or point == 4) else 1
    return complex(sign * size * (3 if point > 4 else 1))


FUNCTIONS: Final[dict[str, Callable[[complex], complex]]] = {
    "sin": cmath.sin, "cos": cmath.cos, "tan": cmath.tan, "sinh": cmath.sinh, "cosh": cmath.cosh,
    "tanh": cmath.tanh, "arcsin": cmath.asin, "arccos": cmath.acos, "arctan": cmath.atan,
    "arsinh": cmath.asinh, "arcosh": cmath.acosh, "artanh": cmath.atanh, "ln": cmath.log,
    "cot": lambda z: 1 / cmath.tan(z), "sec": lambda z: 1 / cmath.cos(z),
    "csc": lambda z: 1 / cmath.sin(z), "coth": lambda z: 1 / cmath.tanh(z),
    "arccot": lambda z: cmath.atan(1 / z), "arcsec": lambda z: cmath.acos(1 / z),
    "arccsc": lambda z: cmath.asin(1 / z),
}  # fmt: skip
"""Functions of one argument, in doubles."""
_CONSTANTS: Final = {"pi": complex(math.pi), "e": complex(math.e), "i": 1j}


def value(node: ExprNode, point: int, bound: Mapping[str, complex] | None = None) -> complex:
    """The value of a tree at a probe point, in doubles.

    Raises:
        UnreliableValueError: it is not finite, beyond 1e90, below 1e-90, or real points lead off
            the reals.
    """
    try:
        found = _value(node, point, bound or {})
    except (OverflowError, ZeroDivisionError, ValueError):
        raise UnreliableValueError from None
    size = abs(found)
    if not size < _LARGE or 0 < size < 1 / _LARGE:
        raise UnreliableValueError
    return found


def _value(node: ExprNode, point: int, bound: Mapping[str, complex]) -> complex:
    op, args = node.op, node.args
    if op == "num":
        return complex(float(args[0]))
    if op == "sym":
        return bound[args[0]] if args[0] in bound else symbol_value(args[0], point)
    if op == "const":
        if args[0] == "inf":
            raise UnreliableValueError
        return _CONSTANTS[args[0]]
    if op == "add":
        terms = [value(arg, point, bound) for arg in args]
        total = sum(terms, 0j)
        # What is left of terms that cancel is rounding, and must not become a divisor.
        return total if abs(total) > 1e-15 * max(map(abs, terms)) else 0j
    if op == "mul":
        product = 1 + 0j
        for arg in args:
            product *= value(arg, point, bound)
        return product
    if op == "pow":
        found = _power(value(args[0], point, bound), value(args[1], point, bound))
        return _checked(found, point)
    if op == "bind":
        return _bound_value(node, point, bound)
    return _checked(_called(args[0], args[1:], point, bound), point)


def _checked(found: complex, point: int) -> complex:
    """At a real point a function that leaves the reals says nothing."""
    if point in REAL_POINTS and abs(found.imag) > 1e-9 * abs(found):
        raise UnreliableValueError
    return found


def _power(base: complex, exponent: complex) -> complex:
    if base == 0 and exponent.real <= 0:
        raise UnreliableValueError
    if base != 0 and abs(exponent) * abs(cmath.log(base)) > 200:
        raise UnreliableValueError
    return base**exponent


def _called(
    name: str, args: tuple[ExprNode, ...], point: int, bound: Mapping[str, complex]
) -> complex:
    values = [value(arg, point, bound) for arg in args]
    plain = FUNCTIONS.get(name)
    if plain is not None:
        if name in ("tanh", "coth") and abs(values[0].real) > 15:
            raise UnreliableValueError  # 1 in doubles
        found = plain(values[0])
        return found if abs(found) > 4e-16 or abs(values[0]) < 1e-9 else 0j
    if name == "abs":
        return complex(abs(values[0]))
    if name == "factorial":
        return _factorial(values[0])
    if name == "binom":
        n, k = values
        if k.imag == 0 and 0 <= k.real <= 60 and k.real == int(k.real):
            return math.prod(((n - j) / (j + 1) for j in range(int(k.real))), start=1 + 0j)
        return _factorial(n) / (_factorial(k) * _factorial(n - k))
    if name in ("floor", "ceil", "max", "min", "mod"):
        return _stepped(name, values)
    # A matrix, a row or another function that is not computed: a fixed mixture of its arguments.
    mixture = symbol_value(f"call:{name}:{len(values)}", 0)
    for idx, item in enumerate(values):
        mixture += symbol_value(f"call:{name}:{idx}", 1) * item
    return mixture


# Lanczos' series of the gamma function, g = 7, 9 terms; 15 digits for a positive real part.
_LANCZOS: Final = (
    0.99999999999980993, 676.5203681218851, -1259.1392167224028, 771.32342877765313,
    -176.61502916214059, 12.507343278686905, -0.13857109526572012, 9.9843695780195716e-6,
    1.5056327351493116e-7,
)  # fmt: skip


def _factorial(z: complex) -> complex:
    if abs(z.imag) > 60 or not -0.9 < z.real < 60:
        raise UnreliableValueError
    if abs(z.imag) < 1e-12:
        return complex(math.gamma(z.real + 1))
    series = sum((c / (z + idx) for idx, c in enumerate(_LANCZOS[1:], 1)), _LANCZOS[0] + 0j)
    base = z + 7.5
    return math.sqrt(2 * math.pi) * base ** (z + 0.5) * cmath.exp(-base) * series


def _stepped(name: str, values: list[complex]) -> complex:
    if any(abs(item.imag) > 1e-9 for item in values):
        raise UnreliableValueError
    reals = [item.real for item in values]
    if name in ("max", "min"):
        return complex(max(reals) if name == "max" else min(reals))
    if name == "mod":
        if len(reals) != 2:
            raise UnreliableValueError
        return complex(reals[0] % reals[1])
    if abs(reals[0] - round(reals[0])) < 1e-9 and reals[0] != round(reals[0]):
        raise UnreliableValueError
    return complex(math.floor(reals[0]) if name == "floor" else math.ceil(reals[0]))


def _bound_value(node: ExprNode, point: int, bound: Mapping[str, complex]) -> complex:
    """A short finite sum or product exactly; else a mixture of the body at two values.

    The mixture is the same for equal bodies and bounds and, but by accident, for no others.
    """
    name, variable, body, *limits = node.args
    first = rational(limits[0]) if len(limits) == 2 else None
    last = rational(limits[1]) if len(limits) == 2 else None
    if name in ("sum", "prod") and first is not None and last is not None:
        return _finite(name, variable, body, (first, last), point, bound)
    salt = f"bind:{name}:{len(limits)}"
    total = 0j
    bound = _nested(bound, 2)
    for idx in range(2):
        inner = {**bound, variable: symbol_value(f"bound:{idx}", point)}
        total += symbol_value(salt, idx) * value(body, point, inner)
    for idx, limit in enumerate(limits):
        size = 0.7 + 0.1j if limit.key.endswith("#inf") else value(limit, point, bound)
        total += symbol_value(f"{salt}:{idx}", 2) * size
    return total


def _nested(bound: Mapping[str, complex], terms: int) -> Mapping[str, complex]:
    """`bound` one level deeper; undecided where nested sums multiply to too many terms."""
    work = bound.get(_WORK, 1 + 0j) * terms
    if work.real > _NESTED_TERMS:
        raise UnreliableValueError
    return {**bound, _WORK: work}


def _finite(
    name: str, variable: str, body: ExprNode, limits: tuple[Fraction, Fraction], point: int,
    bound: Mapping[str, complex],
) -> complex:  # fmt: skip
    first, last = limits
    if first.denominator != 1 or last.denominator != 1 or not 0 <= last - first < _SUM_TERMS:
        raise UnreliableValueError
    bound = _nested(bound, int(last - first) + 1)
    total = 0j if name == "sum" else 1 + 0j
    for index in range(first.numerator, last.numerator + 1):
        term = value(body, point, {**bound, variable: complex(index)})
        total = total + term if name == "sum" else total * term
    return total
