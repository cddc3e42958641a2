r"""Inequalities in one letter that are sets of real numbers: `|x - 3| > 1`, `2x \ne 4`."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

from flowzoo.reward.math.meaning import ParsedAnswer
from flowzoo.reward.math.tree import (
    ExprNode,
    add,
    const,
    divide,
    neg,
    num,
    rational,
    substitute,
    symbols,
)


def linear(node: ExprNode) -> tuple[str, Fraction, ExprNode] | None:
    """Letter, exact slope and the rest without the letter of `slope * letter + rest`, or None."""
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
    return name, at[1], rest


def solved_range(left: ExprNode, right: ExprNode, op: str) -> ParsedAnswer | None:
    """The set of `left op right` with `op` one of `<`, `<=`, `!=`; None where it is not solved."""
    if op == "!=":
        found = linear(add((left, neg(right))))
        if found is None:
            return None
        name, slope, rest = found
        return punctured([divide(neg(rest), num(slope))], name)
    for inner, bound, is_inside in ((left, right, True), (right, left, False)):
        if inner.op != "call" or inner.args[0] != "abs" or symbols(bound):
            continue
        size = rational(bound)
        found = linear(inner.args[1])
        if found is None or size is None or size <= 0:
            continue
        name, slope, rest = found
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


def between(nodes: Sequence[ExprNode | None], ops: Sequence[str]) -> ParsedAnswer | None:
    """The set of `1 <= |x| <= 3`; None where it is not solved."""
    low, middle, high = nodes
    if low is None or middle is None or high is None:
        return None
    if all(op in (">", ">=") for op in ops):
        low, high, ops = high, low, [op.replace(">", "<") for op in reversed(ops)]
    if not all(op in ("<", "<=") for op in ops):
        return None
    parts = solved_range(low, middle, ops[0]), solved_range(middle, high, ops[1])
    if parts[0] is None or parts[1] is None:
        return None
    return ParsedAnswer("cap", items=(parts[0], parts[1]), label=parts[0].label)


def punctured(points: list[ExprNode], label: str) -> ParsedAnswer:
    """All real numbers but `points`."""
    line = _interval(neg(const("inf")), const("inf"), "()", "")
    out = ParsedAnswer("set", items=tuple(ParsedAnswer("scalar", node=p) for p in points))
    return ParsedAnswer("setminus", items=(line, out), label=label)


def _interval(low: ExprNode, high: ExprNode, shape: str, label: str) -> ParsedAnswer:
    ends = (ParsedAnswer("scalar", node=low), ParsedAnswer("scalar", node=high))
    return ParsedAnswer("seq", items=ends, shape=shape, label=label, is_range=True)
