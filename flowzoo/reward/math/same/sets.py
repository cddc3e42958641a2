r"""Whether two sets of real numbers are the same: intervals, unions, points, what is left out.

The ends that occur in either are put in order; between two of them, and on each, both sets must
have the same members. That decides `x \ne 0`, `|x| > 1`, `(0, 1) \cup (1, 2)` and
`[0, 2] \setminus \{1\}` without algebra.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from flowzoo.reward.math.meaning import ParsedAnswer
from flowzoo.reward.math.numeric.probe import constant, same_function
from flowzoo.reward.math.tree import ExprNode, symbols

_MOST_ENDS: Final = 64
_OPERATIONS: Final = ("union", "cap", "setminus")


class _NoRealSet(Exception):
    """The answer is no set of real numbers that is read here."""


def is_real_set(answer: ParsedAnswer) -> bool:
    """Whether an answer was written as a set of real numbers, not as a tuple or a list of items."""
    if answer.kind in _OPERATIONS or answer.is_range:
        return True
    if answer.kind == "list" and answer.items:
        return all(item.is_range or item.kind in _OPERATIONS for item in answer.items)
    return answer.kind == "seq" and answer.shape in ("[)", "(]")


def same_real_set(a: ParsedAnswer, b: ParsedAnswer) -> bool | None:
    """Whether two answers are one set of real numbers; None if that is not decided here."""
    if "," in (a.shape, b.shape):  # conditions side by side: all of them hold, or one
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
        ends = _ordered([*_ends(a), *_ends(b)])
    except _NoRealSet:
        return None
    if ends is None:
        return None
    try:
        places = range(2 * len(ends) + 1)
        found = all(_holds(a, place, ends) == _holds(b, place, ends) for place in places)
    except _NoRealSet:
        return None
    # Operations on finite sets that come to the same are still not the answer as it was asked for.
    return found if not found or _has_interval(a) or _has_interval(b) else None


def _has_interval(answer: ParsedAnswer) -> bool:
    return answer.kind == "seq" or any(_has_interval(item) for item in answer.items)


def _ends(answer: ParsedAnswer) -> list[ExprNode]:
    """The finite ends of all parts."""
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


def _ordered(ends: Sequence[ExprNode]) -> list[ExprNode] | None:
    """Distinct ends by size; None if two cannot be told apart."""
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
                return None
            if verdict:
                continue
        distinct.append((value, end))
    return [end for _, end in distinct]


def _place(node: ExprNode, ends: Sequence[ExprNode]) -> int:
    """Where an end is: `2 i + 1` for the i-th, below and above all for the infinities."""
    if "#inf" in node.key:
        return -1 if node.key != "#inf" and "-1" in node.key else 2 * len(ends) + 1
    for idx, end in enumerate(ends):
        if end.key == node.key or same_function(end, node):
            return 2 * idx + 1
    raise _NoRealSet


def _holds(answer: ParsedAnswer, place: int, ends: Sequence[ExprNode]) -> bool:
    """Whether the set has the point (odd) or the gap (even) at `place`."""
    if answer.kind == "scalar" and answer.node is not None:
        return place == _place(answer.node, ends)
    if answer.kind == "seq":
        low, high = (item.node for item in answer.items)
        if low is None or high is None:
            raise _NoRealSet
        first, last = _place(low, ends), _place(high, ends)
        if place in (first, last):
            closed = answer.shape[0] == "[" if place == first else answer.shape[1] == "]"
            return closed and first <= last
        return first < place < last
    inside = [_holds(item, place, ends) for item in answer.items]
    if answer.kind == "cap" or answer.shape == "and":
        return all(inside)
    if answer.kind == "setminus":
        return inside[0] and not inside[1]
    return any(inside)
