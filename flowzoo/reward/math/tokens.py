r"""Tokenizer of clean answers, with the partner of every bracket."""

import re
from collections.abc import Sequence
from fractions import Fraction
from typing import Final, NamedTuple

from flowzoo.reward.math.clean import TEXT_COMMANDS
from flowzoo.reward.math.tree import AnswerTooLargeError

MAX_DEPTH: Final = 64
MAX_TOKENS: Final = 1500
MAX_EXPONENT: Final = 400

_TOKEN = re.compile(
    r"(?P<s>\s+)"
    r"|(?P<n>(?!0,)\d{1,3}(?:,\d{3})+(?!\d|,\d)(?:\.\d+)?|\d{1,3}(?: \d{3})+(?! ?\d)(?:\.\d+)?"
    r"|(?:\d+(?:\.\d*)?|\.\d*)\\overline\s?\{\d{1,40}\}"
    r"|(?:\d+(?:\.\d+)?|\.\d+)(?:[eE][-+]?\d{1,9}(?![\w.]))?|\d+\.(?!\w))"
    r"|\\(?P<c>[A-Za-z]+\*?)|(?P<e>\\.)|(?P<w>[A-Za-z]+)|(?P<p>\*\*|[<>!=:]=|=<|=>|.)",
    re.DOTALL | re.ASCII,
)
_CONNECTED = re.compile(r"\b(and|or)\b")
_OPEN: Final = {"(": "round", "[": "square", "{": "curly", "\\{": "set", "langle": "angle"}
_CLOSE: Final = {")": "round", "]": "square", "}": "curly", "\\}": "set", "rangle": "angle"}
# What an interval may end before.
_BEHIND: Final = frozenset(("}", "\\}", ")", ",", "cup", "cap", "setminus"))
# A half-open interval closes with the other bracket.
_MIXED: Final = frozenset({("round", "square"), ("square", "round")})


class MathToken(NamedTuple):
    """One token of an answer."""

    # `n` number, `c` LaTeX command without its backslash, `w` run of letters, `t` content of a text
    # command, `p` any other character.
    kind: str
    text: str
    spaced: int  # 0; 1 after white space; 2 after a line end or a wide space


class MathTokens(NamedTuple):
    """The tokens of an answer; `partner[i]` is the index of the matching bracket, or -1."""

    tokens: list[MathToken]
    partner: list[int]
    # True if numbers are symbols, so that nothing is computed.
    as_written: bool = False

    def top(self, start: int, end: int) -> list[int]:
        """Indices of the tokens from `start` to `end` that are in no bracket or environment."""
        indices, idx, depth = [], start, 0
        while idx < end:
            token = self.tokens[idx]
            if token.kind == "c" and token.text in ("begin", "end"):
                depth += 1 if token.text == "begin" else -1
            if depth == 0:
                indices.append(idx)
            idx = max(self.partner[idx], idx) + 1
        return indices


def tokenize(text: str, thousands: bool = True) -> MathTokens | None:
    """Tokens of a clean text, or None if brackets do not match."""
    tokens: list[MathToken] = []
    position, spaced, depth = 0, 0, 0
    while position < len(text):
        match = _TOKEN.match(text, position)
        if match is None:  # a lone backslash at the end
            return None
        kind, body = match.lastgroup or "p", match[match.lastgroup or 0]
        position = match.end()
        if kind == "s":
            spaced = 2 if "\n" in body else 1
            continue
        if kind == "n" and (depth != 0 or not thousands) and ("," in body or " " in body):
            body = re.match(r"\d+", body)[0]  # type: ignore[index]
            position = match.start() + len(body)
        if body == "!=" and not spaced and tokens and tokens[-1].kind == "n":
            body, position = "!", position - 1  # `5!=120` means 5! = 120
        if kind == "e":
            kind = "p"
        elif kind == "c" and body in TEXT_COMMANDS:
            inside = _group_text(text, position)
            if inside is not None:
                body, position = inside
                kind = "t"
                parts = [part.strip() for part in _CONNECTED.split(body) if part.strip()]
                *before, body = parts or [""]
                tokens += [MathToken("t", part, 1) for part in before]
        if kind == "p":
            depth += (body in ("(", "[", "\\{")) - (body in (")", "]", "\\}"))
        tokens.append(MathToken(kind, body, spaced))
        spaced = 0
        if len(tokens) > MAX_TOKENS:
            raise AnswerTooLargeError
    return _match_brackets(tokens)


def _group_text(text: str, position: int) -> tuple[str, int] | None:
    # The letter or the content of the plain brace group at `position`, and where it ends.
    while text[position : position + 1] == " ":
        position += 1
    first = text[position : position + 1]
    if first != "{":
        return (first, position + 1) if first.isalpha() else None
    close_at = text.find("}", position)
    while (
        close_at >= 0
        and "^{" in text[position:close_at]
        and text[position + 1 : close_at].count("{") > text[position:close_at].count("}")
    ):
        close_at = text.find("}", close_at + 1)
    inside = text[position + 1 : close_at]
    if close_at < 0 or "{" in inside.replace("^{", "") or "\\" in inside:
        return None
    return inside, close_at + 1


