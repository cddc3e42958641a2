r"""Answers that copy a formula of their problem and leave its operations undone.

`\binom{31}{28}` is the number that a problem asks for when it says "Compute `\binom{31}{28}`", and
no answer to it. Expressions are compared as they are written: numbers are symbols there, so that
nothing is computed, while order, brackets, `+ 0` and `1 \cdot` do not matter.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from fractions import Fraction

from flowzoo.reward.math.answer import read_answer, read_as_written
from flowzoo.reward.math.clean import clean
from flowzoo.reward.math.copies.formulas import (
    Formulas,
    formulas_in,
    is_value,
    is_written_number,
    leaves_of,
    subtrees,
    whole_key,
    written_key,
)
from flowzoo.reward.math.cursor import WRITTEN
from flowzoo.reward.math.meaning import ParsedAnswer
from flowzoo.reward.math.numeric.probe import same_function
from flowzoo.reward.math.numeric.work import Bounded
from flowzoo.reward.math.tree import (
    AnswerTooLargeError,
    ExprNode,
    add,
    mul,
    num,
    substitute,
    symbols,
)

_OPERATION = re.compile(r"[-+*/^!|()_]|\\(?!text|mathrm|\$|%)[A-Za-z]|[^\x00-\x7f]|\d\.\d|mod")
"""An answer without it is not looked at further."""


def is_copied(answer: str, gold: str, problem: str) -> bool:
    """Whether an answer that is equal to `gold` is only a formula of the text `problem`.

    Such an answer is an expression of the problem with its operations left to be done, which is
    not how the gold is written, perhaps with something around it that changes nothing. Numbers,
    letters and choices are answers wherever they come from.
    """
    if answer == gold or _OPERATION.search(answer) is None:
        return False
    found, wanted, value = read_as_written(answer), read_as_written(gold), read_answer(gold)
    if found is None or wanted is None or value is None:
        return False
    if written_key(found) == written_key(wanted):
        return False
    formulas = formulas_in(problem)
    if _is_operation(found) and written_key(found) in formulas.wholes:
        return True
    spelled = {leaf.node.key for leaf in leaves_of(wanted) if leaf.node is not None}
    golds = [leaf.node for leaf in leaves_of(value) if leaf.node is not None]
    try:
        with Bounded():
            leaves = [leaf for side in _sides(answer, found) for leaf in leaves_of(side)]
            verdicts = [_is_copy(leaf, spelled, golds, formulas) for leaf in leaves]
    except (AnswerTooLargeError, RecursionError):
        return False
    # An answer that says its value, too, has done the operations.
    return bool(verdicts) and (all if value.kind == "scalar" else any)(verdicts)


def _sides(answer: str, found: ParsedAnswer) -> list[ParsedAnswer]:
    """The sides of an equation except names; an answer that is no equation is its own side."""
    if "=" not in answer or not (found.kind == "relation" or found.label):
        return [found]
    text = clean(answer)
    sides, depth, start = [], 0, 0
    for idx, char in enumerate(text):
        depth += (char in "([{") - (char in ")]}")
        if char == "=" and depth == 0:
            sides.append(text[start:idx])
            start = idx + 1
    read = [read_as_written(side) for side in (*sides, text[start:])]
    return [side for side in read if side is not None and not _is_named(side)]


def _is_named(side: ParsedAnswer) -> bool:
    """Whether a side only names something, or cannot be read."""
    node = side.node
    if node is None:
        return side.kind == "text"
    return (node.op == "sym" and not is_written_number(node)) or (
        node.op == "call" and node.args[0][:1] == "@"
    )


def _is_copy(
    leaf: ParsedAnswer, spelled: set[str], golds: list[ExprNode], formulas: Formulas
) -> bool:
    """Whether a scalar holds a part of the problem that is worth a gold and not spelled as one."""
    node = leaf.node
    if node is None or node.key in spelled:
        return False
    if is_value(node):
        return whole_key(leaf) in formulas.wholes
    for part in {part.key: part for part in _copied_parts(node, formulas)}.values():
        if part.key in spelled or (is_value(part) and part.key not in formulas.parts):
            continue
        if any(same_function(_computed(part), gold) is True for gold in golds):
            return True
    return False


def _copied_parts(node: ExprNode, formulas: Formulas) -> Iterator[ExprNode]:
    """The parts of a tree that are parts of the problem's, and members of sums and products."""
    for part in subtrees(node):
        if part.key in formulas.parts or _is_worded(part, formulas):
            yield part
        if part.op not in ("add", "mul"):
            continue
        own = Counter(part.args)
        for op, members in formulas.joined:
            shared = own & members if op == part.op and own.keys() & members.keys() else None
            if shared and shared.total() > 1:
                yield (add if op == "add" else mul)(shared.elements())


def _is_worded(node: ExprNode, formulas: Formulas) -> bool:
    """Whether a node is a sign for words of the problem: `gcd(12, 18)`, `2^{10} mod 7`."""
    known = formulas.parts | formulas.numbers
    is_sign = node.op == "call" and node.args[0] in ("gcd", "lcm", "mod")
    return is_sign and all(arg.key in known for arg in node.args[1:])


def _computed(node: ExprNode) -> ExprNode:
    """The expression that is written, computed where it can be."""
    numbers = [name for name in symbols(node) if name.startswith(WRITTEN)]
    return substitute(node, {name: num(Fraction(name.removeprefix(WRITTEN))) for name in numbers})


def _is_operation(answer: ParsedAnswer) -> bool:
    """Whether an answer that is no single expression leaves something to be done."""
    if answer.kind in ("text", "union", "cap", "setminus"):
        return True
    if answer.relation is not None and not answer.items:
        return answer.relation[0] != "!=" and answer.node is None
    nodes = [leaf.node for leaf in leaves_of(answer) if leaf.node is not None]
    return answer.node is None and not all(map(is_value, nodes))
