r"""Reader of extracted answers: a scalar, a container of answers, a relation or a text.

Containers and relations are split here, by tokens outside every bracket; the parser reads the rest.
"""

import re
from collections.abc import Sequence
from functools import lru_cache
from itertools import pairwise, product
from typing import Final

from flowzoo.reward.listed import names
from flowzoo.reward.math.clean import clean, pieces_of, rows_of, text_form
from flowzoo.reward.math.lists import (
    JOINTS,
    PERMUTED,
    are_claims,
    finite_union,
    is_condition,
    leaves,
    make_list,
    permute_tuples,
    separator,
)
from flowzoo.reward.math.matrices import in_components
from flowzoo.reward.math.parser import parse_scalar
from flowzoo.reward.math.phrases import phrase_form
from flowzoo.reward.math.points import bounded
from flowzoo.reward.math.probe import constant, same_function
from flowzoo.reward.math.sets import integers_of, is_over_integers, solved_range
from flowzoo.reward.math.sorts import read_sort
from flowzoo.reward.math.statements import builder_form
from flowzoo.reward.math.tokens import MathToken, MathTokens, significant, tokenize
from flowzoo.reward.math.tree import (
    MINUS_ONE,
    ZERO,
    AnswerSyntaxError,
    AnswerTooLargeError,
    ExprNode,
    ParsedAnswer,
    add,
    call,
    const,
    mul,
    neg,
    num,
    scalars,
    substitute,
    sym,
    symbols,
)
from flowzoo.reward.math.units import direction, read_unit
from flowzoo.reward.math.vocabulary import DENIED, HEDGED, is_function, is_word


def _text(tokens: Sequence[MathToken]) -> str:
    return "".join(token.text for token in tokens)


# Most relative difference of two numbers joined by an approximate sign.
_ROUGHLY: Final = 0.05

# Relation signs by meaning.
RELATIONS: Final = {
    "=": "=", ":=": "=", "==": "=", "equiv": "mod", "<": "<", ">": ">", "<=": "<=", ">=": ">=",
    "=<": "<=", "=>": ">=", "leq": "<=", "geq": ">=", "!=": "!=", "neq": "!=", "in": "in",
    "approx": "~", "sim": "~",
}  # fmt: skip
# Label of a chain that computes a number, `5! = 120`, without a name.
CLOSED: Final = "#"
_NO_LABELS: Final = names("pi infty frac sqrt sum prod int lim begin e i oo infinity")
_FIGURES: Final = names("angle triangle overline overrightarrow vec hat widehat mathbf")
_MEASURING: Final = names("sin cos tan cot sec csc det gcd lcm arg deg dim rank max min mod")
# Letters that are functions before a bracket in names of quantities.
_VALUED: Final = frozenset("fghEFGHPV")
_WORDS = re.compile(r"[^\W\d_]+(?:-[^\W\d_]+)*|\d+")
# Words in the name of a value that do not tell it from others.
_FILLERS: Final = names("a an the is are at of when its it has equals to value")
_SHORT_NAMES: Final = {"maximum": "max", "minimum": "min"}


def _is_measured(node: ExprNode) -> bool | None:
    # True for values of functions, and lengths, angles and areas between points in capitals, with
    # operations between them; None for numbers, False for expressions of unknowns, whose equation
    # is to be solved.
    op, args = node.op, node.args
    if op in ("num", "const"):
        return None
    if op == "bind":
        return False
    if op == "sym":
        is_figure = args[0].partition("(")[0] in _FIGURES
        return is_figure or (len(args[0]) > 1 and args[0].isupper())
    if op == "call":
        name = args[0].lstrip("@").partition("_")[0].rstrip("'")
        if args[0][0] == "@":
            return (len(name) > 1 or name in _VALUED) and name not in symbols(node)
        is_modulus = args[0] == "abs" and args[1].key in ("z", "w")
        return args[0] in _MEASURING or is_modulus or (args[0] == "abs" and _is_measured(args[1]))
    bases = [x.args[0] if x.op == "pow" else x for x in args] if op == "mul" else []
    letters = [x.key for x in bases if x.op == "sym" and len(x.key) == 1]
    are_points = len(letters) > 1 and all(map(str.isupper, letters))
    is_angle = letters == ["m"] and "angle(" in node.key
    inner = args
    if are_points or is_angle:
        inner = [x for x, base in zip(args, bases, strict=True) if base.key not in letters]
    verdicts = {_is_measured(x) for x in inner}
    return False not in verdicts and (True in verdicts or len(inner) < len(args) or None)


