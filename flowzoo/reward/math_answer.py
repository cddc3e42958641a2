r"""What an extracted answer means: a scalar, a container of answers, a relation or a text.

Containers and relations are split here, by tokens outside every bracket; what is left over goes to
the expression parser. Nothing is evaluated beyond exact rational arithmetic of bounded size: an
answer of more than 2,000 characters, 64 levels of brackets or 256 digits in a row is too big.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from fractions import Fraction
from functools import lru_cache
from itertools import pairwise
from typing import Final, Literal, NamedTuple

from flowzoo.reward.math_clean import clean, names, text_form
from flowzoo.reward.math_operands import is_function
from flowzoo.reward.math_parse import Unreadable, parse_scalar
from flowzoo.reward.math_probe import constant
from flowzoo.reward.math_tokens import Token, Tokens, significant, tokenize
from flowzoo.reward.math_tree import (
    Node,
    TooBig,
    add,
    call,
    const,
    mul,
    neg,
    num,
    rational,
    symbols,
)
from flowzoo.reward.math_units import read_unit

MAX_CHARS: Final = 2_000
MAX_DIGITS: Final = 256
MAX_ITEMS: Final = 256
_CACHED_CHARS: Final = 256
_ROUGHLY: Final = 0.05
"""Relative difference up to which two numbers may be joined by an approximate sign."""

Kind = Literal["scalar", "list", "set", "seq", "union", "cap", "setminus", "ratio", "relation",
               "text"]  # fmt: skip


class Answer(NamedTuple):
    """The meaning of an answer."""

    kind: Kind
    text: str = ""
    """Normal form as a text, of the whole answer only; a text's meaning."""
    node: Node | None = None
    """The expression of a scalar."""
    items: tuple[Answer, ...] = ()
    """Members of a container, in order."""
    shape: str = ""
    """Brackets of a `seq`: `()`, `[]`, `[)`, `(]`; of a list, `{}` if it stood in braces."""
    unit: str = ""
    """Unit of a scalar; `%` means that the value was divided by 100."""
    label: str = ""
    """Left-hand side, such as `x` in `x = 5`."""
    is_range: bool = False
    """Whether a `seq` was written as an inequality or a membership, so that it is no tuple."""
    digits: int = 0
    """Significant digits of a scalar written as one decimal; 0 for everything else."""
    relation: tuple[str, Node] | None = None
    """`(op, difference)` with op `=`, `<`, `<=` or `!=`, for a single relation."""


_PLAIN = re.compile(r"-?\d{1,15}", re.ASCII)
_DIGITS = re.compile(rf"\d{{{MAX_DIGITS + 1}}}")
_DATE = re.compile(r"\d{1,4}([-/])\d{1,2}\1\d{1,4}", re.ASCII)
_RELATIONS: Final = {
    "=": "=", ":=": "=", "==": "=", "equiv": "mod", "<": "<", ">": ">", "<=": "<=", ">=": ">=",
    "=<": "<=", "=>": ">=", "leq": "<=", "geq": ">=", "!=": "!=", "neq": "!=", "in": "in",
    "approx": "~", "sim": "~",
}  # fmt: skip
_SET_OPS: Final = {"cup": "union", "cap": "cap", "setminus": "setminus"}
_NO_LABELS: Final = names("pi infty frac sqrt sum prod int lim begin e i oo infinity")


def read_answer(answer: str) -> Answer | None:
    """The meaning of an extracted answer, or None where it is over one of the bounds.

    Never raises on any text; time grows with its length only, which is bounded.
    """
    if len(answer) > _CACHED_CHARS:
        return _read(answer)
    return _read_cached(answer)


@lru_cache(maxsize=16_384)
def _read_cached(answer: str) -> Answer | None:
    return _read(answer)


def _read(answer: str, thousands: bool = True) -> Answer | None:
    answer = answer.strip()
    if _PLAIN.fullmatch(answer):
        return Answer("scalar", answer, num(int(answer)))
    if len(answer) > MAX_CHARS or _DIGITS.search(answer):
        return None
    cleaned = clean(answer)
    text = text_form(cleaned)
    try:
        if _DATE.fullmatch(cleaned):
            return Answer("text", text)
        source = tokenize(cleaned, thousands)
        if source is None or not source.tokens:
            return Answer("text", text, shape="broken")
        found = _Reader(source).read(0, len(source.tokens))
    except Unreadable:
        return Answer("text", text)
    except (TooBig, RecursionError):
        return None
    return found._replace(text=text)


