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
from typing import Final

from flowzoo.reward.math.clean import clean, text_form
from flowzoo.reward.math.equations import pieces_of, rows_of, split_relations
from flowzoo.reward.math.matrices import in_components
from flowzoo.reward.math.meaning import ParsedAnswer
from flowzoo.reward.math.numeric.probe import same_function
from flowzoo.reward.math.numeric.work import Bounded
from flowzoo.reward.math.parse import AnswerSyntaxError, parse_scalar
from flowzoo.reward.math.relations import RELATIONS, RelationReader
from flowzoo.reward.math.same.families import is_over_integers
from flowzoo.reward.math.tokens import MathToken, significant, tokenize
from flowzoo.reward.math.tree import (
    ZERO,
    AnswerTooLargeError,
    mul,
    num,
    substitute,
    symbols,
)
from flowzoo.reward.math.units import read_unit
from flowzoo.reward.math.words import date_form, spelled_out

MAX_CHARS: Final = 2_000
MAX_DIGITS: Final = 256
MAX_ITEMS: Final = 256
_CACHED_CHARS: Final = 256
_PLAIN = re.compile(r"-?\d{1,15}", re.ASCII)
_DIGITS = re.compile(rf"\d{{{MAX_DIGITS + 1}}}")
_DATE = re.compile(r"\d{1,4}([-/])\d{1,2}\1\d{1,4}", re.ASCII)
_SET_OPS: Final = {"cup": "union", "cap": "cap", "setminus": "setminus"}


def read_answer(answer: str) -> ParsedAnswer | None:
    """The meaning of an extracted answer, or None where it is over one of the bounds.

    Never raises on any text; time grows with its length only, which is bounded.
    """
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
    text = text_form(cleaned)
    try:
        if _DATE.fullmatch(cleaned):
            return ParsedAnswer("text", text)
        if len(cleaned) < 60 and cleaned[:1].isalnum():
            date = date_form(cleaned)
            if date:
                return ParsedAnswer("text", date)
            cleaned = spelled_out(cleaned)
        if "cases" in cleaned and (rows := pieces_of(cleaned)):
            read = [ParsedAnswer("seq", "", None, _both(*row), "cases") for row in rows]
            return ParsedAnswer("set", text, items=tuple(read))
        source = tokenize(
            rows_of(cleaned) or cleaned if "\\begin" in cleaned else cleaned, thousands
        )
        if source is None or not source.tokens:
            return ParsedAnswer("text", text, shape="broken")
        with Bounded():
            found = _Reader(source._replace(as_written=as_written)).read(0, len(source.tokens))
    except AnswerSyntaxError:
        return ParsedAnswer("text", text)
    except (AnswerTooLargeError, RecursionError):
        return None
    return found._replace(text=text)


def read_as_list(answer: str) -> ParsedAnswer | None:
    """The meaning with `1,234` read as the list of 1 and 234."""
    return _read(answer, thousands=False)


def read_as_written(answer: str) -> ParsedAnswer | None:
    """The meaning with numbers as symbols: no operation between them is carried out."""
    return _read(answer, as_written=True)


def is_list_like(answer: str) -> bool:
    """Whether commas in `answer` may separate items although they could group thousands."""
    return re.search(r"\d,\d{3}(?!\d)", answer) is not None


def decimal_comma(answer: str) -> ParsedAnswer | None:
    """The number that `0,5` or `1.000,99` is where the comma is the decimal mark, or None."""
    match = re.fullmatch(
        r"\$?(-?\d{1,3}(?:\.\d{3})+|-?\d+),(\d+)\$?", answer.replace("{,}", ",").strip(), re.ASCII
    )
    if match is None or len(match[1]) + len(match[2]) > 40:
        return None
    value = Fraction(f"{match[1].replace('.', '')}.{match[2]}")
    return ParsedAnswer("scalar", answer, num(value))


