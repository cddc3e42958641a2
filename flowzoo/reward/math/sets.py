r"""Comparison of sets of real numbers: intervals, unions, points, exclusions.

The endpoints of both are sorted; at each endpoint, and between neighbors, both sets must have the
same members. This decides `x \ne 0`, `|x| > 1` and `(0, 1) \cup (1, 2)` without algebra.
"""

import math
from collections.abc import Sequence
from fractions import Fraction
from typing import Final, NamedTuple

from flowzoo.reward.math.probe import constant, same_function
from flowzoo.reward.math.tree import (
    AnswerTooLargeError,
    ExprNode,
    ParsedAnswer,
    add,
    const,
    divide,
    neg,
    num,
    rational,
    scalars,
    substitute,
    symbols,
)


class Linear(NamedTuple):
    """The expression `slope * letter + rest`, whose rest lacks the letter."""

    letter: str
    slope: Fraction
    rest: ExprNode


def linear(node: ExprNode) -> Linear | None:
    """A linear expression of one letter, or None."""
    letters = symbols(node)
    if len(letters) != 1:
        return None
    name = min(letters)
    terms = node.args if node.op == "add" else (node,)
    rest = add(term for term in terms if not symbols(term))
    moving = add(term for term in terms if symbols(term))
    at = [rational(substitute(moving, {name: num(value)})) for value in (0, 1, 2, -3)]
    if at[0] != 0 or at[1] is None or not at[1] or at[2] != 2 * at[1] or at[3] != -3 * at[1]:
        return None
    return Linear(name, at[1], rest)


def solved_range(left: ExprNode, right: ExprNode, op: str) -> ParsedAnswer | None:
    """The set of `left op right` with `op` one of `<`, `<=`, `!=`; None if unsolved."""
    if op == "!=":
        line = linear(add((left, neg(right))))
        if line is None:
            return None
        name, slope, rest = line
        out = ParsedAnswer("set", items=scalars(divide(neg(rest), num(slope))))
        every = _interval(neg(const("inf")), const("inf"), "()", "")
        return ParsedAnswer("setminus", items=(every, out), label=name)
    for inner, bound, is_inside in ((left, right, True), (right, left, False)):
        if inner.op != "call" or inner.args[0] != "abs" or symbols(bound):
            continue
        size = rational(bound)
        line = linear(inner.args[1])
        if line is None or size is None or size <= 0:
            continue
        name, slope, rest = line
        ends = sorted(
            ((divide(add((num(sign * size), neg(rest))), num(slope)), sign) for sign in (1, -1)),
            key=lambda pair: pair[1] * slope,
        )
        low, high = ends[0][0], ends[1][0]
        if is_inside:
            return _interval(low, high, "[]" if op == "<=" else "()", name)
        shapes = ("(]", "[)") if op == "<=" else ("()", "()")
        rays = (
            _interval(neg(const("inf")), low, shapes[0], ""),
            _interval(high, const("inf"), shapes[1], ""),
        )
        return ParsedAnswer("union", items=rays, label=name)
    return None


def _interval(low: ExprNode, high: ExprNode, shape: str, label: str) -> ParsedAnswer:
    return ParsedAnswer("seq", items=scalars(low, high), shape=shape, label=label, is_range=True)


_MOST_ENDS: Final = 64
_OPERATIONS: Final = ("union", "cap", "setminus")


class _NoRealSet(Exception):
    """The answer is not a supported set of real numbers."""


def is_real_set(answer: ParsedAnswer) -> bool:
    """Return True if an answer is a set of real numbers, not a tuple or a list of items."""
    if answer.kind in _OPERATIONS or answer.is_range:
        return True
    if answer.kind == "list" and answer.items:
        is_one = len({item.label for item in answer.items} - {""}) < 2
        return is_one and all(item.is_range or item.kind in _OPERATIONS for item in answer.items)
    return answer.kind == "seq" and answer.shape in ("[)", "(]")


def same_real_set(a: ParsedAnswer, b: ParsedAnswer) -> bool | None:
    """Return True if two answers are the same set of real numbers; None if undecided."""
    if "," in (a.shape, b.shape):  # several conditions: their intersection or union
        first, second = ((x, x._replace(shape="and")) if x.shape == "," else (x,) for x in (a, b))
        verdicts = [
            _same_real_set(
                x._replace(shape=x.shape.strip(",")), y._replace(shape=y.shape.strip(","))
            )
            for x in first
            for y in second
        ]
        return True if True in verdicts else None if None in verdicts else False
    return _same_real_set(a, b)