def read_as_list(answer: str) -> Answer | None:
    """The meaning with `1,234` read as the list of 1 and 234."""
    return _read(answer, thousands=False)


def is_list_like(answer: str) -> bool:
    """Whether commas in `answer` may separate items although they could group thousands."""
    return re.search(r"\d,\d{3}(?!\d)", answer) is not None


def decimal_comma(answer: str) -> Answer | None:
    """The number that `0,5` or `1.000,99` is where the comma is the decimal mark, or None."""
    match = re.fullmatch(r"\$?(-?\d{1,3}(?:\.\d{3})+|-?\d+),(\d+)\$?", answer.strip(), re.ASCII)
    if match is None or len(match[1]) + len(match[2]) > 40:
        return None
    value = Fraction(f"{match[1].replace('.', '')}.{match[2]}")
    return Answer("scalar", answer, num(value))


class _Reader:
    """Reads slices of one token sequence."""

    def __init__(self, source: Tokens) -> None:
        self.source, self.tokens, self.partner = source, source.tokens, source.partner

    def top(self, start: int, end: int) -> list[int]:
        """Indices of the tokens from `start` to `end` that stand outside every bracket."""
        found, idx, depth = [], start, 0
        while idx < end:
            token = self.tokens[idx]
            if token.kind == "c" and token.text in ("begin", "end"):
                depth += 1 if token.text == "begin" else -1
            if self.partner[idx] > idx:
                if depth == 0:
                    found.append(idx)
                idx = self.partner[idx] + 1
                continue
            if depth == 0:
                found.append(idx)
            idx += 1
        return found

    def read(self, start: int, end: int) -> Answer:
        """The meaning of a slice: a list, or one item."""
        while end > start and self.tokens[end - 1].text in (".", ",", ";") and end - start > 1:
            if self.tokens[end - 2].text == "." == self.tokens[end - 1].text:
                raise Unreadable  # `7, ...` goes on
            end -= 1
        if start >= end:
            raise Unreadable
        top = self.top(start, end)
        cuts = [(idx, mark) for idx in top if (mark := _separator(self.tokens[idx]))]
        if cuts:
            return self.list(start, end, cuts)
        return self.item(start, end, top)

    def list(self, start: int, end: int, cuts: list[tuple[int, str]]) -> Answer:
        marks = {mark for _, mark in cuts}
        if len(marks) > 1:
            strong = ";" if ";" in marks else "and"
            groups = [idx for idx, mark in cuts if mark == strong]
            parts = self.parts(start, end, groups)
            nested = [self.read(a, b) for a, b in parts]
            is_assignment = all(part.label or part.kind == "list" for part in nested)
            if strong == ";" or (is_assignment and any(part.label for part in _leaves(nested))):
                return _listed(nested, flat=False)
        parts = self.parts(start, end, [idx for idx, _ in cuts])
        if len(parts) > MAX_ITEMS:
            raise TooBig
        return _listed([self.read(a, b) for a, b in parts], flat=True)

    def parts(self, start: int, end: int, cuts: Sequence[int]) -> list[tuple[int, int]]:
        """Non-empty slices between cuts; only an Oxford comma may leave an empty one."""
        bounds = [start - 1, *cuts, end]
        found = [(a + 1, b) for a, b in pairwise(bounds) if b > a + 1]
        if not found:
            raise Unreadable
        return found

    def item(self, start: int, end: int, top: list[int]) -> Answer:
        relations = [idx for idx in top if self.is_operator(idx, _RELATIONS)]
        if relations:
            return self.related(start, end, relations)
        operations = [idx for idx in top if self.is_operator(idx, _SET_OPS)]
        if operations:
            return self.set_operation(start, end, operations[-1])
        colons = [idx for idx in top if self.tokens[idx].text == ":"]
        if colons and start < colons[0] and colons[-1] < end - 1:
            parts = self.parts(start, end, colons)
            return Answer("ratio", items=tuple(self.scalar(a, b) for a, b in parts))
        if self.partner[start] == end - 1:
            return self.bracket(start, end)
        if end == start + 1 and self.tokens[start].text == "varnothing":
            return Answer("set")
        return self.scalar(start, end)

    def is_operator(self, idx: int, table: dict[str, str]) -> bool:
        token = self.tokens[idx]
        return token.text in table and (token.kind == "p" or (token.kind == "c"))

    def bracket(self, start: int, end: int) -> Answer:
        opening, closing = self.tokens[start].text, self.tokens[end - 1].text
        top = self.top(start + 1, end - 1)
        if not top:
            if opening in ("\\{", "{"):
                return Answer("set")
            raise Unreadable
        cuts = [idx for idx in top if self.tokens[idx].text in (",", ";")]
        if opening == "\\{" and len(top) > 2 and self.tokens[top[1]].text in ("|", ":"):
            condition = self.read(start + 3, end - 1)
            if condition.kind != "seq" or condition.label != self.tokens[start + 1].text:
                raise Unreadable
            return condition
        if any(self.tokens[idx].text == "choose" for idx in top):
            return self.scalar(start, end)
        if opening in ("{", "\\{"):
            inner = self.read(start + 1, end - 1)
            if opening == "{":
                return inner._replace(shape="{}") if inner.kind == "list" else inner
            items = inner.items if inner.kind == "list" else (inner,)
            return Answer("set", items=items)
        if not cuts:
            if (opening, closing) not in (("(", ")"), ("[", "]")):
                raise Unreadable
            return self.read(start + 1, end - 1)
        parts = self.parts(start + 1, end - 1, cuts)
        if len(parts) > MAX_ITEMS:
            raise TooBig
        shape = "()" if opening == "langle" else opening + closing
        return Answer("seq", items=tuple(self.read(a, b) for a, b in parts), shape=shape)

    def scalar(self, start: int, end: int) -> Answer:
        quantity = read_unit(self.tokens, start, end)
        start, end = quantity.start, quantity.end
        if start >= end:
            raise Unreadable
        if any(t.text in ("pm", "mp") and t.kind == "c" for t in self.tokens[start:end]):
            signs = [parse_scalar(self.source, start, end, sign) for sign in (1, -1)]
            both = [Answer("scalar", node=node, unit=quantity.unit) for node in signs]
            return Answer("list", items=tuple(both))
        node = parse_scalar(self.source, start, end)
        if quantity.factor != 1:
            node = mul((num(quantity.factor), node))
        digits = significant(self.tokens[start:end])
        return Answer("scalar", node=node, unit=quantity.unit, digits=digits)

    def set_operation(self, start: int, end: int, at: int) -> Answer:
        left, right = self.read(start, at), self.read(at + 1, end)
        kind = _SET_OPS[self.tokens[at].text]
        exact = _finite_union(left, right) if kind == "union" else None
        if exact is not None:
            return exact
        if kind == "union":
            parts = [
                *(left.items if left.kind == "union" else (left,)),
                *(right.items if right.kind == "union" else (right,)),
            ]
            return Answer("union", items=tuple(parts))
        return Answer("cap" if kind == "cap" else "setminus", items=(left, right))

    # relations

    def related(self, start: int, end: int, at: list[int]) -> Answer:
        ops = [_RELATIONS[self.tokens[idx].text] for idx in at]
        sides = self.sides(start, end, at)
        if "in" in ops:
            if len(ops) != 1 or not self.label(*sides[0]):
                raise Unreadable
            name = self.label(*sides[0])
            return self.read(*sides[1])._replace(label=name, is_range="," not in name)
        if "mod" in ops:
            if len(ops) != 1:
                raise Unreadable
            return self.congruence(*sides)
        if "~" in ops:
            first = ops.index("~")
            if not _consistent([self.node(*side) for side in sides], _ROUGHLY):
                raise Unreadable
            if first == 0 and not self.label(*sides[0]):
                return self.read(*sides[0])
            if first > 0:
                return self.related(start, sides[first][1], at[:first])
            ops[0] = "="
        if all(op == "=" for op in ops):
            return self.equality(sides)
        return self.inequality(sides, ops)

    def congruence(self, left: tuple[int, int], right: tuple[int, int]) -> Answer:
        r"""`x \equiv 3 \pmod 5`: the residue and the modulus."""
        start, end = right
        at = next((i for i in range(start, end) if self.tokens[i].text in ("bmod", "mod")), end)
        stop = at
        if at > start and self.tokens[at - 1].text == "(" and self.partner[at - 1] == end - 1:
            stop, end = at - 1, end - 1
        name = self.label(*left)
        if not name or stop <= start or at + 1 >= end:
            raise Unreadable
        residue = parse_scalar(self.source, start, stop)
        modulus = parse_scalar(self.source, at + 1, end)
        parts = (call("mod", [residue, modulus]), modulus)
        items = tuple(Answer("scalar", node=part) for part in parts)
        return Answer("seq", items=items, shape="mod", label=name)

    def sides(self, start: int, end: int, at: list[int]) -> list[tuple[int, int]]:
        bounds = [start - 1, *at, end]
        sides = [(a + 1, b) for a, b in pairwise(bounds)]
        is_denied = any(self.tokens[b - 1].text in ("not", "neg", "lnot") for _, b in sides)
        if any(a >= b for a, b in sides) or len(sides) > 40 or is_denied:
            raise Unreadable
        return sides

    def label(self, start: int, end: int) -> str:
        """The text of a slice that only names something, such as `x_1`, `f(x)`, `(p,q)`."""
        text = "".join(token.text for token in self.tokens[start:end])
        first = self.tokens[start]
        if end - start > 24 or len(text) > 48:
            return ""
        if first.text == "(" and self.partner[start] == end - 1:
            inner = self.tokens[start + 1 : end - 1]
            names = all(
                t.kind in "wc" or t.text in (",", "_", "{", "}") or t.kind == "n" for t in inner
            )
            return text if names and "," in text and inner[0].kind in "wc" else ""
        idx = start
        if first.text in ("angle", "triangle", "overline", "vec", "mathbf") and end - start > 1:
            return text
        if first.kind not in "wct" or first.text in _NO_LABELS or is_function(first.text):
            return ""
        idx += 1
        while idx < end:
            token = self.tokens[idx]
            if token.text in ("_", "^") and idx + 1 < end:
                is_power = token.text == "^"
                idx = max(self.partner[idx + 1], idx + 1) + 1
                if is_power and (idx >= end or self.tokens[idx].text != "("):
                    return ""
            elif token.text == "'":
                idx += 1
            elif token.text == "(" and self.partner[idx] == end - 1:
                return text
            elif token.text == ":" and idx + 1 < end:
                idx += 2
            elif token.kind in "wt" and first.kind in "wt" and token.spaced:
                idx += 1
            else:
                return ""
        return text

    def node(self, start: int, end: int) -> Node | None:
        try:
            return parse_scalar(self.source, start, end)
        except Unreadable:
            return None

    def equality(self, sides: list[tuple[int, int]]) -> Answer:
        """`x = value`, `value = x`, a chain that computes a value, or an equation."""
        nodes = [self.node(*side) for side in sides]
        relation = None
        if len(sides) == 2 and nodes[0] is not None and nodes[1] is not None:
            relation = ("=", add((nodes[0], neg(nodes[1]))))
        label = self.label(*sides[0])
        last = self.label(*sides[-1])
        is_reversed = bool(last) and not label and len(sides) == 2
        if label or is_reversed:
            rest = nodes[1:] if label else nodes[:-1]
            name, side = (label, sides[-1]) if label else (last, sides[0])
            found = self.read(*side)
            known = frozenset() if found.node is None else symbols(found.node)
            if name not in known and _consistent(rest):
                return found._replace(label=name, relation=relation)
            return Answer("relation", label=name, relation=relation)
        free = any(node is not None and symbols(node) for node in nodes[:-1])
        if not free and _consistent(nodes):
            found = self.read(*sides[-1])
            if found.kind == "scalar" and found.node is not None and not symbols(found.node):
                return found
        # The last side counts where the chain is a reference answer.
        return Answer("relation", items=(self.read(*sides[-1]),), relation=relation)

    def inequality(self, sides: list[tuple[int, int]], ops: list[str]) -> Answer:
        nodes = [self.node(*side) for side in sides]
        if len(sides) == 2:
            return self.single(sides, nodes, ops[0])
        falling = [op for op in ops if op in ("<", "<=")]
        rising = [op for op in ops if op in (">", ">=")]
        name = self.label(*sides[1])
        if len(sides) != 3 or not name or (len(falling) != 2 and len(rising) != 2):
            raise Unreadable
        low, high = self.read(*sides[0]), self.read(*sides[2])
        if rising:
            low, high, ops = high, low, ops[::-1]
        shape = ("[" if "=" in ops[0] else "(") + ("]" if "=" in ops[1] else ")")
        return Answer("seq", items=(low, high), shape=shape, label=name, is_range=True)

    def single(self, sides: list[tuple[int, int]], nodes: Sequence[Node | None], op: str) -> Answer:
        left, right = nodes
        relation = None
        if op in (">", ">="):
            left, right, op, sides = right, left, op.replace(">", "<"), sides[::-1]
        if left is not None and right is not None:
            relation = (op, add((left, neg(right))))
            if op != "!=" and left.op == "call" and left.args[0] == "abs" and rational(right):
                name, shape = left.args[1].key, "[]" if op == "<=" else "()"
                ends = (Answer("scalar", node=neg(right)), Answer("scalar", node=right))
                return Answer("seq", "", None, ends, shape, "", name, True, 0, relation)
        infinity = Answer("scalar", node=const("inf"))
        minus = Answer("scalar", node=neg(const("inf")))
        for idx in (0, 1):
            name, other = self.label(*sides[idx]), (left, right)[1 - idx]
            if op == "!=" or not name or other is None or name in symbols(other):
                continue
            bound = self.read(*sides[1 - idx])
            closed = op == "<="
            if idx == 0:
                shape, ends = ("(]" if closed else "()"), (minus, bound)
            else:
                shape, ends = ("[)" if closed else "()"), (bound, infinity)
            return Answer("seq", "", None, ends, shape, "", name, True, 0, relation)
        if relation is None:
            raise Unreadable
        return Answer("relation", relation=relation)


