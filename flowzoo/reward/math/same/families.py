r"""Families of solutions over the whole numbers: `\frac{\pi}{2} + k\pi, k \in \mathbb{Z}`.

The letter of the family does not matter, nor where it starts to count: `x = 2n\pi` is `x = 2k\pi`,
`-\frac{\pi}{4} + k\pi` is `\frac{3\pi}{4} + n\pi`.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from flowzoo.reward.math.meaning import ParsedAnswer
from flowzoo.reward.math.numeric.points import is_whole
from flowzoo.reward.math.numeric.probe import same_function
from flowzoo.reward.math.tree import ExprNode, add, mul, num, substitute, sym, symbols

_SHIFTS: Final = range(-3, 4)


class _Family(NamedTuple):
    letter: str
    members: tuple[ParsedAnswer, ...]


def _family(answer: ParsedAnswer) -> _Family | None:
    """The letter over the whole numbers and the members, or None."""
    if answer.kind != "list":
        return None
    letters = [item.label for item in answer.items if is_over_integers(item)]
    members = tuple(item for item in answer.items if not is_over_integers(item))
    if len(letters) != 1 or not members or any(item.node is None for item in members):
        return None
    return _Family(letters[0], members)


def is_over_integers(item: ParsedAnswer) -> bool:
    """Whether an item says that a letter is a whole number."""
    if not item.label or item.kind != "scalar" or item.node is None or not item.is_range:
        return False
    return item.node.key in ("Z", "ZZ", "integers")


def same_family(a: ParsedAnswer, b: ParsedAnswer) -> bool | None:
    """Whether two answers are one family; None where not both are families.

    One of them may leave out that its letter is a whole number, if the letter is one by custom.
    """
    first, second = _family(a), _family(b)
    if first is None and second is None:
        return None
    first, second = first or _implied(a), second or _implied(b)
    if first is None or second is None or len(first.members) != len(second.members):
        return False
    left = list(second.members)
    for member in first.members:
        other = next((x for x in left if _same_member(member, first, x, second)), None)
        if other is None:
            return False
        left.remove(other)
    return True


def _implied(answer: ParsedAnswer) -> _Family | None:
    """A family whose letter is not said to be whole."""
    members = answer.items if answer.kind == "list" else (answer,)
    nodes = [item.node for item in members if item.node is not None]
    letters = frozenset[str]().union(*(symbols(node) for node in nodes))
    if len(nodes) != len(members) or len(letters) != 1 or not is_whole(min(letters)):
        return None
    return _Family(min(letters), tuple(members))


def _same_member(a: ParsedAnswer, of_a: _Family, b: ParsedAnswer, of_b: _Family) -> bool:
    if a.node is None or b.node is None or a.unit != b.unit:
        return False
    if a.label and b.label and a.label != b.label:
        return False
    letter = sym("k")
    wanted = substitute(a.node, {of_a.letter: letter})
    if "k" not in symbols(wanted):
        return same_function(a.node, b.node) is True
    for sign in (1, -1):
        for shift in _SHIFTS:
            moved: ExprNode = add((mul((num(sign), letter)), num(shift)))
            if same_function(wanted, substitute(b.node, {of_b.letter: moved})) is True:
                return True
    return False