def _consistent(nodes: Sequence[ExprNode | None], tolerance: float = 0.0) -> bool:
    # True if all sides without symbols are equal; within `tolerance` if there is one.
    closed = [node for node in nodes if node is not None and not symbols(node)]
    if not tolerance:
        return all(same_function(closed[0], node) is True for node in closed[1:])
    values = [constant(node) for node in closed]
    return all(
        x is not None and y is not None and abs(x - y) <= tolerance * max(abs(x), abs(y))
        for x, y in product(values[:1], values[1:])
    )


MAX_CHARS: Final = 2_000
MAX_DIGITS: Final = 256
MAX_ITEMS: Final = 256
_CACHED_CHARS: Final = 256
_PLAIN = re.compile(r"-?\d{1,15}", re.ASCII)
_DIGITS = re.compile(rf"\d{{{MAX_DIGITS + 1}}}")
_GROUPED = re.compile(r"\d,\d{3}(?!\d)")
_SET_OPS: Final = {"cup": "union", "cap": "cap", "setminus": "setminus"}


def read_answer(answer: str) -> ParsedAnswer | None:
    """The meaning of an extracted answer, or None if it exceeds a bound."""
    # Never raises on any text; time depends only on its length, which is bounded.
    if len(answer) > _CACHED_CHARS:
        return _read(answer)
    return _read_cached(answer)


@lru_cache(maxsize=16_384)
def _read_cached(answer: str) -> ParsedAnswer | None:
    return _read(answer)


def _read(answer: str, thousands: bool = True, as_written: bool = False) -> ParsedAnswer | None:
    answer = answer.strip()
    if not as_written and _PLAIN.fullmatch(answer):
        return ParsedAnswer("scalar", answer, num(int(answer)))
    if len(answer) > MAX_CHARS or _DIGITS.search(answer):
        return None
    cleaned = clean(answer)
    text, source = text_form(cleaned), None
    if answer.strip("$ ").startswith("\\text") and cleaned[:1] == "0" and cleaned[1:].isdigit():
        return ParsedAnswer("text", text)  # a text keeps its zeros
    try:
        if not as_written:
            if (of_sort := read_sort(cleaned)) is None and (phrase := phrase_form(cleaned)):
                cleaned, text = phrase, text_form(phrase)
                of_sort = read_sort(phrase)
            if of_sort is not None:
                return of_sort._replace(text=of_sort.text or text)
        if "cases" in cleaned and (rows := pieces_of(cleaned)):
            parts = [tuple(_read(x) or ParsedAnswer("text", x) for x in row) for row in rows]
            read = tuple(ParsedAnswer("seq", items=items, shape="cases") for items in parts)
            return ParsedAnswer("set", text, items=read)
        if whole := PERMUTED.fullmatch(cleaned):
            return permute_tuples(_read(whole[1]), text)
        source = tokenize(
            rows_of(cleaned) or cleaned if "\\begin" in cleaned else cleaned, thousands
        )
        if source is None or not source.tokens:
            return ParsedAnswer("text", text, shape="broken")
        with bounded():
            answer_read = _Reader(source._replace(as_written=as_written)).read(
                0, len(source.tokens)
            )
    except AnswerSyntaxError:
        builder = builder_form(source) if source is not None and cleaned[:1] == "\\" else None
        return ParsedAnswer("text", builder or text)
    except (AnswerTooLargeError, RecursionError):
        return None
    return answer_read._replace(text=text)