def _separator(token: Token) -> str:
    """`,`, `;` or `and` for a token that separates items; `and` stands for `or` too."""
    if token.kind == "p" and token.text in (",", ";"):
        return token.text
    if token.kind in "wt":
        word = token.text.strip(" ,;").lower()
        if word in ("and", "or") or (token.kind == "t" and word == "" and token.text):
            return "and" if word else ","
    return ""


def _leaves(answers: Sequence[Answer]) -> list[Answer]:
    return [leaf for part in answers for leaf in (part.items if part.kind == "list" else (part,))]


def _listed(parts: list[Answer], flat: bool) -> Answer:
    """A list; `n = 1, 2, 3` labels the whole, and `±` inside adds two items."""
    if flat:
        parts = [
            leaf
            for part in parts
            for leaf in (part.items if part.kind == "list" and not part.shape else (part,))
        ]
    if len(parts) == 1:
        return parts[0]
    first = parts[0]
    rest_plain = not any(part.label for part in parts[1:])
    if first.label and rest_plain and first.kind == "scalar":
        parts = [first._replace(label="", relation=None), *parts[1:]]
        return Answer("list", items=tuple(parts), label=first.label)
    return Answer("list", items=tuple(parts))


def _consistent(nodes: Sequence[Node | None], tolerance: float = 1e-9) -> bool:
    """Whether no two sides that are numbers disagree, as in `43 = 42`."""
    values = [constant(node) for node in nodes if node is not None]
    known = [value for value in values if value is not None]
    for value in known[1:]:
        if abs(value - known[0]) > tolerance * max(abs(value), abs(known[0])):
            return False
    return True


def _finite_union(left: Answer, right: Answer) -> Answer | None:
    """The union of two finite sets of scalars."""
    if left.kind not in ("set", "list") or right.kind not in ("set", "list"):
        return None
    if any(item.node is None for item in (*left.items, *right.items)):
        return None
    a = {item.node.key: item for item in left.items if item.node is not None}
    b = {item.node.key: item for item in right.items if item.node is not None}
    chosen = {**a, **b}
    return Answer("set", items=tuple(chosen[key] for key in sorted(chosen)))
