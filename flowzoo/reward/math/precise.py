"""The value of an expression at a point, in doubles or to a given number of digits, with mpmath.

One walk of the tree serves every arithmetic. Doubles are a hint, which callers confirm by comparing
values at several precisions. Exponents, arguments of slow functions, terms of sums and visited
nodes are bounded.
"""

import functools
import math
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any, Final, NamedTuple

from flowzoo.reward.math.points import (
    OffRealsError,
    ProbePoint,
    UnreliableValueError,
    model_function,
    sample,
    spend,
)
from flowzoo.reward.math.tree import ExprNode, rational
from flowzoo.reward.math.vocabulary import FUNCTIONS

_SUM_TERMS: Final = 200
_NESTED_TERMS: Final = 400
# Key beside the bound variables: how often the innermost body is evaluated for one value.
_NESTED: Final = "#terms"


def deeper(bound: Mapping[str, Any], terms: int) -> dict[str, Any]:
    """`bound` with one more binder."""
    work = bound.get(_NESTED, 1) * terms
    if work > _NESTED_TERMS:
        raise UnreliableValueError
    return {**bound, _NESTED: work}


_MOST_TERMS: Final = 380
_QUADRATURE: Final = 100  # most digits for quadrature
_QUADRATURE_WORK: Final = 15_000
# The first is faster for smooth functions, the second bears ends at which they have no value.
_METHODS: Final = (("gauss-legendre", 4), ("tanh-sinh", 8))
_ROUGH: Final = 1e-4
_FAINT: Final = 1e-300
_SEEN: Final = 16  # at least one value of this number must not vanish
_SIDES: Final = (1, -1)


def series(
    of: "TreeEvaluation",
    variable: str,
    body: ExprNode,
    first: Fraction,
    bound: Mapping[str, object],
) -> Any:
    """An infinite sum whose terms shrink at least geometrically; None for others."""
    if first.denominator != 1:
        return None
    context = of.context
    inner = deeper(bound, 2)
    total, last, small = context.zero, None, context.mpf(10) ** -(of.digits + 5)
    for index in range(int(first), int(first) + _MOST_TERMS):
        try:
            term = of.value(body, {**inner, variable: context.mpf(index)})
        except UnreliableValueError:
            return None
        total += term
        if index > first + 12 and last is not None:
            if abs(term) > 0.9 * abs(last) and term != 0:
                return None
            # The rest is a geometric series at most.
            if abs(term) <= small * abs(total) / 10:
                return total
        last = term
    raise UnreliableValueError  # it converges, but not fast enough for these digits


def integral(
    of: "TreeEvaluation",
    variable: str,
    body: ExprNode,
    limits: Sequence[ExprNode],
    bound: Mapping[str, Any],
) -> Any:
    """A definite integral by quadrature, along a straight line; None if it does not converge."""
    if "@" in body.key:
        return None  # quadrature of a stand-in takes long
    if of.digits > _QUADRATURE:
        raise UnreliableValueError
    context, before = of.context, of.left
    try:
        inner = deeper(bound, 200)  # no nested quadrature
        ends = [
            context.inf * (-1 if "-1" in end.key else 1)
            if "#inf" in end.key
            else of.value(end, bound)
            for end in limits
        ]
        if ends[0] == ends[1]:
            return context.zero
        of.left, of.vanishes = _QUADRATURE_WORK, True
        sizes: list[Any] = []

        def integrand(at: object) -> Any:
            result = of.value(body, {**inner, variable: at})
            sizes.append(abs(result))
            return result

        for method, degree in _METHODS:
            value, error = context.quad(
                integrand, ends, error=True, method=method, maxdegree=degree
            )
            if error > context.mpf(10) ** -(of.digits) * max(abs(value), 1):
                continue
            # Halves of an odd function may diverge, and a peak between the points is lost.
            is_seen = sum(size > _FAINT for size in sizes) * _SEEN > len(sizes)
            apart = value
            if method == _METHODS[0][0]:
                apart = context.quad(
                    integrand, _part_interval(context, ends), method=method, maxdegree=degree
                )
            is_same = abs(value - apart) <= _ROUGH * max(abs(value), 1)
            return value if is_same and is_seen else None
    except (ZeroDivisionError, UnreliableValueError):
        pass
    finally:
        of.left, of.vanishes = before, False
    return None


def _part_interval(context: Any, ends: Sequence[Any]) -> list[Any]:
    # The ends and a point off the middle: both halves of an odd function may diverge.
    low, high = ends
    uneven = context.mpf(5) / 13
    if context.isinf(low) or context.isinf(high):
        near = low if not context.isinf(low) else high if not context.isinf(high) else 0
        return [low, near + (-uneven if context.isinf(low) else uneven), high]
    return [low, low + (high - low) * uneven, high]