def _match_brackets(tokens: list[MathToken]) -> MathTokens | None:
    partner = [-1] * len(tokens)
    stack: list[tuple[int, str]] = []
    for idx, token in enumerate(tokens):
        if token.kind not in "pc":
            continue
        if token.text in ("[", "]") and (outward := _outward(tokens, idx, stack)):
            token = tokens[idx] = MathToken("p", outward, token.spaced)
        opened = _OPEN.get(token.text)
        if opened:
            stack.append((idx, opened))
            if len(stack) > MAX_DEPTH:
                raise AnswerTooLargeError
            continue
        closed = _CLOSE.get(token.text)
        if closed:
            if not stack or (stack[-1][1] != closed and (stack[-1][1], closed) not in _MIXED):
                return None
            start = stack.pop()[0]
            partner[start], partner[idx] = idx, start
    return None if stack else MathTokens(tokens, partner)


def _outward(tokens: Sequence[MathToken], idx: int, stack: Sequence[tuple[int, str]]) -> str:
    # The round bracket for the square one of an open end, `]2, 5[`; empty for others.
    is_inside = bool(stack) and stack[-1][1] in ("round", "square")
    if tokens[idx].text == "]":
        return "" if is_inside else "("
    is_last = idx + 1 == len(tokens) or tokens[idx + 1].text in _BEHIND
    return ")" if is_inside and is_last else ""


_DECIMAL = re.compile(
    r"[-+]?([\d, ]*\.\d*)(?:[eE][-+]?\d+)?(?:(?:times|cdot|\*)10(?:\^|\*\*)\{?[-+]?\d+\}?)?"
)


def significant(tokens: Sequence[MathToken]) -> int:
    r"""Significant digits of a signed decimal literal, also of one `\times 10^k`, else 0."""
    match = _DECIMAL.fullmatch("".join(token.text for token in tokens))
    return len(re.sub(r"[.,\s]", "", match[1]).lstrip("0")) if match else 0


def number_value(text: str) -> Fraction:
    r"""The value of a number token: digits, separators, `e` notation, `\overline` for a period."""
    if "overline" in text:
        head, _, period = text.partition("\\overline")
        period = period.strip("{} ")
        places = len(head.partition(".")[2])
        tail = Fraction(int(period), (10 ** len(period) - 1) * 10**places)
        return Fraction(head.rstrip(".") or "0") + tail
    digits, _, exponent = text.replace(",", "").replace(" ", "").lower().partition("e")
    if exponent and abs(int(exponent)) > MAX_EXPONENT:
        raise AnswerTooLargeError
    return Fraction(digits.rstrip(".")) * Fraction(10) ** int(exponent or 0)


def stands_alone(tokens: Sequence[MathToken], partner: Sequence[int], letter: str) -> bool:
    """Return True if a letter occurs without a bracket behind it."""
    for idx, token in enumerate(tokens):
        is_here = token.text == letter or (
            token.kind == "w" and len(token.text) < 4 and letter in token.text
        )
        if not is_here or token.kind not in "wct":
            continue
        behind = idx + 1
        while behind < len(tokens) and tokens[behind].text in ("_", "^", "'"):
            is_prime = tokens[behind].text == "'"
            behind += 1 if is_prime else 2
            if not is_prime and behind <= len(tokens):
                behind = max(partner[behind - 1] + 1, behind)
        if behind >= len(tokens) or tokens[behind].text != "(":
            return True
    return False


class TokenCursor:
    """A place in a slice of tokens.

    `at` is the index of the next token, `end` that of the end of the current bracket.
    """

    def __init__(self, source: MathTokens, start: int, end: int) -> None:
        self.source, self.tokens, self.partner = source, list(source.tokens), source.partner
        self.at, self.end, self.depth = start, end, 0

    def peek(self, ahead: int = 0) -> MathToken | None:
        """The token `ahead` positions after the next one, if the bracket does not end before."""
        return self.tokens[self.at + ahead] if self.at + ahead < self.end else None

    def next_text(self) -> str:
        """The text of the next token; empty at the end."""
        return self.tokens[self.at].text if self.at < self.end else ""

    def accept(self, *texts: str) -> str:
        """Skip the next token if it is one of `texts`; return its text, or an empty string."""
        if self.at < self.end:
            token = self.tokens[self.at]
            if token.kind in "pc" and token.text in texts:
                self.at += 1
                return token.text
        return ""

    def commas(self, start: int, end: int) -> list[int]:
        """Indices of the commas of a row that are in no bracket inside it."""
        bars = [idx for idx in range(start, end) if self.tokens[idx].text == "|"]
        # `P(1|2)` is a point, too.
        is_bar = len(bars) == 1 and bars[0] > start and self.tokens[bars[0] - 1].kind == "n"
        marks = (",", ";", "|") if is_bar else (",", ";")
        return [idx for idx in self.source.top(start, end) if self.tokens[idx].text in marks]

    def deeper(self) -> None:
        """Count one more level of nesting.

        Raises:
            AnswerTooLargeError: there are more than `MAX_DEPTH`.
        """
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise AnswerTooLargeError
