r"""Detection of answers that copy an unevaluated formula of the problem.

Expressions are compared as written: numbers are symbols, so nothing is computed; order, brackets,
`+ 0` and `1 \cdot` are ignored.
"""

import re
from collections import Counter
from collections.abc import Iterator
from fractions import Fraction
from functools import lru_cache
from typing import Final, NamedTuple

from flowzoo.reward.listed import names
from flowzoo.reward.math.answer import read_answer, read_as_written
from flowzoo.reward.math.clean import clean
from flowzoo.reward.math.extract import formulas_of
from flowzoo.reward.math.parser import WRITTEN
from flowzoo.reward.math.points import bounded
from flowzoo.reward.math.probe import same_function
from flowzoo.reward.math.tree import (
    MINUS_ONE,
    AnswerTooLargeError,
    ExprNode,
    ParsedAnswer,
    add,
    mul,
    num,
    rational,
    substitute,
    subtrees,
    symbols,
)

_MOST_TEXT: Final = 20_000
_MOST_PIECES: Final = 400
_MOST_PIECE: Final = 600
_DRAWING = re.compile(r"\[asy\].*?\[/asy\]", re.DOTALL)
_BOUNDS = re.compile(
    r"\\(?:begin|end)\s?\{(?:align|aligned|cases|gather|gathered|array|split|eqnarray)\*?\}"
    r"|\\(?:text|textrm|mbox|mathrm)\s?\{[^{}]*\}"
    r"|\\(?:leq?|geq?|neq?|l[et]|g[et]|approx|equiv|to|in|mid|quad|qquad|implies|Rightarrow|iff)"
    r"(?![A-Za-z])|\\\\|[=<>,;&:\n]"
)
_WORD = re.compile(r"[A-Za-z]{2,}|[?;:,]\s|\.(?:\s|$)|\n")
_READ_WORDS: Final = names("sin cos tan cot sec csc log ln exp sqrt mod gcd lcm pi max min abs")
_LONE = re.compile(r"^(?:[A-Za-z]\s+)+|(?:\s+[A-Za-z])+$")
_NUMBER = re.compile(r"\d{1,256}(?:\.\d{1,256})?", re.ASCII)
_SIGN = re.compile(r"[-+*/^!=<>|%×÷·√]")


class Formulas(NamedTuple):
    """The formulas of a problem, as written."""

    # Keys of unevaluated expressions, of their parts, and of separate fractions and decimals.
    parts: frozenset[str]
    # `add` or `mul` with the members of sums and products, of which several may be copied.
    joined: tuple[tuple[str, Counter[ExprNode]], ...]
    wholes: frozenset[str]  # keys of separate relations, sets, fractions and decimals
    numbers: frozenset[str]  # keys of all numbers


@lru_cache(maxsize=1024)
def formulas_in(problem: str) -> Formulas:
    """The formulas of a problem's text: formulas in dollar signs and runs of signs in prose."""
    text = _DRAWING.sub(" ", problem[:_MOST_TEXT])
    parts: dict[str, ExprNode] = {}
    wholes: set[str] = set()
    for piece in list(dict.fromkeys(_pieces(text)))[:_MOST_PIECES]:
        read = read_as_written(piece) if len(piece) <= _MOST_PIECE else None
        if read is None or read.shape == "broken":
            continue
        if read.node is None:
            wholes.add(written_key(read))
        elif is_value(read.node) and (whole := whole_key(read)):
            wholes.add(whole)
            parts[read.node.key] = read.node
        trees = [leaf.node for leaf in leaves_of(read) if leaf.node is not None]
        trees += [read.relation[1]] if read.relation is not None else []
        for part in (part for tree in trees for part in subtrees(tree)):
            if not is_value(part):
                parts[part.key] = part
    joined = tuple((p.op, Counter(p.args)) for p in parts.values() if p.op in ("add", "mul"))
    numbers = (f"{WRITTEN}{Fraction(text)}" for text in _NUMBER.findall(text.replace(",", "")))
    return Formulas(frozenset(parts), joined, frozenset(wholes - {""}), frozenset(numbers))


