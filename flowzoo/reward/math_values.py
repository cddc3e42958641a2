r"""Reading an answer as a value that can be compared exactly.

A `Value` is a rational number, a container of values, a matrix or a normalised text; nothing is
evaluated, so nothing can run away: an answer of more than 2,000 characters, 64 levels of brackets
or 256 digits in a row is `TOO_BIG`. White space inside a number is never dropped silently: `4 2` is
not 42.

Conventions: `50%` is 1/2 and not 50. A unit or a left-hand side that only one of the two sides
has is ignored (`5 cm` and `x = 5` answer 5), different ones make a difference (`5 km` is not `5
cm`). `(a, b)` and `[a, b]` are ordered and different; `\{a, b\}` and a bare list are unordered.
"""

from __future__ import annotations

import re
from fractions import Fraction
from functools import lru_cache
from typing import Any, Final, Literal, NamedTuple

from flowzoo.reward.math_clean import clean, text_form, unit_form

MAX_CHARS: Final = 2_000
MAX_DEPTH: Final = 64
MAX_DIGITS: Final = 256
MAX_ITEMS: Final = 256
_CACHED_CHARS = 256


class Value(NamedTuple):
    """What an answer means. `body` is a Fraction, a tuple of values (rows for a matrix) or text."""

    kind: Literal["number", "ordered", "unordered", "matrix", "text"]
    body: Any
    shape: str = ""
    """Brackets of an ordered container, `rows x columns` of a matrix."""
    unit: str = ""
    label: str = ""
    """Left-hand side, such as `x` in `x = 5`."""


class TooBig(Exception):
    """Inside this module: the answer is over one of the bounds."""


_PLAIN = re.compile(r"-?\d{1,15}", re.ASCII)
_DIGITS = re.compile(rf"\d{{{MAX_DIGITS + 1}}}")
_D = r"(?:\d{1,3}(?:,\d{3})+(?!\d)|\d{1,3}(?: \d{3})+(?!\d)|\d+)(?:\.\d*)?|\.\d+"
_I = r"[-+]?\d+(?:\.\d+)?"
_ARG_A = rf"(?:\{{\s*(?P<fa>{_I})\s*\}}|(?P<ga>\d))"
_ARG_B = rf"(?:\{{\s*(?P<fb>{_I})\s*\}}|(?P<gb>\d))"
_NUMERAL = re.compile(
    r"(?P<sign>[-+]?)\s*(?P<currency>[$€£¥]?)\s*(?P<sign2>[-+]?)\s*(?:"
    rf"(?:(?P<whole>\d+)\s*)?\\frac\s*{_ARG_A}\s*{_ARG_B}"
    r"|(?:(?P<mixed>\d+)\s+)?(?P<sa>\d+)\s*/\s*(?P<sb>\d+)"
    rf"|(?P<plain>{_D})(?:\s*(?:\*|\\times|\\cdot)\s*10\s*\^\s*\{{?(?P<power>-?\d+)\}}?"
    r"|[eE](?P<exponent>[-+]?\d+))?"
    r")(?![\d.^_!/]|,\d)",
    re.ASCII,
)
_LABEL = re.compile(
    r"(?P<label>\\?[A-Za-z]+(?:_(?:\w|\{\w{1,8}\}))?(?:\([A-Za-z](?:,\s?[A-Za-z])*\))?)"
    r"\s*(?:=|\\in(?![A-Za-z]))\s*",
    re.ASCII,
)
_RELATION = re.compile(r"[=<>≤≥≠]|\\(?:leq?|geq?|neq?|in|approx|equiv)(?![A-Za-z])")
_MATRIX = re.compile(r"[\[(]?\s*\\begin\{([pbvB]?matrix)\}(.*)\\end\{\1\}\s*[\])]?", re.DOTALL)
_SEPARATOR_WORDS = re.compile(r"\s?(?:,\s?)?(?:\\text\{\s?,?\s?(?:and|or)\s?\}|\b(?:and|or)\b)\s?")
_SCALES = {"dozen": 12, "hundred": 100, "thousand": 10**3, "million": 10**6, "billion": 10**9}
_OPEN = {"(": ")", "[": "]", "{": "}"}
_CURRENCIES = {"$": "dollar", "€": "euro", "£": "pound", "¥": "yen", "": ""}


def read_value(answer: str) -> Value | None:
    """The value of an extracted answer, or None where it is over one of the bounds.

    Never raises on any text; linear time but for a bounded number of nested splits.
    """
    if len(answer) > _CACHED_CHARS:
        return _read(answer)
    return _read_cached(answer)


@lru_cache(maxsize=16_384)
def _read_cached(answer: str) -> Value | None:
    return _read(answer)


def _read(answer: str) -> Value | None:
    answer = answer.strip()
    if _PLAIN.fullmatch(answer):
        return Value("number", Fraction(int(answer)))
    if len(answer) > MAX_CHARS or _DIGITS.search(answer):
        return None
    try:
        return _parse(clean(answer), 0)
    except TooBig:
        return None