def limit(
    of: "TreeEvaluation", variable: str, body: ExprNode, end: ExprNode, bound: Mapping[str, Any]
) -> Any:
    """A limit, from values that approach the point from both sides; None if they diverge."""
    context, digits = of.context, of.digits
    inner = deeper(bound, 4)
    ten = context.mpf(10)
    if "#inf" in end.key:
        sign = -1 if "-1" in end.key else 1
        ways = [[sign * ten ** (2 * digits), sign * ten ** (3 * digits)],
                [sign * context.mpf(20 * digits), sign * context.mpf(30 * digits)]]  # fmt: skip
    else:
        try:
            at = of.value(end, bound)
        except UnreliableValueError:
            return None
        steps = [ten ** (-2 * digits), ten ** (-3 * digits)]
        ways = [[at + side * step for step in steps] for side in _SIDES]
    values: list[Any] = []
    for way in ways:
        try:
            near, nearer = (of.value(body, {**inner, variable: at}) for at in way)
        except (UnreliableValueError, ZeroDivisionError, ValueError, OverflowError):
            continue
        if abs(near - nearer) > ten ** (-digits) * max(abs(nearer), 1):
            if "#inf" in end.key:
                continue
            return None
        values.append(nearer)
        if "#inf" in end.key:
            break
    if not values or abs(values[0] - values[-1]) > ten ** (-digits) * max(abs(values[0]), 1):
        return None
    return values[0]


_GUARD: Final = 20
# Additional cost of slow functions, in nodes.
_COSTS: Final = {
    "binom": 150,
    "zeta": 150,
    "gamma": 60,
    "factorial": 60,
    "factorial2": 60,
    "normal": 60,
    "erf": 60,
}
_WORK: Final = 6_000  # most nodes of one evaluation
_MP_NAMES: Final = {
    "arcsin": "asin", "arccos": "acos", "arctan": "atan", "arsinh": "asinh", "arcosh": "acosh",
    "artanh": "atanh", "arccot": "acot", "arcsec": "asec", "arccsc": "acsc", "normal": "ncdf",
}  # fmt: skip
_FLAT_AT_ZERO: Final = frozenset({"exp", "cos", "cosh", "sec", "sech"})
_FLAT_FAR_OUT: Final = {"tanh": 1.0, "coth": 1.0, "erf": 0.5, "erfc": 0.5, "normal": 0.5}
_KNOWN: Final = FUNCTIONS - {"exp", "log", "lg"} | {"gamma", "zeta", "normal"}
# Largest arguments of functions that are slow or overflow above.
_MOST: Final = {"zeta": 60, "gamma": 1e7, "erf": 200, "erfc": 200, "normal": 200}


_DOUBLE: Final = 15  # digits of a double
_LARGE: Final = 1e90
# A sum of doubles is sharp if no term is less than this part of the largest one, nor is the total.
_LOST: Final = 1e-9


@functools.lru_cache(maxsize=8)
def _context(digits: int) -> Any:
    import mpmath

    if digits == _DOUBLE:
        return mpmath.fp
    context = mpmath.MPContext()
    context.dps = digits + _GUARD
    return context


class Rough(NamedTuple):
    """A value in doubles; sharp if no sum has lost digits."""

    value: complex
    is_sharp: bool


def rough(node: ExprNode, point: ProbePoint) -> Rough:
    """The value of a tree at a probe point in doubles."""
    evaluation = TreeEvaluation(point, _DOUBLE)
    value = complex(_evaluate(evaluation, node))
    if not abs(value) < _LARGE or 0 < abs(value) < 1 / _LARGE:
        raise UnreliableValueError
    return Rough(value, evaluation.is_sharp)


def precise(node: ExprNode, point: ProbePoint, digits: int) -> Any:
    """The value of a tree at a probe point, rounded near `digits` digits."""
    return _evaluate(TreeEvaluation(point, digits), node)


def _evaluate(evaluation: "TreeEvaluation", node: ExprNode) -> Any:
    try:
        return evaluation.value(node, {})
    except (OverflowError, ZeroDivisionError, ValueError, TypeError, RecursionError):
        raise UnreliableValueError from None
    except UnreliableValueError:
        raise
    except Exception as error:  # such as mpmath's NoConvergence
        if type(error).__module__.startswith("mpmath"):
            raise UnreliableValueError from None
        raise


