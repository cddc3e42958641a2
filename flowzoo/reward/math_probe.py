r"""Whether two expressions are the same function: numeric probing at fixed points.

Both trees are evaluated in complex doubles at points that depend on the names of the symbols only;
a difference at one point decides `different`. Agreement is confirmed at 40 digits, so that
`10^{20} + \pi` and `1 + 10^{20} + \pi` stay apart. Points are complex with positive real part
(every analytic identity that holds for positive numbers holds there: `\sqrt{1/n} = 1/\sqrt{n}`) and
real of either sign, where expressions that leave the reals say nothing (`\sqrt{x^2}` is not `x`).
What is not finite, or out of range, is undecided, never equal.
"""

from __future__ import annotations

import cmath
import functools
import math
import random
import zlib
from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import Any, Final

from flowzoo.reward.math_tree import Node, mentions, rational, symbols

_RELATIVE: Final = 1e-9
_DIGITS: Final = 40
_CONFIRMED: Final = 1e-25
_ROUNDING: Final = 1e-34
_LARGE: Final = 1e90
_COMPLEX_POINTS: Final = (0, 1, 2)
_REAL_POINTS: Final = (3, 4, 5, 6)
_NOT_ANALYTIC: Final = frozenset({"abs", "floor", "ceil", "max", "min", "mod", "gcd", "lcm"})
_MIXED: Final = frozenset(
    ["sum", "prod", "int", "iint", "oint", "lim", "matrix", "row", "det", "gcd", "lcm"]
)
_SUM_TERMS: Final = 200
_NESTED_TERMS: Final = 400
_WORK: Final = "#terms"
"""Key beside the bound variables: how often the innermost body is evaluated for one value."""


class Undecided(Exception):
    """Inside this module: a value that cannot be trusted."""


def same_function(a: Node, b: Node) -> bool | None:
    """Whether `a` and `b` agree as functions of their symbols; None if that stays open."""
    if a.key == b.key:
        return True
    x, y = rational(a), rational(b)
    if x is not None and y is not None:
        return x == y
    if "inf" in (a.key[1:4], b.key[1:4]) and (a.op == "const" or b.op == "const"):
        return False
    verdict = _agree(a, b)
    if verdict:
        return _confirmed(a, b)
    return verdict


def proportional(a: Node, b: Node) -> float | None:
    """The constant `c` with `a = c * b` at all probes, or None. Both must not vanish."""
    ratios: list[complex] = []
    for point in _points(a, b):
        try:
            x, y = value(a, point), value(b, point)
        except Undecided:
            continue
        if abs(y) < 1e-9 or abs(x) < 1e-9:
            return None
        ratios.append(x / y)
    if len(ratios) < 3 or abs(ratios[0].imag) > _RELATIVE * abs(ratios[0]):
        return None
    close = all(abs(ratio - ratios[0]) <= _RELATIVE * abs(ratios[0]) for ratio in ratios)
    return ratios[0].real if close else None


def constant(node: Node) -> complex | None:
    """The value of a tree without symbols, or None."""
    exact = rational(node)
    if exact is not None:
        return complex(exact) if abs(exact) < 10**300 else None
    if symbols(node) or mentions(node, frozenset({"matrix", "row", "lim", "int"})):
        return None
    try:
        return value(node, 0)
    except Undecided:
        return None


def _points(a: Node, b: Node) -> tuple[int, ...]:
    if not (symbols(a) or symbols(b)):
        return (0,)
    if mentions(a, _NOT_ANALYTIC) or mentions(b, _NOT_ANALYTIC):
        return _REAL_POINTS
    return _COMPLEX_POINTS + _REAL_POINTS[:2]


def _agree(a: Node, b: Node) -> bool | None:
    """Agreement in doubles: False at the first difference, None if too few points decide."""
    points = _points(a, b)
    decided = 0
    for point in points:
        try:
            x, y = value(a, point), value(b, point)
        except Undecided:
            continue
        if abs(x - y) > _RELATIVE * max(abs(x), abs(y), 1e-4 * _scale(a, b, point)):
            return False
        decided += 1
    needed = 1 if len(points) == 1 else 3
    return True if decided >= needed else None


def _scale(a: Node, b: Node, point: int) -> float:
    """The size of the largest term, which rounding errors of a cancelling sum are relative to."""
    sizes = [0.0]
    for node in (a, b):
        terms = node.args if node.op == "add" else (node,)
        for term in terms:
            try:
                sizes.append(abs(value(term, point)))
            except Undecided:
                continue
    return max(sizes)


