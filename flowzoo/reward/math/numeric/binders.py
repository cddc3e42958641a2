r"""Values of infinite sums, definite integrals and limits, where a short computation has one.

Each gives None where its method does not settle, and the caller falls back on a stand-in.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any, Final, Protocol

from flowzoo.reward.math.numeric.doubles import deeper
from flowzoo.reward.math.numeric.work import UnreliableValueError
from flowzoo.reward.math.tree import (
    HALF,
    MINUS_ONE,
    ExprNode,
    add,
    call,
    divide,
    mul,
    num,
    power,
    rational,
    replace,
    sym,
    symbols,
)

_MOST_TERMS: Final = 380
_QUADRATURE: Final = 100
"""Digits up to which quadrature is tried."""
_QUADRATURE_WORK: Final = 15_000
_SIDES: Final = (1, -1)


class Evaluating(Protocol):
    """What these need of an evaluation."""

    context: Any
    digits: int
    left: int
    vanishes: bool

    def value(self, node: ExprNode, bound: Mapping[str, Any]) -> Any:
        """The value of a tree."""

    def number(self, value: Fraction) -> Any:
        """A fraction in this arithmetic."""


def series(
    of: Evaluating, variable: str, body: ExprNode, first: Fraction, bound: Mapping[str, Any]
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
    raise UnreliableValueError  # it converges, but not fast enough for so many digits


def integral(
    of: Evaluating,
    variable: str,
    body: ExprNode,
    limits: Sequence[ExprNode],
    bound: Mapping[str, Any],
) -> Any:
    """A definite integral: by an antiderivative where the table below has one, else quadrature."""
    try:
        if not any("#inf" in end.key for end in limits):
            primitive = _primitive(body, variable, of, limits, bound)
            if primitive is not None:
                ends = [of.value(replace(primitive, variable, end), bound) for end in limits]
                return ends[1] - ends[0]
    except (ZeroDivisionError, UnreliableValueError):
        return None
    if of.digits > _QUADRATURE:
        raise UnreliableValueError
    try:
        return _quadrature(of, variable, body, limits, bound)
    except (ZeroDivisionError, UnreliableValueError):
        return None


def _quadrature(
    of: Evaluating, variable: str, body: ExprNode, limits: Sequence[ExprNode],
    bound: Mapping[str, Any],
) -> Any:  # fmt: skip
    context = of.context
    inner = deeper(bound, 200)  # none inside another
    ends = [
        context.inf * (-1 if "-1" in end.key else 1) if "#inf" in end.key else of.value(end, bound)
        for end in limits
    ]
    if any(context.im(end) != 0 for end in ends):
        return None
    before, of.left, of.vanishes = of.left, _QUADRATURE_WORK, True
    try:
        found, error = context.quad(
            lambda at: of.value(body, {**inner, variable: at}), ends, error=True, maxdegree=8
        )
    finally:
        of.left, of.vanishes = before, False
    return found if error <= context.mpf(10) ** -(of.digits) * max(abs(found), 1) else None


def _primitive(
    body: ExprNode, variable: str, of: Evaluating, limits: Sequence[ExprNode],
    bound: Mapping[str, Any],
) -> ExprNode | None:  # fmt: skip
    """An antiderivative of a sum of powers, exponentials, sines and cosines of linear arguments."""
    found: list[ExprNode] = []
    for term in body.args if body.op == "add" else (body,):
        factors = term.args if term.op == "mul" else (term,)
        inside = [factor for factor in factors if variable in symbols(factor)]
        rest = [factor for factor in factors if variable not in symbols(factor)]
        if len(inside) > 1:
            return None
        part = sym(variable) if not inside else _primitive_of(inside[0], variable)
        if part is None or (inside and not _is_regular(inside[0], variable, of, limits, bound)):
            return None
        found.append(mul([*rest, part]))
    return add(found)


def _is_regular(
    factor: ExprNode, variable: str, of: Evaluating, limits: Sequence[ExprNode],
    bound: Mapping[str, Any],
) -> bool:  # fmt: skip
    """Whether a power that is not whole and positive has its base positive between the limits."""
    if factor.op != "pow" or variable not in symbols(factor.args[0]):
        return True
    exponent = rational(factor.args[1])
    if exponent is None:
        return False
    if exponent > 0 and exponent.denominator == 1:
        return True
    ends = [of.value(replace(factor.args[0], variable, end), bound) for end in limits]
    return all(of.context.im(end) == 0 and end > 0 for end in ends)


def _primitive_of(factor: ExprNode, variable: str) -> ExprNode | None:
    """An antiderivative of one function of a linear argument."""
    if factor.op == "sym":
        return mul((HALF, power(factor, num(2))))
    if factor.op == "pow":
        base, exponent = factor.args
        if variable in symbols(base):
            slope, value = _slope(base, variable), rational(exponent)
            if slope is None or value is None:
                return None
            if value == -1:
                return divide(call("ln", [base]), slope)
            raised = num(value + 1)
            return divide(power(base, raised), mul((slope, raised)))
        slope = _slope(exponent, variable)
        return None if slope is None else divide(factor, mul((slope, call("ln", [base]))))
    if factor.op == "call" and factor.args[0] in ("sin", "cos"):
        slope = _slope(factor.args[1], variable)
        if slope is None:
            return None
        if factor.args[0] == "cos":
            return divide(call("sin", factor.args[1:]), slope)
        return divide(mul((MINUS_ONE, call("cos", factor.args[1:]))), slope)
    return None


def _slope(node: ExprNode, variable: str) -> ExprNode | None:
    """The coefficient of `variable` in a linear expression."""
    found: list[ExprNode] = []
    for term in node.args if node.op == "add" else (node,):
        factors = list(term.args if term.op == "mul" else (term,))
        inside = [factor for factor in factors if variable in symbols(factor)]
        if not inside:
            continue
        if len(inside) > 1 or inside[0].op != "sym":
            return None
        factors.remove(inside[0])
        found.append(mul(factors))
    return add(found) if found else None


def limit(
    of: Evaluating, variable: str, body: ExprNode, end: ExprNode, bound: Mapping[str, Any]
) -> Any:
    """A limit, from values ever nearer to the point, from both sides; None if they do not settle.

    `of` has to hold enough digits for the cancellation of a step of `10^-2d`, `d` its digits.
    """
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
    found: list[Any] = []
    for way in ways:
        try:
            near, nearer = (of.value(body, {**inner, variable: at}) for at in way)
        except (UnreliableValueError, ZeroDivisionError, ValueError, OverflowError):
            continue
        if abs(near - nearer) > ten ** (-digits) * max(abs(nearer), 1):
            if "#inf" in end.key:
                continue
            return None
        found.append(nearer)
        if "#inf" in end.key:
            break
    if not found or abs(found[0] - found[-1]) > ten ** (-digits) * max(abs(found[0]), 1):
        return None
    return found[0]
