"""Comparison of families over the integers and of congruences, by their residues.

The values of a family are progressions; if its sign alternates, its even and its odd members are.
Two families are the same if they have the same residues for a common multiple of all steps.
"""

import math
from collections.abc import Sequence
from fractions import Fraction
from itertools import chain
from typing import Final, NamedTuple

from flowzoo.reward.math.points import NEAR, UnreliableValueError, is_whole
from flowzoo.reward.math.precise import rough
from flowzoo.reward.math.probe import same_function
from flowzoo.reward.math.sets import is_over_integers
from flowzoo.reward.math.tree import (
    ZERO,
    ExprNode,
    ParsedAnswer,
    add,
    const,
    mul,
    neg,
    num,
    substitute,
    sym,
    symbols,
)

_MOST_RESIDUES: Final = 64
_LETTER: Final = sym("k_#")  # an integer, which no answer names


class _Family(NamedTuple):
    letter: str
    members: tuple[ParsedAnswer, ...]


class _Progression(NamedTuple):
    start: ExprNode
    step: ExprNode


def same_family(a: ParsedAnswer, b: ParsedAnswer) -> bool | None:
    """Return True if two answers are the same family; None unless both are families."""
    # One may omit that its letter is an integer if the letter is one by convention.
    first, second = _family(a), _family(b)
    is_stated = first is not None or second is not None
    first, second = first or _implied_family(a), second or _implied_family(b)
    if not is_stated and not (first and second and _are_angles(first) and _are_angles(second)):
        return None
    if first is None or second is None:
        return False
    return _same_members(first, second) or _same_values(first, second)


def same_residues(a: ParsedAnswer, b: ParsedAnswer) -> bool:
    """True if congruences, or a congruence and a family, have the same solutions."""
    first, second = _congruences(a), _congruences(b)
    of = {x.label for side in (a, b) for x in (side, *side.items) if not is_over_integers(x)}
    if len(of - {""}) > 1:
        return False
    return bool(first and second) and _same_progressions(first, second)


def _family(answer: ParsedAnswer) -> _Family | None:
    if answer.kind != "list":
        return None
    items = [x for item in answer.items for x in (item.items if item.kind == "list" else (item,))]
    letters = [item.label for item in items if is_over_integers(item)]
    members = tuple(item for item in items if not is_over_integers(item))
    if len(letters) != 1 or not members or any(item.node is None for item in members):
        return None
    return _Family(letters[0], members)


def _implied_family(answer: ParsedAnswer) -> _Family | None:
    members = answer.items if answer.kind == "list" else (answer,)
    nodes = [item.node for item in members if item.node is not None]
    letters = symbols(*nodes)
    if len(nodes) != len(members) or len(letters) != 1 or not is_whole(min(letters)):
        return None
    return _Family(min(letters), tuple(members))


def _are_angles(family: _Family) -> bool:
    # True if all members are multiples of pi or degrees that grow with the letter.
    return all(
        item.unit == "degree" or "#pi" in substitute(item.node, {family.letter: num(1)}).key
        for item in family.members
        if item.node is not None
    )


def _same_members(a: _Family, b: _Family) -> bool:
    # True if the members are the same functions of the letter; without names, the values of
    # different letters are in their order.
    def is_same(x: ParsedAnswer, y: ParsedAnswer) -> bool:
        is_named = not (x.label and y.label) or x.label == y.label
        if x.node is None or y.node is None or x.unit != y.unit or not is_named:
            return False
        first, second = (
            substitute(x.node, {a.letter: _LETTER}),
            substitute(y.node, {b.letter: _LETTER}),
        )
        return same_function(first, second) is True

    left = list(b.members)
    names = [{member.label for member in family.members} for family in (a, b)]
    is_ordered = {""} in names and any(len(x) > 1 for x in names)
    for member in a.members:
        others = left[:1] if is_ordered else left
        match = next((x for x in others if is_same(member, x)), None)
        if match is None:
            return False
        left.remove(match)
    return not left


def _same_values(a: _Family, b: _Family) -> bool:
    labels = {item.label for family in (a, b) for item in family.members} - {""}
    first, second = (
        [_progressions(item, family.letter) for item in family.members] for family in (a, b)
    )
    units = {item.unit for family in (a, b) for item in family.members} - {"", "degree"}
    if len(labels) > 1 or len(units) > 1 or [] in first or [] in second:
        return False
    return _same_progressions(
        [x for part in first for x in part], [x for part in second for x in part]
    )


def _progressions(member: ParsedAnswer, letter: str) -> list[_Progression]:
    # The values of a member at all integers, or at the even and at the odd ones; else nothing.
    node = member.node or num(0)
    if member.unit == "degree":
        node = mul((node, const("pi"), num(Fraction(1, 180))))
    for count in (1, 2):
        parts: list[_Progression] = []
        for rest in range(count):
            moved = substitute(node, {letter: add((num(rest), mul((num(count), _LETTER))))})
            start, following = (
                substitute(moved, {_LETTER.args[0]: num(value)}) for value in (0, 1)
            )
            step = add((following, neg(start)))
            if not same_function(moved, add((start, mul((step, _LETTER))))):
                break
            parts.append(_Progression(start, step))
        if len(parts) == count:
            return parts
    return []


def _congruences(answer: ParsedAnswer) -> list[_Progression]:
    if answer.shape == "mod":
        residue, modulus = (item.node for item in answer.items)
        return [_Progression(residue, modulus)] if residue and modulus else []
    family = _family(answer)
    is_one = answer.shape != "and" and len({item.label for item in answer.items}) < 2
    if family is None:
        return [part for item in answer.items if is_one for part in _congruences(item)]
    return [part for item in family.members for part in _progressions(item, family.letter)]


def _same_progressions(a: Sequence[_Progression], b: Sequence[_Progression]) -> bool:
    sizes = [_ratio(part.step, a[0].step) for part in (*a, *b)]
    steps = [abs(size) for size in sizes if size]
    if len(steps) < len(sizes):
        return False
    tops, bottoms = [x.numerator for x in steps], [x.denominator for x in steps]
    whole = Fraction(math.lcm(*tops), math.gcd(*bottoms))
    counts = [int(whole / size) for size in steps]
    if sum(counts) > _MOST_RESIDUES:
        return False
    period = mul((num(whole), a[0].step))
    starts = [
        [add((part.start, mul((num(i), part.step)))) for i in range(count)]
        for part, count in zip((*a, *b), counts, strict=True)
    ]
    first, second = (list(chain(*side)) for side in (starts[: len(a)], starts[len(a) :]))
    return _covers(first, second, period) and _covers(second, first, period)


def _covers(a: Sequence[ExprNode], b: Sequence[ExprNode], period: ExprNode) -> bool:
    # True if every residue of `b` is one of `a`.
    distances = ((_ratio(x, period, y) for x in a) for y in b)
    return all(any(x is not None and x.denominator == 1 for x in row) for row in distances)


def _ratio(a: ExprNode, b: ExprNode, start: ExprNode = ZERO) -> Fraction | None:
    # How many times `b` leads from `start` to `a`, if that is a short fraction.
    try:
        first, step, last = (rough(node, NEAR[0]).value for node in (start, b, a))
        quotient = (last - first) / step
    except (UnreliableValueError, ZeroDivisionError):
        return None
    short = Fraction(quotient.real).limit_denominator(_MOST_RESIDUES)
    is_close = abs(quotient - float(short)) < 1e-9 * max(1, abs(quotient))
    return short if is_close and same_function(a, add((start, mul((num(short), b))))) else None