def _both(value: str, condition: str) -> tuple[ParsedAnswer, ParsedAnswer]:
    """Value and condition of a piece of a function."""
    return tuple(_read(part) or ParsedAnswer("text", part) for part in (value, condition))  # type: ignore[return-value]


class _Reader(RelationReader):
    """Reads slices of one token sequence."""

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

    def read(self, start: int, end: int) -> ParsedAnswer:
        """The meaning of a slice: a list, or one item."""
        while end > start and self.tokens[end - 1].text in (".", ",", ";") and end - start > 1:
            if self.tokens[end - 2].text == "." == self.tokens[end - 1].text:
                raise AnswerSyntaxError  # `7, ...` goes on
            end -= 1
        if start >= end:
            raise AnswerSyntaxError
        top = self.top(start, end)
        cuts = [(idx, mark) for idx in top if (mark := _separator(self.tokens[idx]))]
        if cuts:
            return self.listed(start, end, cuts)
        return self.item(start, end, top)

    def listed(self, start: int, end: int, cuts: list[tuple[int, str]]) -> ParsedAnswer:
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
            raise AnswerTooLargeError
        found = _listed([self.read(a, b) for a, b in parts], flat=True)
        words = {self.tokens[idx].text.strip(" ,;").lower() for idx, _ in cuts}
        if words in ({"and"}, {""}) and all(map(_is_condition, found.items)):
            return found._replace(shape="and" if words == {"and"} else ",")
        return found

    def parts(self, start: int, end: int, cuts: Sequence[int]) -> list[tuple[int, int]]:
        """Non-empty slices between cuts; only an Oxford comma may leave an empty one."""
        bounds = [start - 1, *cuts, end]
        found = [(a + 1, b) for a, b in pairwise(bounds) if b > a + 1]
        if not found:
            raise AnswerSyntaxError
        return found

    def item(self, start: int, end: int, top: list[int]) -> ParsedAnswer:
        arrows = [idx for idx in top if self.tokens[idx].text == "Rightarrow"]
        if arrows:
            return self.derived(start, end, arrows)
        relations = [idx for idx in top if self.is_operator(idx, RELATIONS)]
        if len(relations) > 1:
            slices = split_relations(
                self.tokens, top, relations, (start, end), self.is_name, self.is_closed
            )
            if len(slices) > 1:
                return _listed([self.read(a, b) for a, b in slices], flat=True)
        if relations:
            return self.related(start, end, relations)
        operations = [idx for idx in top if self.is_operator(idx, _SET_OPS)]
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

    def derived(self, start: int, end: int, arrows: Sequence[int]) -> ParsedAnswer:
        r"""`2x = 6 \Rightarrow x = 3`: the last part, if the ones before it hold with it."""
        parts = [self.read(a, b) for a, b in self.parts(start, end, arrows)]
        found = parts[-1]
        for part in parts[:-1]:
            if part.relation is None or part.relation[0] != "=" or found.node is None:
                raise AnswerSyntaxError
            left = substitute(part.relation[1], {found.label: found.node})
            if not found.label or symbols(left) or same_function(left, ZERO) is not True:
                raise AnswerSyntaxError
        return found

    def is_operator(self, idx: int, table: dict[str, str]) -> bool:
        token = self.tokens[idx]
        return token.text in table and (token.kind == "p" or (token.kind == "c"))

    def bracket(self, start: int, end: int) -> ParsedAnswer:
        opening, closing = self.tokens[start].text, self.tokens[end - 1].text
        top = self.top(start + 1, end - 1)
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
                return inner._replace(shape="{}") if inner.kind == "list" else inner
            items = inner.items if inner.kind == "list" else (inner,)
            return ParsedAnswer("set", items=items)
        if not cuts:
            if (opening, closing) not in (("(", ")"), ("[", "]")):
                raise AnswerSyntaxError
            return self.read(start + 1, end - 1)
        parts = self.parts(start + 1, end - 1, cuts)
        if len(parts) > MAX_ITEMS:
            raise AnswerTooLargeError
        shape = "()" if opening == "langle" else opening + closing
        return ParsedAnswer("seq", items=tuple(self.read(a, b) for a, b in parts), shape=shape)

    def such_that(self, top: Sequence[int]) -> int:
        r"""Index of the bar or colon of `\{x \mid ...\}` among the tokens `top`; 0 for none."""
        bars = [idx for idx in top[1:] if self.tokens[idx].text in ("|", ":")]
        is_one = len(bars) == 1 or (bars and bars[0] == top[1]) or (len(bars) % 2 == 1)
        return bars[0] if is_one else 0

    def built(self, start: int, bar: int, end: int) -> ParsedAnswer:
        r"""`\{x \mid x > 1\}` as its condition, `\{2k \mid k \in \mathbb{Z}\}` as a family."""
        condition = self.read(bar + 1, end)
        parts = condition.items if condition.kind == "list" else (condition,)
        head = self.read(start, bar)
        if is_over_integers(condition):
            return ParsedAnswer("list", items=(head, condition))
        name = head.label if head.is_range else self.tokens[start].text
        is_named = head.is_range or bar == start + 1
        if not is_named or not all(_is_condition(part) and part.label == name for part in parts):
            raise AnswerSyntaxError
        return condition

    def scalar(self, start: int, end: int) -> ParsedAnswer:
        quantity = read_unit(self.tokens, start, end)
        start, end = quantity.start, quantity.end
        if start >= end:
            raise AnswerSyntaxError
        if any(t.text in ("pm", "mp") and t.kind == "c" for t in self.tokens[start:end]):
            signs = [parse_scalar(self.source, start, end, sign) for sign in (1, -1)]
            both = [ParsedAnswer("scalar", node=node, unit=quantity.unit) for node in signs]
            return ParsedAnswer("list", items=tuple(both))
        node = in_components(parse_scalar(self.source, start, end))
        if quantity.factor != 1:
            node = mul((num(quantity.factor), node))
        digits = significant(self.tokens[start:end])
        return ParsedAnswer("scalar", node=node, unit=quantity.unit, digits=digits)

    def set_operation(self, start: int, end: int, at: int) -> ParsedAnswer:
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
            return ParsedAnswer("union", items=tuple(parts))
        return ParsedAnswer("cap" if kind == "cap" else "setminus", items=(left, right))