class TreeEvaluation:
    """One evaluation of a tree."""

    def __init__(self, point: ProbePoint, digits: int, held: int = 0) -> None:
        self.point, self.digits, self.context = point, digits, _context(held or digits)
        self.held = held or digits
        self.is_rough, self.is_sharp = digits == _DOUBLE, True
        self.left = _WORK
        self.cost = 1 if self.is_rough else 8 + self.held // 10
        self.stands_in = True  # a stand-in would have a limit without a reason
        self.vanishes = False  # True if underflowing powers count as zero, as under an integral
        self.snap = _LOST if self.is_rough else self.context.mpf(10) ** -(self.held + _GUARD // 2)

    def number(self, value: Any) -> Any:
        """A fraction in this arithmetic; one with more digits needs a higher precision."""
        if self.is_rough:
            return float(value)
        if value.numerator.bit_length() > self.context.prec and not self.vanishes:
            raise UnreliableValueError
        return self.context.mpf(value.numerator) / value.denominator

    def value(self, node: ExprNode, bound: Mapping[str, object]) -> Any:
        """The value of a tree."""
        self.left -= 1
        spend(self.cost)
        if self.left < 0:
            raise UnreliableValueError
        op, args = node.op, node.args
        if op == "num":
            return self.number(args[0])
        if op == "sym":
            return bound[args[0]] if args[0] in bound else self.symbol(args[0])
        if op == "const":
            return self.constant(args[0])
        if op == "add":
            return self.sum([self.value(arg, bound) for arg in args])
        if op == "mul":
            factors = [self.value(arg, bound) for arg in args]
            return math.prod(factors) if self.is_rough else self.context.fprod(factors)
        if op == "pow":
            return self.real(self.power(self.value(args[0], bound), self.value(args[1], bound)))
        if op == "bind":
            return self.binder(node, bound)
        return self.real(self.call(args[0], args[1:], bound))

    def sum(self, terms: list[Any]) -> Any:
        """A sum, unless a term is so small that it would be lost."""
        sizes = [abs(term) for term in terms if term != 0]
        if self.is_rough:
            total = sum(terms)
            if len(sizes) > 1 and min(*sizes, abs(total)) < max(sizes) * self.snap:
                self.is_sharp = False
            return total
        if len(sizes) > 1 and not self.vanishes and min(sizes) < max(sizes) * self.snap:
            raise UnreliableValueError
        return self.context.fsum(terms)

    def symbol(self, name: str) -> Any:
        """The value of a free symbol."""
        real, imag = self.point.value(name)
        return self.context.mpc(self.number(real), self.number(imag)) if imag else self.number(real)

    def constant(self, name: str) -> Any:
        """The value of a constant."""
        if name == "inf":
            raise UnreliableValueError
        if name == "i":
            return self.context.mpc(0, 1)
        return +(self.context.pi if name == "pi" else self.context.e)

    def real(self, value: Any) -> Any:
        """Drop an imaginary part from rounding; at a real point no other part is allowed."""
        context = self.context
        if not abs(value) < context.inf:
            raise UnreliableValueError
        imag = context.im(value)
        if imag == 0:
            return context.re(value)
        if abs(imag) <= self.snap * abs(value):
            return context.re(value)
        if self.point.is_real and abs(imag) > abs(value) * 1e-9:
            raise OffRealsError
        return value

    def power(self, base: Any, exponent: Any) -> Any:
        """A power whose logarithm is of bounded size."""
        context = self.context
        if base == 0:
            if context.re(exponent) > 0:
                return context.zero
            raise UnreliableValueError
        if self.is_rough:
            result = base**exponent
            if not 1 / _LARGE < abs(result) < _LARGE:
                raise UnreliableValueError
            self.is_sharp = self.is_sharp and abs(result - 1) > _LOST
            return result
        if self.vanishes and context.re(exponent * context.log(base)) < -1e6:
            return context.zero
        if not self.vanishes:
            self.check_level("exp", exponent * context.log(base))
        if abs(exponent) * abs(context.log(abs(base))) > 1e12 or abs(context.im(exponent)) > 1e9:
            raise UnreliableValueError
        return context.power(base, exponent)

    def call(self, name: str, args: tuple[ExprNode, ...], bound: Mapping[str, object]) -> Any:
        """The value of a function."""
        context = self.context
        values = [self.value(arg, bound) for arg in args]
        first = values[0] if values else context.zero
        spend(_COSTS.get(name, 0))
        if name in _KNOWN:
            if abs(first) > _MOST.get(name, 1e6 if self.is_rough else 1e12):
                raise UnreliableValueError
            if not self.vanishes:
                self.check_level(name, first)
            function = getattr(context, _MP_NAMES.get(name, name), None)
            if function is None:  # doubles lack some
                raise UnreliableValueError
            return function(first)
        if name == "abs":
            return abs(first)
        if name in ("factorial", "factorial2"):
            if abs(first) > 1e7:
                raise UnreliableValueError
            return context.gamma(first + 1) if name == "factorial" else context.fac2(first)
        if name == "binom":
            if max(abs(first), abs(values[1])) > 1e7:
                raise UnreliableValueError
            return context.binomial(first, values[1])
        if name in ("max", "min", "floor", "ceil", "mod", "sign"):
            return self.stepped(name, values)
        if not self.stands_in or any(abs(item) > 1e30 for item in values):
            raise UnreliableValueError
        return model_function(name, values, self.number)

    def check_level(self, name: str, at: Any) -> None:
        """Check that a function is not too flat at `at` for the precision."""
        if at == 0:
            return
        size = abs(at)
        reach = self.held if name == "exp" else self.held // 2
        if name in _FLAT_AT_ZERO and size < self.context.mpf(10) ** -reach:
            raise UnreliableValueError
        if name in _FLAT_FAR_OUT and size > self.held ** _FLAT_FAR_OUT[name]:
            raise UnreliableValueError
        if name == "arctan" and size > self.context.mpf(10) ** (self.held // 3):
            raise UnreliableValueError

    def stepped(self, name: str, values: list[Any]) -> Any:
        """A function of real numbers with steps or kinks."""
        context = self.context
        if any(context.im(item) != 0 for item in values):
            raise OffRealsError
        if name in ("max", "min"):
            return max(values) if name == "max" else min(values)
        first = values[0]
        if name == "mod":
            if len(values) != 2 or values[1] == 0:
                raise UnreliableValueError
            return first - values[1] * self.floor(first / values[1])
        if name == "sign":
            if abs(first) < context.mpf(10) ** -(self.digits // 2):
                raise UnreliableValueError
            return context.sign(first)
        return self.floor(first) if name == "floor" else -self.floor(-first)

    def floor(self, item: Any) -> Any:
        """The floor; a number too close to an integer could be on either side."""
        nearest = self.context.floor(item + 0.5)
        if abs(item - nearest) < self.context.mpf(10) ** -(self.digits // 2):
            exact = item == nearest
            if not exact:
                raise UnreliableValueError
        return self.context.floor(item)

    def binder(self, node: ExprNode, bound: Mapping[str, object]) -> Any:
        """The value of a sum, product, integral or limit, if it can be computed."""
        if self.is_rough:  # takes long
            raise UnreliableValueError
        name, variable, body, *limits = node.args
        value = None
        if name in ("sum", "prod") and len(limits) == 2:
            low, high = (rational(item) for item in limits)
            if low is not None and high is not None:
                return self.finite(name, variable, body, (low, high), bound)
            if low is not None and name == "sum" and limits[1].key == "#inf":
                value = series(self, variable, body, low, bound)
        elif name == "int" and len(limits) == 2:
            value = integral(self, variable, body, limits, bound)
        elif name == "lim" and len(limits) == 1:
            finer = TreeEvaluation(self.point, self.digits, 8 * self.digits)
            finer.left, finer.stands_in = self.left, False
            value = limit(finer, variable, body, limits[0], bound)
            self.left = finer.left
        return self.standing(node, bound) if value is None else value

    def finite(
        self,
        name: str,
        variable: str,
        body: ExprNode,
        ends: tuple[Fraction, Fraction],
        bound: Mapping[str, object],
    ) -> Any:
        """A short finite sum or product."""
        first, last = ends
        is_whole = first.denominator == last.denominator == 1 and abs(first) <= 10**9
        if not is_whole or not -1 <= last - first < _SUM_TERMS:
            raise UnreliableValueError
        terms = range(int(first), int(last) + 1)
        inner = deeper(bound, max(len(terms), 1))
        values = [self.value(body, {**inner, variable: self.context.mpf(index)}) for index in terms]
        return self.sum(values) if name == "sum" else self.context.fprod(values)

    def standing(self, node: ExprNode, bound: Mapping[str, object]) -> Any:
        """A stand-in for an uncomputed value, linear in the body of a sum, integral or limit."""
        if not self.stands_in:
            raise UnreliableValueError
        name, variable, body, *limits = node.args
        inner = deeper(bound, 2)
        ends = [
            self.number(sample("#infinite", idx)) * (-1 if "-1" in item.key else 1)
            if "#inf" in item.key
            else self.value(item, bound)
            for idx, item in enumerate(limits)
        ]
        bodies = [
            self.value(body, {**inner, variable: self.number(sample(name, idx))})
            for idx in range(2)
        ]
        if name == "prod":
            return model_function(f"bind:{name}", [*bodies, *ends], self.number)
        weights = [model_function(f"bind:{name}:{idx}", ends, self.number) for idx in range(2)]
        return weights[0] * bodies[0] + weights[1] * bodies[1]
