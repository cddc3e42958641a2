"""The value of an expression at a probe point, at 40 digits, through mpmath."""

from __future__ import annotations

import functools
from typing import Any, Final

from flowzoo.reward.math.tree import ExprNode
from flowzoo.reward.math.value import FUNCTIONS, UnreliableValueError, symbol_value, value

_DIGITS: Final = 40
_ROUNDING: Final = 1e-34
_MP_NAMES: Final = {"arcsin": "asin", "arccos": "acos", "arctan": "atan", "arsinh": "asinh",
                    "arcosh": "acosh", "artanh": "atanh", "arccot": "acot", "arcsec": "asec",
                    "arccsc": "acsc"}  # fmt: skip


@functools.cache
def _context() -> Any:
    import mpmath

    context = mpmath.MPContext()
    context.dps = _DIGITS
    return context


def precise_value(node: ExprNode, point: int) -> Any:
    """The value at 40 digits; only for trees whose values in doubles were in range.

    Raises:
        UnreliableValueError: the tree holds something that is compared in doubles only.
    """
    try:
        return _mp(node, point, _context())
    except (OverflowError, ZeroDivisionError, ValueError):
        raise UnreliableValueError from None


def term_sizes(node: ExprNode, point: int) -> list[Any]:
    """Sizes of the terms of a sum; none for anything else."""
    terms = node.args if node.op == "add" else ()
    return [abs(precise_value(term, point)) for term in terms]


def _mp_sum(terms: list[Any], context: Any) -> Any:
    """The sum; undecided if a term is so small beside another that it could be lost."""
    sizes = [abs(term) for term in terms if term != 0]
    if not sizes:
        return context.zero
    if min(sizes) < 1e-20 * max(sizes):
        raise UnreliableValueError
    total = context.fsum(terms)
    return total if abs(total) > _ROUNDING * max(sizes) else context.zero


def _mp(node: ExprNode, point: int, context: Any) -> Any:
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
    if name in FUNCTIONS:
        found = getattr(context, _MP_NAMES.get(name, name))(values[0])
        return found if abs(found) > _ROUNDING or abs(values[0]) < 1e-9 else context.zero
    if name == "abs":
        return abs(values[0])
    if name == "factorial":
        return context.gamma(values[0] + 1)
    if name == "binom":
        return context.binomial(values[0], values[1])
    return context.mpc(value(node, point))