def read_as_list(answer: str) -> ParsedAnswer | None:
    """The meaning with `1,234` read as the list of 1 and 234; None if it is no list then."""
    listed = _read(answer, thousands=False) if _GROUPED.search(answer) else None
    return listed if listed is not None and listed.kind in ("list", "set") else None


def read_as_written(answer: str) -> ParsedAnswer | None:
    """The meaning with numbers as symbols, so that nothing is computed."""
    return _read(answer, as_written=True)


class _Reader:
    """Reader of slices of one token sequence: lists, containers, relations, scalars."""

    def __init__(self, source: MathTokens) -> None:
        self.source, self.tokens, self.partner = source, source.tokens, source.partner
        self.is_product, self.is_listed = source.as_written, False

    def related(self, start: int, end: int, at: list[int]) -> ParsedAnswer:
        # The meaning of a slice with relation signs at the indices `at`.
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
        # `x \equiv 1, 5 \pmod 6`: the residues, each with the modulus.
        start, end = right
        at = next((i for i in range(start, end) if self.tokens[i].text in ("bmod", "mod")), end)
        stop = at
        if at > start and self.tokens[at - 1].text == "(" and self.partner[at - 1] == end - 1:
            stop, end = at - 1, end - 1
        name = self._label(*left)
        if not name or stop <= start or at + 1 >= end:
            raise AnswerSyntaxError
        modulus = parse_scalar(self.source, at + 1, end)
        residues = leaves([self.read(start, stop)])
        parts = [
            ParsedAnswer(
                "seq",
                items=scalars(call("mod", [x.node, modulus]), modulus),
                shape="mod",
                label=name,
            )
            for x in residues
            if x.node is not None
        ]
        if len(parts) < len(residues):
            raise AnswerSyntaxError
        return make_list(parts, flat=False)

    def _sides(self, start: int, end: int, at: list[int]) -> list[tuple[int, int]]:
        bounds = [start - 1, *at, end]
        sides: list[tuple[int, int]] = []
        for a, b in pairwise(bounds):
            inside = [idx for idx in range(a + 1, b) if self.tokens[idx].text != "\\\\"]
            sides.append((inside[0], inside[-1] + 1) if inside else (b, b))
        is_denied = any(self.tokens[b - 1].text in ("not", "neg", "lnot") for _, b in sides) or any(
            token.kind in "wt" and DENIED.search(token.text)
            for a, b in sides
            if b - a > 1
            for token in self.tokens[a:b]
        )
        if any(a >= b for a, b in sides) or len(sides) > 40 or is_denied:
            raise AnswerSyntaxError
        return sides

    def _label(self, start: int, end: int) -> str:
        # The text of a slice that is only a name, such as `x_1`, `f(x)`, `(p,q)`.
        text = "".join(token.text for token in self.tokens[start:end] if token.text not in "{}")
        first = self.tokens[start]
        if end == start + 1 and first.text in ("e", "i") and first.kind == "w":
            return first.text
        if end - start > 24 or len(text) > 48:
            return ""
        if first.text in ("(", "[") and self.partner[start] == end - 1:
            inner = self.tokens[start + 1 : end - 1]
            are_names = all(t.kind in "wcn" or t.text in ",_{}()" for t in inner)
            return text if are_names and "," in text and inner[0].kind in "wc" else ""
        idx = start
        if first.text in _FIGURES and 1 < end - start < 6:
            return text
        if first.text == "Delta" and end > start + 1 and self.tokens[start + 1].kind == "w":
            return text if self._label(start + 1, end) else ""
        if first.kind not in "wct" or first.text in _NO_LABELS:
            return ""
        if is_function(first.text) and end > start + 1:
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
        # True if the power at `idx` inverts or transposes a named matrix.
        exponent = (
            "".join(t.text for t in self.tokens[idx + 1 : idx + 5]).partition("}")[0].strip("{")
        )
        is_matrix = self.tokens[idx - 1].text.isupper() and exponent[:2] in ("-1", "T", "T=")
        return is_matrix and any(token.text == "begin" for token in self.tokens)

    def _node(self, start: int, end: int) -> ExprNode | None:
        if self.partner[start] == end - 1 and any(t.text == "," for t in self.tokens[start:end]):
            return None  # a tuple
        try:
            return parse_scalar(self.source, start, end)
        except AnswerSyntaxError:
            return None

    def is_name(self, start: int, end: int) -> bool:
        # True if a slice is one plain name, such as `x`, `x_1` or `\theta`.
        name = self._label(start, end)
        return bool(name) and not any(token.spaced for token in self.tokens[start + 1 : end])

    def _equality(self, sides: list[tuple[int, int]]) -> ParsedAnswer:
        # `x = value`, `value = x`, a chain that computes a value, or an equation.
        # A chain has a value only if all its sides can be read, the ones without symbols are equal
        # and none repeats its name: `10^{400} = 3`, `x = 1 | x = 3` and `1 = 1` have none.
        nodes = [self._node(*side) for side in sides]
        relation = None
        if len(sides) == 2 and nodes[0] is not None and nodes[1] is not None:
            relation = ("=", add((nodes[0], neg(nodes[1]))))
        label = self._label(*sides[0]) or self.measure(*sides[0], nodes[0])
        first = nodes[0]
        if first and not symbols(first) and "@" not in first.key and first.key not in ("#e", "#i"):
            label = ""  # `\Gamma(3) = 3` is right or wrong
        if len(sides) > 2 and (several := self._index_labels(sides[:-1])):
            value = self.read(*sides[-1])
            return ParsedAnswer("list", items=tuple(value._replace(label=x) for x in several))
        last = self._label(*sides[-1])
        is_reversed = bool(last) and last not in "ei" and not label and len(sides) == 2
        if label or is_reversed:
            rest = nodes[1:] if label else nodes[:-1]
            name, side = (label, sides[-1]) if label else (last, sides[0])
            value = self.read(*side)
            inner = rest[:-1] if label else ()
            is_read = not any(node is None for node in inner)
            is_about = any(node is not None and name in symbols(node) for node in rest)
            if is_read and not is_about and not value.label and _consistent(rest):
                return value._replace(label=name, relation=relation)
            return ParsedAnswer("relation", label=name, relation=relation)
        free = any(node is None or symbols(node) for node in nodes[:-1])
        texts = {_text(self.tokens[start:end]) for start, end in sides}
        is_echo = len(texts) < len(sides)  # as in `1 = 1`
        if not free and not is_echo and _consistent(nodes):
            value = self.read(*sides[-1])
            if value.kind == "scalar" and value.node is not None and not symbols(value.node):
                return value._replace(label=CLOSED, relation=self._decomposition(sides))
        is_chain = len(sides) > 2 and None not in nodes[:-1]
        if relation is not None and symbols(relation[1]) and nodes[0] and nodes[1]:
            is_chain = same_function(nodes[0], nodes[1]) is True  # an identity
        # The last side counts if the chain is a reference answer.
        items = (self.read(*sides[-1]),) if is_chain else ()
        return ParsedAnswer("relation", items=items, relation=relation)

    def _index_labels(self, sides: Sequence[tuple[int, int]]) -> list[str]:
        # The names of `x_1 = x_2 = 3`, which are of one letter with different indices; else none.
        labels = [self._label(*side) for side in sides]
        letters = {name.partition("_")[0] for name in labels}
        is_one = len(letters) == 1 and all("_" in name for name in labels)
        return labels if is_one and len(set(labels)) == len(labels) else []

    def _decomposition(self, sides: Sequence[tuple[int, int]]) -> tuple[str, ExprNode] | None:
        # The right side of `7 = 4 + 2 + 1` as written, if it is a sum or product.
        start, end = sides[0]
        if len(sides) != 2 or end != start + 1 or self.source.as_written:
            return None
        node = parse_scalar(self.source._replace(as_written=True), *sides[1])
        factors = [x for x in node.args if x.op != "pow" or x.args[1] != MINUS_ONE]
        is_whole = node.op == "add" or (node.op == "mul" and len(factors) > 1)
        return (CLOSED, node) if is_whole else None

    def measure(self, start: int, end: int, node: ExprNode | None) -> str:
        # The text of a slice that names a quantity without being a symbol: `|AB|`, `\cos A`.
        is_named = node is not None and end - start <= 60 and _is_measured(node) is True
        text = _text(self.tokens[start:end]).replace("[", "(").replace("]", ")")
        return text if is_named else ""

    def _inequality(self, sides: list[tuple[int, int]], ops: list[str]) -> ParsedAnswer:
        nodes = [self._node(*side) for side in sides]
        if len(sides) == 2:
            return self._single(sides, nodes, ops[0])
        falling = [op for op in ops if op in ("<", "<=")]
        rising = [op for op in ops if op in (">", ">=")]
        name = self._label(*sides[1])
        if len(sides) != 3 or not name or (len(falling) != 2 and len(rising) != 2):
            steps = zip(pairwise(sides), pairwise(nodes), ops, strict=True)
            parts = [self._single(list(ends), both, op) for ends, both, op in steps]
            label = parts[0].label if all(map(is_condition, parts)) else ""
            return ParsedAnswer("cap", items=tuple(parts), label=label)
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
        minus, infinity = scalars(neg(const("inf")), const("inf"))
        for idx, shape in enumerate(("(]", "[)")):
            name, other = self._label(*sides[idx]), (left, right)[1 - idx]
            if op == "!=" or not name or other is None or name in symbols(other):
                continue
            bound = self.read(*sides[1 - idx])
            ends = (bound, infinity) if idx else (minus, bound)
            shape = shape if op == "<=" else "()"
            return ParsedAnswer("seq", "", None, ends, shape, "", name, True, 0, relation)
        if relation is None:
            raise AnswerSyntaxError
        return ParsedAnswer("relation", relation=relation)

    def read(self, start: int, end: int) -> ParsedAnswer:
        # The meaning of a slice: a list, or one item.
        while end > start and self.tokens[end - 1].text in (".", ",", ";") and end - start > 1:
            if self.tokens[end - 2].text == "." == self.tokens[end - 1].text:
                raise AnswerSyntaxError  # `7, ...` goes on
            end -= 1
        if start >= end:
            raise AnswerSyntaxError
        top = self.source.top(start, end)
        cuts = [(idx, mark) for idx in top if (mark := self._mark(idx, end))]
        signs = [idx for idx in top if self.tokens[idx].text == "equiv"]
        if cuts and len(signs) == 1 and signs[0] < cuts[0][0]:
            return self._congruence((start, signs[0]), (signs[0] + 1, end))
        if cuts:
            return self.listed(start, end, cuts)
        return self.item(start, end, top)

    def _mark(self, idx: int, end: int) -> str:
        # What the token at `idx` separates items by; the end of a row does, unless a chain goes on.
        if self.tokens[idx].text == "\\\\" and idx + 1 < end:
            return "" if self.tokens[idx + 1].text in RELATIONS else ","
        return separator(self.tokens[idx])

    def listed(self, start: int, end: int, cuts: list[tuple[int, str]]) -> ParsedAnswer:
        marks, self.is_listed = {mark for _, mark in cuts}, True
        if len(marks) > 1:
            strong = ";" if ";" in marks else "and"
            groups = [idx for idx, mark in cuts if mark == strong]
            parts = self.parts(start, end, groups)
            nested = [self.read(a, b) for a, b in parts]
            is_assignment = all(part.label or part.kind == "list" for part in nested)
            if strong == ";" or (is_assignment and any(part.label for part in leaves(nested))):
                return make_list(nested, flat=False)
        parts = self.parts(start, end, [idx for idx, _ in cuts])
        answer = make_list([self.read(a, b) for a, b in parts], flat=True)
        if (integers := integers_of(answer.items)) is not None:
            return integers
        joints = {self.tokens[idx].text.strip(" ,;").lower() for idx, _ in cuts}
        senses = {JOINTS.get(joint, ",") for joint in joints}
        is_stated = bool(joints & {"land", "lor"}) or are_claims(answer.items)
        if len(senses) > 1:
            senses.discard(",")
        if len(senses) == 1 and (is_stated or all(map(is_condition, answer.items))):
            return answer._replace(shape=senses.pop())
        return answer

    def parts(self, start: int, end: int, cuts: Sequence[int]) -> list[tuple[int, int]]:
        # Non-empty slices between cuts; only an Oxford comma may leave an empty one.
        bounds = [start - 1, *cuts, end]
        slices = [(a + 1, b) for a, b in pairwise(bounds) if b > a + 1]
        if not slices:
            raise AnswerSyntaxError
        if len(slices) > MAX_ITEMS:
            raise AnswerTooLargeError
        return slices

    def item(self, start: int, end: int, top: list[int]) -> ParsedAnswer:
        arrows = [i for i in top if self.tokens[i].text in ("Rightarrow", "Leftrightarrow")]
        if arrows:
            return self.derived(start, end, arrows)
        relations = [idx for idx in top if self.is_operator(idx, RELATIONS)]
        if (named := self.named(start, end)) is not None:
            return named
        if len(relations) > 1:
            slices = self.slices(start, end, top, relations)
            if len(slices) > 1:
                return make_list([self.read(a, b) for a, b in slices], flat=True)
        if relations:
            return self.related(start, end, relations)
        operations = [
            idx
            for idx in top
            if self.is_operator(idx, _SET_OPS)
            or [t.text for t in self.tokens[max(idx - 1, 0) : idx + 2]] == ["\\}", "times", "\\{"]
        ]
        if operations:
            return self.set_operation(start, end, operations[-1])
        colons = [idx for idx in top if self.tokens[idx].text == ":"]
        if colons and start < colons[0] and colons[-1] < end - 1:
            parts = self.parts(start, end, colons)
            return ParsedAnswer("ratio", items=tuple(self.scalar(a, b) for a, b in parts))
        if self.partner[start] == end - 1:
            return self.bracket(start, end)
        if end == start + 1 and self.tokens[start].text == "varnothing":
            return ParsedAnswer("set")
        return self.scalar(start, end)

    def slices(
        self, start: int, end: int, top: Sequence[int], relations: Sequence[int]
    ) -> list[tuple[int, int]]:
        # Slices of adjacent relations; one slice for a chain.
        slices: list[tuple[int, int]] = []
        seen = {_text(self.tokens[start : relations[0]])}
        for left, right in pairwise(relations):
            inside = [idx for idx in top if left < idx < right]
            if cut := self.hard_cut(inside) or self.soft_cut(inside, right, seen):
                slices.append((start, cut[0]))
                start = cut[1]
                seen.add(_text(self.tokens[start:right]))
        return [*slices, (start, end)]

    def hard_cut(self, inside: Sequence[int]) -> tuple[int, int] | None:
        # The end and the start of relations at the end of a row, at a bar or at a wide space.
        inner = [(idx, self.tokens[idx].text) for idx in inside[1:-1]]
        if row := next((idx for idx, text in inner if text == "\\\\"), 0):
            return row, row + 1
        bars = [idx for idx, text in inner if text in ("|", "parallel")]
        if len(bars) in (1, 2) and bars[-1] - bars[0] == len(bars) - 1:
            return bars[0], bars[-1] + 1
        return next(((idx, idx) for idx in inside[1:] if self.tokens[idx].spaced == 2), None)

    def soft_cut(self, inside: Sequence[int], right: int, seen: set[str]) -> tuple[int, int] | None:
        # The same at white space before a name; after a command it only ends that.
        for idx in inside[1:]:
            is_again = _text(self.tokens[idx:right]) in seen
            is_apart = self.tokens[idx].spaced and (is_again or self.tokens[idx - 1].kind != "c")
            if is_apart and self.is_name(idx, right):
                if is_again:
                    return idx, idx
                node = self._node(inside[0], idx)
                if node is not None and not symbols(node):
                    return idx, idx
        return None

    def named(self, start: int, end: int) -> ParsedAnswer | None:
        # A value with words before it as its name: `Paolo: 18`, in lists also `\text{mean } 5`.
        cut = start
        while cut < end and self._is_naming(cut, start):
            cut += 1
        if cut == start:
            return None
        name_words = [
            w for token in self.tokens[start:cut] for w in _WORDS.findall(token.text.lower())
        ]
        *terms, last = (_SHORT_NAMES.get(word, word) for word in name_words)
        terms = [term for term in terms if term not in _FILLERS]
        label = " ".join(terms if last in _FILLERS and last != "a" else [*terms, last])
        is_apart = cut < end and self.tokens[cut].text in (":", "=")
        is_marked = is_apart or self.tokens[cut - 1].text.endswith((":", " is", " are"))
        cut += is_apart
        if cut >= end or not (is_marked or self.is_listed) or HEDGED.search(label):
            return None
        value = self.read(cut, end)
        return value._replace(label=": ".join(filter(None, (label, value.label))))

    def _is_naming(self, idx: int, start: int) -> bool:
        token = self.tokens[idx]
        if token.kind not in "wtn":
            return False
        following = self.tokens[min(idx + 1, len(self.tokens) - 1)].text
        if token.kind == "n":  # `Sequence 1: 5`
            return idx > start and following == ":"
        longest = max(map(len, _WORDS.findall(token.text)), default=0)
        is_long = longest > 2 or (longest == 2 and token.kind == "t" and token.text in _FILLERS)
        name = token.text.replace(" ", "").strip(":-")
        is_name = is_word(name) or name.lower() in ("max", "min", "gcd", "lcm")
        return is_long and following not in ("_", "^", "(", "{", "\\{") and is_name

    def derived(self, start: int, end: int, arrows: Sequence[int]) -> ParsedAnswer:
        # `2x = 6 \Rightarrow x = 3`: the last part, if the ones before it hold with it.
        parts = [self.read(a, b) for a, b in self.parts(start, end, arrows)]
        result = parts[-1]
        for part in parts[:-1]:
            if part.relation is None or part.relation[0] != "=" or result.node is None:
                raise AnswerSyntaxError
            left = substitute(part.relation[1], {result.label: result.node})
            if not result.label or symbols(left) or same_function(left, ZERO) is not True:
                raise AnswerSyntaxError
        return result

    def is_operator(self, idx: int, table: dict[str, str]) -> bool:
        token = self.tokens[idx]
        return token.text in table and (token.kind == "p" or (token.kind == "c"))

    def bracket(self, start: int, end: int) -> ParsedAnswer:
        opening, closing = self.tokens[start].text, self.tokens[end - 1].text
        top = self.source.top(start + 1, end - 1)
        if not top:
            if opening in ("\\{", "{"):
                return ParsedAnswer("set")
            raise AnswerSyntaxError
        cuts = [idx for idx in top if self.tokens[idx].text in (",", ";")]
        if opening == "\\{" and (bar := self.such_that(top)):
            return self.built(start + 1, bar, end - 1)
        if any(self.tokens[idx].text in ("choose", "over") for idx in top):
            return self.scalar(start, end)
        if opening in ("{", "\\{"):
            inner = self.read(start + 1, end - 1)
            if opening == "{":
                is_set = inner.kind == "list" and inner.shape in ("", ",")  # words join no set
                return inner._replace(shape="{}") if is_set else inner
            items = inner.items if inner.kind == "list" else (inner,)
            return ParsedAnswer("set", items=items)
        if not cuts:
            if (opening, closing) not in (("(", ")"), ("[", "]")):
                raise AnswerSyntaxError
            return self.read(start + 1, end - 1)
        parts = self.parts(start + 1, end - 1, cuts)
        shape = "()" if opening == "langle" else opening + closing
        return ParsedAnswer("seq", items=tuple(self.read(a, b) for a, b in parts), shape=shape)

    def such_that(self, top: Sequence[int]) -> int:
        # Index of the bar or colon of `\{x \mid ...\}` among the tokens `top`; 0 for none.
        bars = [idx for idx in top[1:] if self.tokens[idx].text in ("|", ":")]
        is_one = len(bars) == 1 or (bars and bars[0] == top[1]) or (len(bars) % 2 == 1)
        return bars[0] if is_one else 0

    def built(self, start: int, bar: int, end: int) -> ParsedAnswer:
        # `\{x \mid x > 1\}` as its condition, `\{2k \mid k \in \mathbb{Z}\}` as a family.
        condition = self.read(bar + 1, end)
        parts = condition.items if condition.kind == "list" else (condition,)
        head = self.read(start, bar)
        if is_over_integers(condition):
            return ParsedAnswer("list", items=(head, condition))
        name = head.label if head.is_range else self.tokens[start].text
        is_named = head.is_range or bar == start + 1
        if not is_named or not all(is_condition(part) and part.label == name for part in parts):
            raise AnswerSyntaxError
        return condition._replace(label="", relation=None)

    def scalar(self, start: int, end: int) -> ParsedAnswer:
        quantity, last = read_unit(self.tokens, start, end), end
        start, end = quantity.start, quantity.end
        if start >= end:
            raise AnswerSyntaxError
        if any(t.text in ("pm", "mp") and t.kind == "c" for t in self.tokens[start:end]):
            signs = [parse_scalar(self.source, start, end, sign) for sign in (1, -1)]
            both = [ParsedAnswer("scalar", node=node, unit=quantity.unit) for node in signs]
            return ParsedAnswer("list", items=tuple(both))
        token = self.tokens[start]
        if end == start + 1 and token.kind in "wt" and is_word(token.text) and not self.is_product:
            node = sym(token.text)
        else:
            node = in_components(parse_scalar(self.source, start, end))
        if quantity.factor != 1:
            node = mul((num(quantity.factor), node))
        digits = significant(self.tokens[start:end])
        change = direction(self.tokens[end:last])
        return ParsedAnswer("scalar", "", node, (), change, quantity.unit, digits=digits)

    def set_operation(self, start: int, end: int, at: int) -> ParsedAnswer:
        left, right = self.read(start, at), self.read(at + 1, end)
        if self.tokens[at].text == "times":
            if len(left.items) * len(right.items) > MAX_ITEMS:
                raise AnswerTooLargeError
            pairs = product(left.items, right.items)
            members = tuple(ParsedAnswer("seq", items=pair, shape="()") for pair in pairs)
            return ParsedAnswer("set", items=members)
        kind = _SET_OPS[self.tokens[at].text]
        exact = finite_union(left, right) if kind == "union" else None
        if exact is not None:
            return exact
        if kind == "union":
            parts = [
                *(left.items if left.kind == "union" else (left,)),
                *(right.items if right.kind == "union" else (right,)),
            ]
            return ParsedAnswer("union", items=tuple(parts))
        return ParsedAnswer("cap" if kind == "cap" else "setminus", items=(left, right))