def _confirmed(a: Node, b: Node) -> bool | None:
    """The same comparison at 40 digits, at one complex and one real point.

    Binders and what is mixed rather than computed have doubles only, which have agreed.
    """
    if mentions(a, _MIXED) or mentions(b, _MIXED):
        return True
    context = _context()
    points = _points(a, b)
    decided = 0
    for point in (points[0], points[-1]):
        try:
            for node in (a, b):
                value(node, point)  # a point that is undecided stays so
            x, y = _mp_value(a, point, context), _mp_value(b, point, context)
            size = max(abs(x), abs(y))
            total = max([size, *(_mp_sizes(a, point, context)), *(_mp_sizes(b, point, context))])
        except Undecided:
            continue
        if abs(x - y) > _CONFIRMED * max(size, total * 1e-8):
            return False
        decided += 1
    return True if decided else None


@functools.cache
def _context() -> Any:
    import mpmath

    context = mpmath.MPContext()
    context.dps = _DIGITS
    return context


def _mp_sizes(node: Node, point: int, context: Any) -> list[Any]:
    terms = node.args if node.op == "add" else ()
    return [abs(_mp_value(term, point, context)) for term in terms]


@functools.lru_cache(maxsize=4096)
def symbol_value(name: str, point: int) -> complex:
    """The value of the symbol `name` at a probe point, the same in every process."""
    rng = random.Random(zlib.crc32(name.encode("utf-8", "surrogatepass")) * 16 + point)
    size = rng.uniform(0.45, 1.75)
    if point in _COMPLEX_POINTS:
        return cmath.rect(size, rng.choice((-1, 1)) * rng.uniform(0.15, 0.6))
    sign = -1 if point != _REAL_POINTS[0] and (rng.random() < 0.5 or point == 4) else 1
    return complex(sign * size * (3 if point > 4 else 1))


_FUNCTIONS: Final[dict[str, Callable[[complex], complex]]] = {
    "sin": cmath.sin, "cos": cmath.cos, "tan": cmath.tan, "sinh": cmath.sinh, "cosh": cmath.cosh,
    "tanh": cmath.tanh, "arcsin": cmath.asin, "arccos": cmath.acos, "arctan": cmath.atan,
    "arsinh": cmath.asinh, "arcosh": cmath.acosh, "artanh": cmath.atanh, "ln": cmath.log,
    "cot": lambda z: 1 / cmath.tan(z), "sec": lambda z: 1 / cmath.cos(z),
    "csc": lambda z: 1 / cmath.sin(z), "coth": lambda z: 1 / cmath.tanh(z),
    "arccot": lambda z: cmath.atan(1 / z), "arcsec": lambda z: cmath.acos(1 / z),
    "arccsc": lambda z: cmath.asin(1 / z),
}  # fmt: skip
_MP_NAMES: Final = {"arcsin": "asin", "arccos": "acos", "arctan": "atan", "arsinh": "asinh",
                    "arcosh": "acosh", "artanh": "atanh", "arccot": "acot", "arcsec": "asec",
                    "arccsc": "acsc"}  # fmt: skip
_CONSTANTS: Final = {"pi": complex(math.pi), "e": complex(math.e), "i": 1j}


def value(node: Node, point: int, bound: Mapping[str, complex] | None = None) -> complex:
    """The value of a tree at a probe point, in doubles.

    Raises:
        Undecided: it is not finite, beyond 1e90, below 1e-90, or real points lead off the reals.
    """
    try:
        found = _value(node, point, bound or {})
    except (OverflowError, ZeroDivisionError, ValueError):
        raise Undecided from None
    size = abs(found)
    if not size < _LARGE or 0 < size < 1 / _LARGE:
        raise Undecided
    return found


def _value(node: Node, point: int, bound: Mapping[str, complex]) -> complex:
    op, args = node.op, node.args
    if op == "num":
        return complex(float(args[0]))
    if op == "sym":
        return bound[args[0]] if args[0] in bound else symbol_value(args[0], point)
    if op == "const":
        if args[0] == "inf":
            raise Undecided
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
    if point in _REAL_POINTS and abs(found.imag) > 1e-9 * abs(found):
        raise Undecided
    return found