def _parse(text: str, depth: int) -> Value:
    """`text` is clean."""
    if depth > MAX_DEPTH:
        raise TooBig
    number = _number(text)
    if number is not None:
        return number
    matrix = _MATRIX.fullmatch(text)
    if matrix:
        return _matrix(matrix, depth)
    items = _split(_SEPARATOR_WORDS.sub(",", text) if depth == 0 else text)
    if len(items) > 1:
        return Value("unordered", tuple(_parse(item, depth + 1) for item in items))
    label = _LABEL.match(text)
    if label and not _RELATION.search(text, label.end()):
        inner = _parse(text[label.end() :], depth + 1)
        return inner._replace(label=text_form(label["label"]))
    return _bracketed(text, depth) or Value("text", text_form(text))


def _bracketed(text: str, depth: int) -> Value | None:
    """A value of a text that is one pair of brackets; None if it is not."""
    escaped = text.startswith("\\{") and text.endswith("\\}")
    inside = text[2:-2] if escaped else text[1:-1]
    is_braced = escaped or (text.startswith("{") and text.endswith("}"))
    is_ordered = text[:1] in ("(", "[") and text[-1:] in (")", "]")
    if not (is_braced or is_ordered) or not _is_one_group(inside):
        return None
    items = _split(inside)
    shape = text[0] + text[-1]
    if len(items) == 1:
        if is_ordered and shape != "()":
            return None
        inner = _parse(inside.strip(), depth + 1)
        return inner if not escaped else Value("unordered", (inner,))
    values = tuple(_parse(item, depth + 1) for item in items)
    return Value("unordered", values) if is_braced else Value("ordered", values, shape)


def _is_one_group(inside: str) -> bool:
    """Whether brackets inside a pair of brackets close no more than they open."""
    depth = 0
    for char in inside:
        if char in "([{":
            depth += 1
        elif char in ")]}":
            depth -= 1
            if depth < 0:
                return False
    return depth == 0


def _split(text: str) -> list[str]:
    """The parts of `text` between top-level semicolons or, where there are none, commas."""
    depth, cuts = 0, {",": [-1], ";": [-1]}
    for idx, char in enumerate(text):
        if char in "([{":
            depth += 1
            if depth > MAX_DEPTH:
                raise TooBig
        elif char in ")]}":
            depth -= 1
        elif char in ",;" and depth == 0:
            cuts[char].append(idx)
    marks = cuts[";"] if len(cuts[";"]) > 1 else cuts[","]
    if len(marks) > MAX_ITEMS:
        raise TooBig
    ends = [*marks[1:], len(text)]
    return [text[a + 1 : b].strip() for a, b in zip(marks, ends, strict=True)]


def _matrix(match: re.Match[str], depth: int) -> Value:
    rows = [row.split("&") for row in match[2].split("\\\\") if row.strip()]
    shape = ("|" if match[1] == "vmatrix" else "") + "x".join(str(len(row)) for row in rows)
    if sum(len(row) for row in rows) > MAX_ITEMS:
        raise TooBig
    cells = tuple(_parse(cell.strip(), depth + 1) for row in rows for cell in row)
    return Value("matrix", cells, shape)


def _number(text: str) -> Value | None:
    """A number with an optional currency before it and a unit, percent or scale word after it."""
    match = _NUMERAL.match(text)
    if match is None or (match["sign"] and match["sign2"]):
        return None
    number = _fraction(match)
    if number is None:
        return None
    if "-" in (match["sign"], match["sign2"]):
        number = -number
    unit = _CURRENCIES[match["currency"]]
    rest = text[match.end() :]
    if not rest:
        return Value("number", number, unit=unit)
    word = rest.strip().lower()
    if word in ("%", "percent", "pct"):
        return Value("number", number / 100)
    first, _, others = word.partition(" ")
    if first in _SCALES:
        number, rest = number * _SCALES[first], " " + others
    if rest.strip() == "":
        return Value("number", number, unit=unit)
    named = unit_form(rest)
    return None if named is None or (unit and named) else Value("number", number, unit=named)


def _fraction(match: re.Match[str]) -> Fraction | None:
    """The unsigned number of a numeral; None for a zero denominator."""
    if match["plain"]:
        digits = match["plain"].replace(",", "").replace(" ", "")
        power = int(match["power"] or match["exponent"] or 0)
        if abs(power) > MAX_DIGITS:
            raise TooBig
        return Fraction(digits) * Fraction(10) ** power
    whole = Fraction(match["whole"] or match["mixed"] or 0)
    top = Fraction(match["fa"] or match["ga"] or match["sa"])
    bottom = Fraction(match["fb"] or match["gb"] or match["sb"])
    return whole + top / bottom if bottom else None


def same(a: Value, b: Value) -> bool:
    """Whether two values are equal under the conventions of this module (symmetric)."""
    if a.label and b.label and a.label != b.label:
        return False
    if a.kind != b.kind or a.shape != b.shape:
        return False
    if a.kind == "number":
        return a.body == b.body and (a.unit == b.unit or not a.unit or not b.unit)
    if a.kind == "text":
        return a.body == b.body
    if len(a.body) != len(b.body):
        return False
    if a.kind == "unordered":
        return _same_unordered(a.body, b.body)
    return all(same(x, y) for x, y in zip(a.body, b.body, strict=True))


def _same_unordered(a: tuple[Value, ...], b: tuple[Value, ...]) -> bool:
    left = list(b)
    for item in a:
        # Exact equality first: a bare 5 must not take the place of a labelled x = 5.
        idx = next((i for i, other in enumerate(left) if other == item), -1)
        if idx < 0:
            idx = next((i for i, other in enumerate(left) if same(item, other)), -1)
        if idx < 0:
            return False
        del left[idx]
    return True