def _pieces(text: str) -> Iterator[str]:
    runs, start = formulas_of(text), 0
    text = text.replace("$", " ")
    cuts = [m.span() for m in _WORD.finditer(text) if m[0].lower() not in _READ_WORDS]
    for at, end in (*cuts, (len(text), len(text))):
        run = _LONE.sub("", text[start:at].strip()).strip()
        start = end
        if _SIGN.search(run) and any(map(str.isalnum, run)):
            runs.append(run)
    for run in runs:
        yield run
        yield from (piece.strip() for piece in _BOUNDS.split(run) if piece.strip())


def is_value(node: ExprNode) -> bool:
    """Return True for an evaluated expression: a number, a letter, a reduced fraction."""
    if node.op in ("num", "sym", "const"):
        return True
    if node.op == "call" and node.args[0] in ("matrix", "row"):
        return all(is_value(arg) for arg in node.args[1:])
    factors = [
        f for f in (node.args if node.op == "mul" else (node,)) if f.op not in ("num", "const")
    ]
    below = [f for f in factors if f.op == "pow"]
    above = [f for f in factors if f.op == "sym"]
    if len(above) > 1 or len(below) > 1 or len(above) + len(below) != len(factors):
        return False
    if not below:
        return True
    top = _written_value(above[0]) if above else Fraction(1)
    bottom = _written_value(below[0].args[0]) if below[0].args[1] == MINUS_ONE else None
    if top is None or bottom is None or {top.denominator, bottom.denominator} != {1}:
        return False
    return bottom != 0 and (top / bottom).denominator == abs(bottom)


def _written_value(node: ExprNode) -> Fraction | None:
    if is_written_number(node):
        return Fraction(node.args[0].removeprefix(WRITTEN))
    return rational(node)


def is_written_number(node: ExprNode) -> bool:
    """Return True if a node of a tree as written is a number."""
    return node.op == "sym" and node.args[0].startswith(WRITTEN)


def leaves_of(answer: ParsedAnswer) -> Iterator[ParsedAnswer]:
    """The scalars of an answer, at any depth."""
    if answer.node is not None:
        yield answer
    for item in answer.items:
        yield from leaves_of(item)


def written_key(answer: ParsedAnswer) -> str:
    """Text that is equal for equally written answers; names on the left are ignored."""
    if answer.node is not None:
        return answer.node.key
    if answer.relation is not None and not answer.items:
        return f"{answer.relation[0]} {answer.relation[1].key}"
    if answer.kind in ("text", "relation"):
        return answer.text
    return f"{answer.kind}{answer.shape}[{', '.join(written_key(item) for item in answer.items)}]"


def whole_key(leaf: ParsedAnswer) -> str:
    """Key of a separate fraction, decimal or angle; empty for integers."""
    assert leaf.node is not None
    if leaf.unit == "degree":
        return f"° {leaf.node.key}"
    is_broken = leaf.unit != "%" and ("/" in leaf.node.key or "(^" in leaf.node.key)
    return f"value {leaf.node.key}" if is_broken else ""


# An answer without these characters is not examined further.
_OPERATION = re.compile(r"[-+*/^!|()_]|\\(?!text|mathrm|\$|%)[A-Za-z]|[^\x00-\x7f]|\d\.\d|mod")


def _convert_unit(answer: str, gold: str) -> str:
    # Key of the number of a quantity in another unit than the gold's, `3 m` for 300 cm; else empty.
    given, reference = read_answer(answer), read_answer(gold)
    if given is None or reference is None or not given.unit or not reference.unit:
        return ""
    number = _NUMBER.search(answer.replace(",", "")) if given.unit != reference.unit else None
    return f"{WRITTEN}{Fraction(number[0])}" if number else ""