def _power(base: complex, exponent: complex) -> complex:
    if base == 0 and exponent.real <= 0:
        raise Undecided
    if base != 0 and abs(exponent) * abs(cmath.log(base)) > 200:
        raise Undecided
    return base**exponent


def _called(name: str, args: tuple[Node, ...], point: int, bound: Mapping[str, complex]) -> complex:
    values = [value(arg, point, bound) for arg in args]
    plain = _FUNCTIONS.get(name)
    if plain is not None:
        if name in ("tanh", "coth") and abs(values[0].real) > 15:
            raise Undecided  # 1 in doubles
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
        raise Undecided
    if abs(z.imag) < 1e-12:
        return complex(math.gamma(z.real + 1))
    series = sum((c / (z + idx) for idx, c in enumerate(_LANCZOS[1:], 1)), _LANCZOS[0] + 0j)
    base = z + 7.5
    return math.sqrt(2 * math.pi) * base ** (z + 0.5) * cmath.exp(-base) * series


def _stepped(name: str, values: list[complex]) -> complex:
    if any(abs(item.imag) > 1e-9 for item in values):
        raise Undecided
    reals = [item.real for item in values]
    if name in ("max", "min"):
        return complex(max(reals) if name == "max" else min(reals))
    if name == "mod":
        if len(reals) != 2:
            raise Undecided
        return complex(reals[0] % reals[1])
    if abs(reals[0] - round(reals[0])) < 1e-9 and reals[0] != round(reals[0]):
        raise Undecided
    return complex(math.floor(reals[0]) if name == "floor" else math.ceil(reals[0]))


def _bound_value(node: Node, point: int, bound: Mapping[str, complex]) -> complex:
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
        raise Undecided
    return {**bound, _WORK: work}


def _finite(
    name: str, variable: str, body: Node, limits: tuple[Fraction, Fraction], point: int,
    bound: Mapping[str, complex],
) -> complex:  # fmt: skip
    first, last = limits
    if first.denominator != 1 or last.denominator != 1 or not 0 <= last - first < _SUM_TERMS:
        raise Undecided
    bound = _nested(bound, int(last - first) + 1)
    total = 0j if name == "sum" else 1 + 0j
    for index in range(first.numerator, last.numerator + 1):
        term = value(body, point, {**bound, variable: complex(index)})
        total = total + term if name == "sum" else total * term
    return total


def _mp_value(node: Node, point: int, context: Any) -> Any:
    """The value at 40 digits; only for trees whose values in doubles were in range.

    Raises:
        Undecided: the tree holds something that is compared in doubles only.
    """
    try:
        return _mp(node, point, context)
    except (OverflowError, ZeroDivisionError, ValueError):
        raise Undecided from None


def _mp_sum(terms: list[Any], context: Any) -> Any:
    """The sum; undecided if a term is so small beside another that it could be lost."""
    sizes = [abs(term) for term in terms if term != 0]
    if not sizes:
        return context.zero
    if min(sizes) < 1e-20 * max(sizes):
        raise Undecided
    total = context.fsum(terms)
    return total if abs(total) > _ROUNDING * max(sizes) else context.zero


def _mp(node: Node, point: int, context: Any) -> Any:
    op, args = node.op, node.args
    if op == "num":
        return context.mpf(args[0].numerator) / args[0].denominator
    if op == "sym":
        return context.mpc(symbol_value(args[0], point))
    if op == "const":
        return {"pi": +context.pi, "e": +context.e, "i": context.mpc(0, 1)}[args[0]]
    if op == "add":
        return _mp_sum([_mp(arg, point, context) for arg in args], context)
    if op == "mul":
        return context.fprod(_mp(arg, point, context) for arg in args)
    if op == "pow":
        return context.power(_mp(args[0], point, context), _mp(args[1], point, context))
    if op == "bind":
        return context.mpc(value(node, point))
    values = [_mp(arg, point, context) for arg in args[1:]]
    name: str = args[0]
    if name in _FUNCTIONS:
        found = getattr(context, _MP_NAMES.get(name, name))(values[0])
        return found if abs(found) > _ROUNDING or abs(values[0]) < 1e-9 else context.zero
    if name == "abs":
        return abs(values[0])
    if name == "factorial":
        return context.gamma(values[0] + 1)
    if name == "binom":
        return context.binomial(values[0], values[1])
    return context.mpc(value(node, point))
