"""Whether two scalars are the same: units, percent signs, angles, rounding, matrices."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from fractions import Fraction
from typing import Final

from flowzoo.reward.math.meaning import ParsedAnswer
from flowzoo.reward.math.numeric.probe import decimal, same_function
from flowzoo.reward.math.same.rules import Rules
from flowzoo.reward.math.tree import ExprNode, const, mul, num, rational, substitute, sym, symbols


def all_same(verdicts: Iterable[bool | None]) -> bool | None:
    """True if all are, False if one is, else undecided."""
    undecided = False
    for verdict in verdicts:
        if verdict is False:
            return False
        undecided = undecided or verdict is None
    return None if undecided else True


def column(scalar: ParsedAnswer) -> tuple[ParsedAnswer, ...] | None:
    """The cells of a matrix with one column or one row."""
    rows = rows_of(scalar.node)
    if rows is None or (len(rows) > 1 and len(rows[0]) > 1):
        return None
    return tuple(ParsedAnswer("scalar", node=cell) for row in rows for cell in row)


def rows_of(node: ExprNode | None) -> list[tuple[ExprNode, ...]] | None:
    """The rows of a matrix, or None."""
    if node is None or node.op != "call" or node.args[0] != "matrix":
        return None
    return [row.args[1:] for row in node.args[1:]]


def same_scalar(a: ParsedAnswer, b: ParsedAnswer, rules: Rules) -> bool | None:
    """Whether two scalars are the same; None if undecided."""
    if a.node is None or b.node is None:
        return False
    if {a.unit, b.unit} == {"cent", "dollar"}:
        a, b = (_in_cents(item) for item in (a, b))
    if a.node is None or b.node is None or not _units_agree(a.unit, b.unit, rules):
        return False
    left, right = rows_of(a.node), rows_of(b.node)
    if left is not None and right is not None:
        return _same_matrix(left, right)
    verdict = same_function(a.node, b.node)
    if verdict is False:
        renamed = _renamed_constant(b.node, a.node)
        verdict = renamed is not b.node and same_function(a.node, renamed)
    for x, y in ((a, b), (b, a)):  # the letter of `12 m` may be meant as the unit
        is_letter = verdict is False and len(x.unit) == 1 and x.unit.isalpha() and not y.unit
        if is_letter and symbols(y.node or num(0)) == {x.unit}:
            verdict = same_function(mul((x.node or num(0), sym(x.unit))), y.node or num(0))
    if verdict is False and {a.unit, b.unit} == {"degree", ""}:
        verdict = _same_angle(a.node, b.node, a.unit)
    if verdict is not True and (a.digits or b.digits):
        verdict = _is_rounding(a, b, rules.digits) or verdict
    if verdict is False and rules.percent == "either":
        hundred = num(100)
        for x, y in ((a, b), (b, a)):
            if x.unit == "%" and y.unit != "%" and x.node is not None and y.node is not None:
                return same_function(mul((hundred, x.node)), y.node)
    return verdict


def _in_cents(money: ParsedAnswer) -> ParsedAnswer:
    """An amount of dollars or cents in cents."""
    if money.unit == "cent" or money.node is None:
        return money
    return money._replace(unit="cent", node=mul((num(100), money.node)), digits=0)


_FREE_CONSTANTS: Final = frozenset({"C", "c", "K", "C_1", "C_0", "c_1", "const", "constant"})


def _renamed_constant(node: ExprNode, like: ExprNode) -> ExprNode:
    """`node` with the constant of integration that it ends in called as the one of `like`."""
    mine, other = _free_constant(node), _free_constant(like)
    if not mine or not other or mine == other or other in symbols(node):
        return node
    return substitute(node, {mine: sym(other)})


def _free_constant(node: ExprNode) -> str:
    """The letter that stands for any constant: a term of its own that occurs nowhere else."""
    if node.op != "add":
        return ""
    found = [term.args[0] for term in node.args if term.op == "sym"]
    names = [name for name in found if name in _FREE_CONSTANTS]
    rest = [term for term in node.args if term.op != "sym" or term.args[0] not in names]
    used = frozenset[str]().union(*(symbols(term) for term in rest))
    return names[0] if len(names) == 1 and names[0] not in used and used else ""


def _same_angle(a: ExprNode, b: ExprNode, unit: str) -> bool | None:
    """Whether degrees and a multiple of pi are one angle; `unit` is that of `a`."""
    degrees, radians = (a, b) if unit else (b, a)
    if "#pi" not in radians.key:
        return False
    return same_function(mul((degrees, const("pi"), num(Fraction(1, 180)))), radians)


def _units_agree(a: str, b: str, rules: Rules) -> bool:
    if rules.units == "ignored" or a == b:
        return True
    if rules.units == "required":
        return False
    return not a or not b or (a == "%") != (b == "%")


def _same_matrix(a: Sequence[Sequence[ExprNode]], b: Sequence[Sequence[ExprNode]]) -> bool | None:
    if len(a) != len(b) or len(a[0]) != len(b[0]):
        return False
    pairs = zip((x for row in a for x in row), (y for row in b for y in row), strict=True)
    return all_same(same_function(x, y) for x, y in pairs)


def _is_rounding(a: ParsedAnswer, b: ParsedAnswer, digits: int) -> bool:
    """Whether one is a decimal of enough digits and the other a number that rounds to it."""
    for written, exact in ((a, b), (b, a)):
        if written.digits < digits or written.node is None or exact.node is None:
            continue
        if exact.digits:
            continue
        shown, meant = rational(written.node), rational(exact.node)
        if shown is None or not 1e-90 < abs(shown) < 1e90:
            continue
        if meant is None:
            meant = decimal(exact.node, written.digits)
        elif _is_short(meant):
            continue  # it needs no rounding
        if meant is None:
            continue
        if _is_nearest_double(shown, meant, written.digits):
            return True
        place = math.floor(math.log10(abs(shown))) + 1 - written.digits
        if abs(shown - meant) <= Fraction(10) ** place / 2:
            return True
    return False


def _is_nearest_double(shown: Fraction, meant: Fraction, digits: int) -> bool:
    """Whether 16 or 17 digits are the shortest form of the double nearest to a number.

    One more zero than that form has claims a digit more than a double holds.
    """
    form = repr(float(meant))
    own = sum(one.isdigit() for one in form.partition("e")[0].lstrip("-0."))
    return digits in (16, 17) and digits == own and shown == Fraction(form)


def _is_short(value: Fraction) -> bool:
    """Whether a number has a finite decimal form, so that a rounding of it is another number."""
    bottom = value.denominator
    for prime in (2, 5):
        while bottom % prime == 0:
            bottom //= prime
    return bottom == 1
