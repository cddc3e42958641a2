r"""Whether two expressions are the same function: numeric probing at fixed points.

Both trees are evaluated in complex doubles at points that depend on the names of the symbols only;
a difference at one point decides `different`. Agreement is confirmed at 40 digits, so that
`10^{20} + \pi` and `1 + 10^{20} + \pi` stay apart. Points are complex with positive real part
(every analytic identity that holds for positive numbers holds there: `\sqrt{1/n} = 1/\sqrt{n}`) and
real of either sign, where expressions that leave the reals say nothing (`\sqrt{x^2}` is not `x`).
What is not finite, or out of range, is undecided, never equal.
"""

from __future__ import annotations

from typing import Final

from flowzoo.reward.math.precise import precise_value, term_sizes
from flowzoo.reward.math.tree import ExprNode, mentions, rational, symbols
from flowzoo.reward.math.value import COMPLEX_POINTS, REAL_POINTS, UnreliableValueError, value

_RELATIVE: Final = 1e-9
_CONFIRMED: Final = 1e-25
_NOT_ANALYTIC: Final = frozenset({"abs", "floor", "ceil", "max", "min", "mod", "gcd", "lcm"})
_MIXED: Final = frozenset(
    ["sum", "prod", "int", "iint", "oint", "lim", "matrix", "row", "det", "gcd", "lcm"]
)


def same_function(a: ExprNode, b: ExprNode) -> bool | None:
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


def proportional(a: ExprNode, b: ExprNode) -> float | None:
    """The constant `c` with `a = c * b` at all probes, or None. Both must not vanish."""
    ratios: list[complex] = []
    for point in _points(a, b):
        try:
            x, y = value(a, point), value(b, point)
        except UnreliableValueError:
            continue
        if abs(y) < 1e-9 or abs(x) < 1e-9:
            return None
        ratios.append(x / y)
    if len(ratios) < 3 or abs(ratios[0].imag) > _RELATIVE * abs(ratios[0]):
        return None
    close = all(abs(ratio - ratios[0]) <= _RELATIVE * abs(ratios[0]) for ratio in ratios)
    return ratios[0].real if close else None


def constant(node: ExprNode) -> complex | None:
    """The value of a tree without symbols, or None."""
    exact = rational(node)
    if exact is not None:
        return complex(exact) if abs(exact) < 10**300 else None
    if symbols(node) or mentions(node, frozenset({"matrix", "row", "lim", "int"})):
        return None
    try:
        return value(node, 0)
    except UnreliableValueError:
        return None


def _points(a: ExprNode, b: ExprNode) -> tuple[int, ...]:
    if not (symbols(a) or symbols(b)):
        return (0,)
    if mentions(a, _NOT_ANALYTIC) or mentions(b, _NOT_ANALYTIC):
        return REAL_POINTS
    return COMPLEX_POINTS + REAL_POINTS[:2]


def _agree(a: ExprNode, b: ExprNode) -> bool | None:
    """Agreement in doubles: False at the first difference, None if too few points decide."""
    points = _points(a, b)
    decided = 0
    for point in points:
        try:
            x, y = value(a, point), value(b, point)
        except UnreliableValueError:
            continue
        if abs(x - y) > _RELATIVE * max(abs(x), abs(y), 1e-4 * _scale(a, b, point)):
            return False
        decided += 1
    needed = 1 if len(points) == 1 else 3
    return True if decided >= needed else None


def _scale(a: ExprNode, b: ExprNode, point: int) -> float:
    """The size of the largest term, which rounding errors of a cancelling sum are relative to."""
    sizes = [0.0]
    for node in (a, b):
        terms = node.args if node.op == "add" else (node,)
        for term in terms:
            try:
                sizes.append(abs(value(term, point)))
            except UnreliableValueError:
                continue
    return max(sizes)


def _confirmed(a: ExprNode, b: ExprNode) -> bool | None:
    """The same comparison at 40 digits, at one complex and one real point.

    Binders and what is mixed rather than computed have doubles only, which have agreed.
    """
    if mentions(a, _MIXED) or mentions(b, _MIXED):
        return True
    points = _points(a, b)
    decided = 0
    for point in (points[0], points[-1]):
        try:
            for node in (a, b):
                value(node, point)  # a point that is undecided stays so
            x, y = precise_value(a, point), precise_value(b, point)
            size = max(abs(x), abs(y))
            total = max([size, *term_sizes(a, point), *term_sizes(b, point)])
        except UnreliableValueError:
            continue
        if abs(x - y) > _CONFIRMED * max(size, total * 1e-8):
            return False
        decided += 1
    return True if decided else None
