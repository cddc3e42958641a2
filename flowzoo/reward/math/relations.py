"""Reading relations between expressions: equations, inequalities, memberships, congruences."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from itertools import pairwise
from typing import Final

from flowzoo.reward.listed import names
from flowzoo.reward.math.meaning import ParsedAnswer
from flowzoo.reward.math.numeric.probe import constant, same_function
from flowzoo.reward.math.parse import AnswerSyntaxError, parse_scalar
from flowzoo.reward.math.same.ranges import between, solved_range
from flowzoo.reward.math.tokens import MathTokens
from flowzoo.reward.math.tree import ExprNode, add, call, const, neg, symbols
from flowzoo.reward.math.vocabulary import is_function

_ROUGHLY: Final = 0.05
"""Relative difference up to which two numbers may be joined by an approximate sign."""

RELATIONS: Final = {
    "=": "=", ":=": "=", "==": "=", "equiv": "mod", "<": "<", ">": ">", "<=": "<=", ">=": ">=",
    "=<": "<=", "=>": ">=", "leq": "<=", "geq": ">=", "!=": "!=", "neq": "!=", "in": "in",
    "approx": "~", "sim": "~",
}  # fmt: skip
"""Relation signs, by what they mean."""
CLOSED: Final = "#"
"""Label of a chain that computes a number, `5! = 120`: it says nothing about any name."""
_NO_LABELS: Final = names("pi infty frac sqrt sum prod int lim begin e i oo infinity")
_FIGURES: Final = names("angle triangle overline overrightarrow vec widehat")
_MEASURING: Final = names("sin cos tan cot sec csc det gcd lcm arg deg dim rank max min")
_UNSOLVED: Final = names("sqrt ln log exp abs floor ceil frac")
_VALUED: Final = frozenset("fghEFGHPV")
"""Letters that are functions before a bracket in what names a quantity."""
_OPERATIONS: Final = names("+ - * / ( ) { } | [ ] cdot times frac div ^ : sqrt")


class RelationReader(ABC):
    """Reads slices of one token sequence that hold relations; the sides are read by `read`."""

    def __init__(self, source: MathTokens) -> None:
        """Read from `source`."""
        self.source, self.tokens, self.partner = source, source.tokens, source.partner

    @abstractmethod
    def read(self, start: int, end: int) -> ParsedAnswer:
        """The meaning of the tokens from `start` to `end`.

        Raises:
            AnswerSyntaxError: it has none.
        """

    def related(self, start: int, end: int, at: list[int]) -> ParsedAnswer:
        """The meaning of a slice with relation signs at the indices `at`."""
        ops = [RELATIONS[self.tokens[idx].text] for idx in at]
        sides = self._sides(start, end, at)
        if "in" in ops:
            if len(ops) != 1 or not self._label(*sides[0]):
                raise AnswerSyntaxError
            name = self._label(*sides[0])
            return self.read(*sides[1])._replace(label=name, is_range="," not in name)
        if "mod" in ops:
            if len(ops) != 1:
                raise AnswerSyntaxError
            return self._congruence(*sides)
        if "~" in ops:
            first = ops.index("~")
            if not _consistent([self._node(*side) for side in sides], _ROUGHLY):
                raise AnswerSyntaxError
            if first == 0 and not self._label(*sides[0]):
                return self.read(*sides[0])
            if first > 0:
                return self.related(start, sides[first][1], at[:first])
            ops[0] = "="
        if all(op == "=" for op in ops):
            return self._equality(sides)
        return self._inequality(sides, ops)

    def _congruence(self, left: tuple[int, int], right: tuple[int, int]) -> ParsedAnswer:
        r"""`x \equiv 3 \pmod 5`: the residue and the modulus."""
        start, end = right
        at = next((i for i in range(start, end) if self.tokens[i].text in ("bmod", "mod")), end)
        stop = at
        if at > start and self.tokens[at - 1].text == "(" and self.partner[at - 1] == end - 1:
            stop, end = at - 1, end - 1
        name = self._label(*left)
        if not name or stop <= start or at + 1 >= end:
            raise AnswerSyntaxError
        residue = parse_scalar(self.source, start, stop)
        modulus = parse_scalar(self.source, at + 1, end)
        parts = (call("mod", [residue, modulus]), modulus)
        items = tuple(ParsedAnswer("scalar", node=part) for part in parts)
        return ParsedAnswer("seq", items=items, shape="mod", label=name)

    def _sides(self, start: int, end: int, at: list[int]) -> list[tuple[int, int]]:
        bounds = [start - 1, *at, end]
        sides = [self._trimmed(a + 1, b) for a, b in pairwise(bounds)]
        is_denied = any(self.tokens[b - 1].text in ("not", "neg", "lnot") for _, b in sides)
        if any(a >= b for a, b in sides) or len(sides) > 40 or is_denied:
            raise AnswerSyntaxError
        return sides

    def _trimmed(self, start: int, end: int) -> tuple[int, int]:
        """A side without the row ends of an aligned chain."""
        while start < end and self.tokens[start].text == "\\\\":
            start += 1
        while start < end and self.tokens[end - 1].text == "\\\\":
            end -= 1
        return start, end

    def _label(self, start: int, end: int) -> str:
        """The text of a slice that only names something, such as `x_1`, `f(x)`, `(p,q)`."""
        text = "".join(token.text for token in self.tokens[start:end])
        first = self.tokens[start]
        if end == start + 1 and first.text in ("e", "i") and first.kind == "w":
            return first.text
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
                is_power = token.text == "^" and not self._is_of_matrix(idx)
                idx = max(self.partner[idx + 1], idx + 1) + 1
                if is_power and (idx >= end or self.tokens[idx].text != "("):
                    return ""
            elif token.text == "'":
                idx += 1
            elif token.text == "(" and self.partner[idx] == end - 1:
                inside = [inner.text for inner in self.tokens[idx + 1 : end - 1]]
                is_value = first.text in _VALUED or len(first.text) > 1
                is_point = not any(mark in inside for mark in ("+", "-", "*", "/", "^", "frac"))
                return text if first.text not in inside and (is_value or is_point) else ""
            elif token.text == ":" and idx + 1 < end:
                idx += 2
            elif token.kind in "wt" and first.kind in "wt" and token.spaced:
                idx += 1
            else:
                return ""
        return text

    def _is_of_matrix(self, idx: int) -> bool:
        """Whether the power at `idx` is an inverse or a transpose beside an explicit matrix."""
        exponent = (
            "".join(t.text for t in self.tokens[idx + 1 : idx + 5]).partition("}")[0].strip("{")
        )
        is_matrix = self.tokens[idx - 1].text.isupper() and exponent[:2] in ("-1", "T", "T=")
        return is_matrix and any(token.text == "begin" for token in self.tokens)

    def _node(self, start: int, end: int) -> ExprNode | None:
        try:
            return parse_scalar(self.source, start, end)
        except AnswerSyntaxError:
            return None

    def is_name(self, start: int, end: int) -> bool:
        r"""Whether a slice is one plain name, such as `x`, `x_1` or `\theta`."""
        name = self._label(start, end)
        return bool(name) and not any(token.spaced for token in self.tokens[start + 1 : end])

    def is_closed(self, start: int, end: int) -> bool:
        """Whether a slice is an expression without symbols."""
        node = self._node(start, end)
        return node is not None and not symbols(node)

    def _equality(self, sides: list[tuple[int, int]]) -> ParsedAnswer:
        r"""`x = value`, `value = x`, a chain that computes a value, or an equation.

        A chain has a value only if all its sides can be read, the ones without symbols are equal
        and none repeats its name: `10^{400} = 3`, `x = 1 | x = 3` and `1 = 1` have none.
        """
        nodes = [self._node(*side) for side in sides]
        relation = None
        if len(sides) == 2 and nodes[0] is not None and nodes[1] is not None:
            relation = ("=", add((nodes[0], neg(nodes[1]))))
        label = self._label(*sides[0]) or self.measure(*sides[0])
        if nodes[0] is not None and _is_computable(nodes[0]):
            label = ""  # `\Gamma(3) = 3` is right or wrong
        last = self._label(*sides[-1])
        is_reversed = bool(last) and last not in "ei" and not label and len(sides) == 2
        if label or is_reversed:
            rest = nodes[1:] if label else nodes[:-1]
            name, side = (label, sides[-1]) if label else (last, sides[0])
            found = self.read(*side)
            inner = rest[:-1] if label else ()
            is_read = not any(node is None for node in inner)
            is_about = any(node is not None and name in symbols(node) for node in rest)
            if is_read and not is_about and not found.label and _consistent(rest):
                return found._replace(label=name, relation=relation)
            return ParsedAnswer("relation", label=name, relation=relation)
        free = any(node is None or symbols(node) for node in nodes[:-1])
        if not free and not self._is_echo(sides) and _consistent(nodes):
            found = self.read(*sides[-1])
            if found.kind == "scalar" and found.node is not None and not symbols(found.node):
                return found._replace(label=CLOSED)
        is_chain = len(sides) > 2 and None not in nodes[:-1]
        # The last side counts where the chain is a reference answer.
        items = (self.read(*sides[-1]),) if is_chain else ()
        return ParsedAnswer("relation", items=items, relation=relation)

    def _is_echo(self, sides: Sequence[tuple[int, int]]) -> bool:
        """Whether a side is repeated, as in `1 = 1`."""
        texts = ["".join(t.text for t in self.tokens[start:end]) for start, end in sides]
        return len(set(texts)) < len(texts)

    def measure(self, start: int, end: int) -> str:
        r"""The text of a slice that names a quantity without being a symbol: `|AB|`, `\cos A`.

        Values of functions, and lengths, angles and areas between points in capitals, with
        operations between them; not expressions of unknowns, whose equation is to be solved.
        """
        idx, found = start, False
        while idx < end:
            token = self.tokens[idx]
            following = self.tokens[idx + 1] if idx + 1 < end else None
            if token.kind in "wt" and token.text.isupper() and 2 <= len(token.text) <= 6:
                found = True
            elif token.kind == "c" and token.text in _FIGURES:
                found = True
                idx = max(self.partner[idx + 1], idx + 1) if following is not None else idx
            elif token.text in _MEASURING and following is not None:
                found, idx = True, self._behind_argument(idx + 1, end) - 1
            elif token.kind in "wct" and following is not None and following.text == "(":
                close_at = self.partner[idx + 1]
                inside = [inner.text for inner in self.tokens[idx + 2 : close_at]]
                is_value = len(token.text) > 1 or token.text in _VALUED
                if token.text in _UNSOLVED or not is_value or token.text in inside:
                    return ""
                found, idx = True, close_at
            elif token.text == "|" and following is not None and following.text in ("z", "w"):
                found, idx = True, idx + 1
            elif (
                (token.text == "m" and following is not None and following.text == "angle")
                or token.kind == "n"
                or token.text in _OPERATIONS
            ):
                pass
            else:
                return ""
            idx += 1
        text = "".join(token.text for token in self.tokens[start:end])
        return text if found and end - start <= 60 else ""

    def _behind_argument(self, idx: int, end: int) -> int:
        """Index behind the argument of a function that starts here."""
        while idx < end and self.tokens[idx].text in ("^", "_"):
            idx = max(self.partner[idx + 1], idx + 1) + 1 if idx + 1 < end else end
        if idx < end and self.partner[idx] > idx:
            return self.partner[idx] + 1
        while idx < end and (self.tokens[idx].kind in "nwc") and self.tokens[idx].text != "cdot":
            idx += 1
        return idx

    def _inequality(self, sides: list[tuple[int, int]], ops: list[str]) -> ParsedAnswer:
        nodes = [self._node(*side) for side in sides]
        if len(sides) == 2:
            return self._single(sides, nodes, ops[0])
        falling = [op for op in ops if op in ("<", "<=")]
        rising = [op for op in ops if op in (">", ">=")]
        name = self._label(*sides[1])
        if len(sides) == 3 and not name and (inside := between(nodes, ops)):
            return inside
        if len(sides) != 3 or not name or (len(falling) != 2 and len(rising) != 2):
            raise AnswerSyntaxError
        low, high = self.read(*sides[0]), self.read(*sides[2])
        if rising:
            low, high, ops = high, low, ops[::-1]
        shape = ("[" if "=" in ops[0] else "(") + ("]" if "=" in ops[1] else ")")
        return ParsedAnswer("seq", items=(low, high), shape=shape, label=name, is_range=True)

    def _single(
        self, sides: list[tuple[int, int]], nodes: Sequence[ExprNode | None], op: str
    ) -> ParsedAnswer:
        left, right = nodes
        relation = None
        if op in (">", ">="):
            left, right, op, sides = right, left, op.replace(">", "<"), sides[::-1]
        if left is not None and right is not None:
            relation = (op, add((left, neg(right))))
            solved = solved_range(left, right, op)
            if solved is not None:
                return solved._replace(relation=relation)
        infinity = ParsedAnswer("scalar", node=const("inf"))
        minus = ParsedAnswer("scalar", node=neg(const("inf")))
        for idx in (0, 1):
            name, other = self._label(*sides[idx]), (left, right)[1 - idx]
            if op == "!=" or not name or other is None or name in symbols(other):
                continue
            bound = self.read(*sides[1 - idx])
            closed = op == "<="
            if idx == 0:
                shape, ends = ("(]" if closed else "()"), (minus, bound)
            else:
                shape, ends = ("[)" if closed else "()"), (bound, infinity)
            return ParsedAnswer("seq", "", None, ends, shape, "", name, True, 0, relation)
        if relation is None:
            raise AnswerSyntaxError
        return ParsedAnswer("relation", relation=relation)


def _is_computable(node: ExprNode) -> bool:
    """Whether a left-hand side has a value of its own, so that it names nothing."""
    return not symbols(node) and "@" not in node.key and node.key not in ("#e", "#i")


def _consistent(nodes: Sequence[ExprNode | None], tolerance: float = 0.0) -> bool:
    """Whether all sides without symbols are equal; within `tolerance` if there is one."""
    closed = [node for node in nodes if node is not None and not symbols(node)]
    for node in closed[1:]:
        if not tolerance:
            if same_function(closed[0], node) is not True:
                return False
            continue
        value, first = constant(node), constant(closed[0])
        if value is None or first is None:
            return False
        if abs(value - first) > tolerance * max(abs(value), abs(first)):
            return False
    return True