def is_copied(answer: str, gold: str, problem: str) -> bool:
    """Return True if an answer equal to `gold` only copies a formula of the text `problem`."""
    # Such an answer is an unevaluated expression of the problem, possibly with neutral additions,
    # that differs from the written gold, or a quantity of it in another unit than the gold's.
    # Numbers, letters and choices are never copies.
    if answer == gold:
        return False
    if (number := _convert_unit(answer, gold)) and number in formulas_in(problem).numbers:
        return True
    if _OPERATION.search(answer) is None:
        return False
    written, reference, value = read_as_written(answer), read_as_written(gold), read_answer(gold)
    if written is None or reference is None or value is None:
        return False
    if written_key(written) == written_key(reference):
        return False
    formulas = formulas_in(problem)
    if _is_operation(written) and written_key(written) in formulas.wholes:
        return True
    spelled = {leaf.node.key for leaf in leaves_of(reference) if leaf.node is not None}
    golds = [leaf.node for leaf in leaves_of(value) if leaf.node is not None]
    try:
        with bounded():
            leaves = [leaf for side in _sides(answer, written) for leaf in leaves_of(side)]
            verdicts = [_is_copy(leaf, spelled, golds, formulas) for leaf in leaves]
    except (AnswerTooLargeError, RecursionError):
        return False
    # An answer that also states its value is evaluated.
    return bool(verdicts) and (all if value.kind == "scalar" else any)(verdicts)


def _sides(answer: str, written: ParsedAnswer) -> list[ParsedAnswer]:
    # The sides of an equation except names; any other answer is its own side.
    if "=" not in answer or not (written.kind == "relation" or written.label):
        return [written]
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
    node = side.node
    if node is None:
        return side.kind == "text"
    return (node.op == "sym" and not is_written_number(node)) or (
        node.op == "call" and node.args[0][:1] == "@"
    )


def _is_copy(
    leaf: ParsedAnswer, spelled: set[str], golds: list[ExprNode], formulas: Formulas
) -> bool:
    node = leaf.node
    if node is None or node.key in spelled:
        return False
    if is_value(node):
        return whole_key(leaf) in formulas.wholes
    for part in {part.key: part for part in _copied_parts(node, formulas)}.values():
        if part.key in spelled or (is_value(part) and part.key not in formulas.parts):
            continue
        written = {name for name in symbols(part) if name.startswith(WRITTEN)}
        numbers = {name: num(Fraction(name.removeprefix(WRITTEN))) for name in written}
        value = substitute(part, numbers)
        if any(same_function(value, gold) is True for gold in golds):
            return True
    return False


def _copied_parts(node: ExprNode, formulas: Formulas) -> Iterator[ExprNode]:
    for part in subtrees(node):
        if part.key in formulas.parts or _is_worded(part, formulas):
            yield part
        if part.op not in ("add", "mul"):
            continue
        terms = Counter(part.args)
        for op, members in formulas.joined:
            shared = terms & members if op == part.op and terms.keys() & members.keys() else None
            if shared and shared.total() > 1:
                yield (add if op == "add" else mul)(shared.elements())


def _is_worded(node: ExprNode, formulas: Formulas) -> bool:
    # True if a node is a sign for words of the problem: `gcd(12, 18)`, `2^{10} mod 7`.
    keys = formulas.parts | formulas.numbers
    is_sign = node.op == "call" and node.args[0] in ("gcd", "lcm", "mod")
    return is_sign and all(arg.key in keys for arg in node.args[1:])


def _is_operation(answer: ParsedAnswer) -> bool:
    if answer.kind in ("text", "union", "cap", "setminus"):
        return True
    if answer.relation is not None and not answer.items:
        return answer.relation[0] != "!=" and answer.node is None
    nodes = [leaf.node for leaf in leaves_of(answer) if leaf.node is not None]
    return answer.node is None and not all(map(is_value, nodes))
