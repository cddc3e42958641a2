r"""Functions that may differ only where no probe is: `\max(x, -10^{30})` is x at all of them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from fractions import Fraction
from typing import Final

from flowzoo.reward.listed import names
from flowzoo.reward.math.numeric.points import ProbePoint, is_whole
from flowzoo.reward.math.tree import ExprNode, rational, symbols

_FAR: Final = 50
"""Numbers from this size on, or with such a denominator, may move a function out of reach."""
_NOTABLE = re.compile(r"\d\d|\(\^ 0 ")
_BENT: Final = names("max min abs floor ceil sign mod binom factorial gamma")


def may_reach_far(key: str) -> bool:
    """Whether a tree with this key may have a number that matters here."""
    return _NOTABLE.search(key) is not None


def points_beyond(a: ExprNode, b: ExprNode) -> list[ProbePoint]:
    """Points beyond the numbers that bend or step one side and do not occur in the other."""
    far = max(_far(a, b), _far(b, a))
    if not far:
        return []
    letters = sorted(symbols(a) | symbols(b))
    whole = [name for name in letters if is_whole(name)]
    size = min(8 * far, Fraction(10) ** 60)
    fixed = {name: Fraction(int(size) + 3 + idx) for idx, name in enumerate(whole)}
    return [ProbePoint(5, sign, float(size), fixed) for sign in ("plus", "minus")]


def _far(a: ExprNode, b: ExprNode) -> Fraction:
    """The largest of the numbers that bend `a` alone; 0 for none."""
    other = {name for name, _ in _bends(b)}
    bends = [part for name, part in _bends(a) if name not in other]
    numbers = {n for part in bends for n in _numbers(part) if _is_far(n)}
    if numbers:
        numbers -= set(_numbers(b))
    return max((max(n, Fraction(n.denominator)) for n in numbers), default=Fraction(0))


def is_nothing(a: ExprNode, b: ExprNode) -> bool:
    """Whether a power of 0, which is 1 at one point only, stands on one side alone."""
    first, second = ({name for name, _ in _bends(side)} for side in (a, b))
    return ("0^" in first) != ("0^" in second)


def _is_far(number: Fraction) -> bool:
    return number >= _FAR or number.denominator >= _FAR


def _bends(node: ExprNode) -> Iterator[tuple[str, ExprNode]]:
    """The functions in a tree that have edges or steps, by name; roots and powers of 0 too."""
    if node.op == "call" and node.args[0] in _BENT and symbols(node):
        yield node.args[0], node
    if node.op == "pow":
        base, exponent = rational(node.args[0]), rational(node.args[1])
        if base == 0:
            yield "0^", node
        if exponent is not None and exponent.denominator != 1 and symbols(node.args[0]):
            yield "root", node
    for arg in node.args:
        if isinstance(arg, ExprNode):
            yield from _bends(arg)


def _numbers(node: ExprNode) -> Iterator[Fraction]:
    """The sizes of the numbers in a tree."""
    if node.op == "num":
        yield abs(node.args[0])
    for arg in node.args:
        if isinstance(arg, ExprNode):
            yield from _numbers(arg)
