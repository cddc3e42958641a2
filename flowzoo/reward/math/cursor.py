"""Where a parser stands in its tokens: looking ahead, stepping, and going into brackets."""

from __future__ import annotations

from fractions import Fraction
from typing import Final

from flowzoo.reward.math.tokens import MathToken, MathTokens
from flowzoo.reward.math.tree import AnswerTooLargeError, ExprNode, const, num, sym
from flowzoo.reward.math.words import number_in_words

MAX_EXPONENT: Final = 400
WRITTEN: Final = "="
"""First character of the symbol that a number is in a tree as written; 0 and 1 stay numbers."""


class AnswerSyntaxError(Exception):
    """Inside this module: the tokens are no expression of this grammar."""


def number(text: str) -> Fraction:
    r"""The value of a number token: digits, separators, `e` notation, `\overline` for a period.

    Raises:
        AnswerTooLargeError: the exponent is.
    """
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


class TokenCursor:
    """One pass over the tokens; `at` is the next one and `end` the end of the current bracket."""

    def __init__(self, source: MathTokens, start: int, end: int, sign: int) -> None:
        self.tokens, self.partner = list(source.tokens), source.partner
        self.as_written = source.as_written
        self.at, self.end, self.plus_minus = start, end, sign
        self.bars = self.depth = self.integrals = 0
        self.bound: tuple[str, ...] = ()

    def number(self, text: str) -> ExprNode:
        """The node of a number token."""
        return self.literal(number(text))

    def literal(self, value: Fraction) -> ExprNode:
        """The node of a number that is written: itself, or a symbol in a tree as written."""
        return sym(f"{WRITTEN}{value}") if self.as_written and value not in (0, 1) else num(value)

    def peek(self, ahead: int = 0) -> MathToken | None:
        """The token `ahead` of the next one, if the bracket does not end before."""
        return self.tokens[self.at + ahead] if self.at + ahead < self.end else None

    def next_text(self) -> str:
        """Text of the next token; empty at the end."""
        return self.tokens[self.at].text if self.at < self.end else ""

    def accept(self, *texts: str) -> str:
        """Step over the next token if it is one of `texts`; its text, or an empty string."""
        if self.at < self.end:
            token = self.tokens[self.at]
            if token.kind in "pc" and token.text in texts:
                self.at += 1
                return token.text
        return ""

    def inside(self, close_at: int) -> ExprNode:
        """Parse from here to the bracket at `close_at`, and step over it."""
        outer, bars = self.end, self.bars
        self.end, self.bars = close_at, 0
        self.depth += 1
        node = self.sum()
        if self.at != close_at:
            raise AnswerSyntaxError
        self.depth -= 1
        self.at, self.end, self.bars = close_at + 1, outer, bars
        return node

    def signum(self, sign: str) -> int:
        """1 or -1 for a sign, by the reading of `±` that was asked for."""
        if sign in ("+", "-"):
            return 1 if sign == "+" else -1
        return self.plus_minus if sign == "pm" else -self.plus_minus

    def deeper(self) -> None:
        """Count one more level of nesting.

        Raises:
            AnswerTooLargeError: there are too many.
        """
        self.depth += 1
        if self.depth > 64:
            raise AnswerTooLargeError

    def group(self) -> ExprNode:
        """The bracket that starts here."""
        close_at = self.partner[self.at]
        if close_at < 0 or close_at >= self.end:
            raise AnswerSyntaxError
        self.at += 1
        return self.inside(close_at)

    def commas(self, start: int, end: int) -> list[int]:
        """Indices of the commas between two indices, outside inner brackets."""
        found, idx = [], start
        while idx < end:
            token = self.tokens[idx]
            if token.kind == "p" and token.text == ",":
                found.append(idx)
            idx = self.partner[idx] + 1 if self.partner[idx] > idx else idx + 1
        return found

    def single(self, char: str) -> ExprNode:
        """The symbol or constant that a letter is."""
        return const(char) if char in "ei" and char not in self.bound else sym(char)

    def letter(self, char: str) -> ExprNode:
        """A letter with its subscript."""
        return self.subscripted(self.single(char), char)

    def subscripted(self, node: ExprNode, name: str) -> ExprNode:
        """`node`, or the symbol that `name` with the subscript that follows is."""
        if self.next_text() != "_" or self.tokens[self.at].kind != "p":
            return node
        self.at += 1
        below = self.subscript()
        base = number_in_words(below) if name.isdigit() else None
        return sym(f"{name}_{below if base is None else base}")

    def subscript(self) -> str:
        """Text of a subscript: one token or a group, without white space."""
        if self.at >= self.end:
            raise AnswerSyntaxError
        start = self.at
        is_group = self.tokens[start].text == "{" and self.tokens[start].kind == "p"
        self.at = (self.partner[start] if is_group else start) + 1
        if self.at > self.end or self.at <= start:
            raise AnswerSyntaxError
        parts = self.tokens[start + 1 : self.at - 1] if is_group else self.tokens[start : self.at]
        return "".join(token.text for token in parts)

    def sum(self) -> ExprNode:
        """A sum: see `math_parse`."""
        raise NotImplementedError

    def product(self) -> ExprNode:
        """A product: see `math_parse`."""
        raise NotImplementedError

    def script(self) -> ExprNode:
        """An exponent: see `math_parse`."""
        raise NotImplementedError

    def postfix(self, node: ExprNode) -> ExprNode:
        """`node` with the exponents and other postfixes that follow: see `math_parse`."""
        raise NotImplementedError

    def power(self) -> ExprNode:
        """An atom with its exponents and other postfixes: see `math_parse`."""
        raise NotImplementedError

    def argument_whole(self) -> ExprNode:
        """An argument in which a number is not split into digits: see `operands`."""
        raise NotImplementedError