def _same_real_set(a: ParsedAnswer, b: ParsedAnswer) -> bool | None:
    try:
        ends = _order_ends([*_ends(a), *_ends(b)])
        is_same = all(_holds(a, at, ends) == _holds(b, at, ends) for at in range(2 * len(ends) + 1))
    except _NoRealSet:
        return None
    # An answer must compute operations on finite sets.
    return is_same if not is_same or has_interval(a) or has_interval(b) else None


def has_interval(answer: ParsedAnswer) -> bool:
    """Return True if an interval is part of a set."""
    return answer.kind == "seq" or any(has_interval(item) for item in answer.items)


def _ends(answer: ParsedAnswer) -> list[ExprNode]:
    if answer.kind == "scalar" and answer.node is not None:
        if "#inf" in answer.node.key:
            return []
        if symbols(answer.node) or answer.unit:
            raise _NoRealSet
        return [answer.node]
    if answer.kind == "seq" and (len(answer.items) != 2 or answer.shape not in _SHAPES):
        raise _NoRealSet
    if answer.kind not in ("seq", "set", "list", *_OPERATIONS):
        raise _NoRealSet
    return [end for item in answer.items for end in _ends(item)]


_SHAPES: Final = ("()", "[]", "[)", "(]")


def _order_ends(ends: Sequence[ExprNode]) -> list[ExprNode]:
    if len(ends) > _MOST_ENDS:
        raise _NoRealSet
    sized: list[tuple[float, ExprNode]] = []
    for end in {end.key: end for end in ends}.values():
        value = constant(end)
        if value is None or abs(value.imag) > 1e-12 * abs(value):
            raise _NoRealSet
        sized.append((value.real, end))
    sized.sort(key=lambda pair: pair[0])
    distinct: list[tuple[float, ExprNode]] = []
    for value, end in sized:
        if distinct and abs(value - distinct[-1][0]) <= 1e-9 * max(abs(value), 1.0):
            verdict = same_function(distinct[-1][1], end)
            if verdict is None:
                raise _NoRealSet
            if verdict:
                continue
        distinct.append((value, end))
    return [end for _, end in distinct]


def _place(node: ExprNode, ends: Sequence[ExprNode]) -> int:
    # Return the position of an end: `2 i + 1` for the i-th, beyond all for the infinities.
    if "#inf" in node.key:
        return -1 if node.key != "#inf" and "-1" in node.key else 2 * len(ends) + 1
    for idx, end in enumerate(ends):
        if end.key == node.key or same_function(end, node):
            return 2 * idx + 1
    raise _NoRealSet


def _holds(answer: ParsedAnswer, position: int, ends: Sequence[ExprNode]) -> bool:
    # True if the set has the point (odd) or the gap (even) at `position`.
    if answer.kind == "scalar" and answer.node is not None:
        return position == _place(answer.node, ends)
    if answer.kind == "seq":
        low, high = (item.node for item in answer.items)
        if low is None or high is None:
            raise _NoRealSet
        first, last = _place(low, ends), _place(high, ends)
        if position in (first, last):
            closed = answer.shape[0] == "[" if position == first else answer.shape[1] == "]"
            return closed and first <= last
        return first < position < last
    inside = [_holds(item, position, ends) for item in answer.items]
    if answer.kind == "cap" or answer.shape == "and":
        return all(inside)
    if answer.kind == "setminus":
        return inside[0] and not inside[1]
    return any(inside)


def is_over_integers(item: ParsedAnswer) -> bool:
    """Return True if an item states that a letter is an integer."""
    if not item.label or item.kind != "scalar" or item.node is None or not item.is_range:
        return False
    return item.node.key in ("Z", "ZZ", "integers")


_MOST_INTEGERS: Final = 256


def integers_of(items: Sequence[ParsedAnswer]) -> ParsedAnswer | None:
    r"""The integers of a bounded range, `1 < x \leq 4, x \in \mathbb{Z}`, or None."""
    if len(items) != 2 or not is_over_integers(items[1]) or items[0].label != items[1].label:
        return None
    ends = [rational(end.node) if end.node else None for end in items[0].items]
    if items[0].kind != "seq" or len(ends) != 2 or ends[0] is None or ends[1] is None:
        return None
    first, last = math.ceil(ends[0]), math.floor(ends[1])
    first += first == ends[0] and items[0].shape[0] == "("
    last -= last == ends[1] and items[0].shape[1] == ")"
    if last - first >= _MOST_INTEGERS:
        raise AnswerTooLargeError
    members = scalars(*map(num, range(first, last + 1)))
    return ParsedAnswer("set", items=members, label=items[0].label)