def _separator(token: MathToken) -> str:
    """`,`, `;` or `and` for a token that separates items; `and` stands for `or` too."""
    if token.kind == "p" and token.text in (",", ";"):
        return token.text
    if token.kind in "wt":
        word = token.text.strip(" ,;").lower()
        if word in ("and", "or") or (token.kind == "t" and word == "" and token.text):
            return "and" if word else ","
    return ""


def _is_condition(item: ParsedAnswer) -> bool:
    """Whether an item was written as a condition on one letter."""
    return item.is_range or (item.kind in ("setminus", "cap", "union") and bool(item.label))


def _leaves(answers: Sequence[ParsedAnswer]) -> list[ParsedAnswer]:
    return [leaf for part in answers for leaf in (part.items if part.kind == "list" else (part,))]


def _listed(parts: list[ParsedAnswer], flat: bool) -> ParsedAnswer:
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
        return ParsedAnswer("list", items=tuple(parts), label=first.label)
    return ParsedAnswer("list", items=tuple(parts))


def _finite_union(left: ParsedAnswer, right: ParsedAnswer) -> ParsedAnswer | None:
    """The union of two finite sets of scalars."""
    if left.kind not in ("set", "list") or right.kind not in ("set", "list"):
        return None
    if any(item.node is None for item in (*left.items, *right.items)):
        return None
    a = {item.node.key: item for item in left.items if item.node is not None}
    b = {item.node.key: item for item in right.items if item.node is not None}
    chosen = {**a, **b}
    return ParsedAnswer("set", items=tuple(chosen[key] for key in sorted(chosen)))
