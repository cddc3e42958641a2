r"""Recursive-descent parser of one scalar expression, LaTeX or plain, to a tree.

Grammar, loosest first: sum, product (also by juxtaposition, `mod`), sign, power and postfix,
atom. Every call consumes a token or ends, and brackets nest at most 64 deep, so it cannot hang.
Conventions: `\sin 2x` takes the product that follows, `\log` without a base is decimal, `1/2x` is
`(1/2)x`, `2\frac{1}{3}` is a mixed number.
"""

from __future__ import annotations

from fractions import Fraction

from flowzoo.reward.math.cursor import AnswerSyntaxError
from flowzoo.reward.math.matrices import negative, product, raised, total
from flowzoo.reward.math.operands import TIMES, Operands
from flowzoo.reward.math.tokens import MathTokens
from flowzoo.reward.math.tree import (
    MINUS_ONE,
    AnswerTooLargeError,
    ExprNode,
    call,
    const,
    mul,
    neg,
    num,
    power,
    rational,
    sym,
)

__all__ = ["AnswerSyntaxError", "parse_scalar"]

# What walks a tree recurses; postfixes such as `x!!!` build deep ones without any bracket.
_MAX_TREE = 130
_SHORT_KEY = 300


def parse_scalar(source: MathTokens, start: int, end: int, sign: int = 1) -> ExprNode:
    r"""The tree of the tokens from `start` to `end`; `sign` (1 or -1) is what `\pm` stands for.

    Raises:
        AnswerSyntaxError: they are no expression.
        AnswerTooLargeError: a number or the nesting is over the bounds.
    """
    parser = _Parser(source, start, end, sign)
    node = parser.sum()
    if parser.at < end:
        raise AnswerSyntaxError
    if len(node.key) > _SHORT_KEY and _depth(node.key) > _MAX_TREE:
        raise AnswerTooLargeError
    return node


def _depth(key: str) -> int:
    """How deep the parentheses of a key, and so the levels of its tree, are nested at most."""
    depth = deepest = 0
    for char in key:
        depth += (char == "(") - (char == ")")
        deepest = max(deepest, depth)
    return deepest


class _Parser(Operands):
    """Sums, products, signs, powers and postfixes."""

    def sum(self) -> ExprNode:
        terms = [self.product()]
        while True:
            sign = self.accept("+", "-", "pm", "mp")
            if not sign:
                return total(terms)
            term = self.product()
            terms.append(term if self.signum(sign) > 0 else negative(term))

    def product(self) -> ExprNode:
        minus = 1
        while sign := self.accept("+", "-", "pm", "mp"):
            minus *= self.signum(sign)
        first = self.at
        factors = [self.mixed() or self.power()]
        while self.at < self.end:
            if self.accept(*TIMES):
                factors.append(self.signed())
            elif self.accept("/", "div"):
                factors.append(power(self.signed(), MINUS_ONE))
            elif self.is_mod():
                divisor = self.signed()
                factors = [call("mod", [mul(factors), divisor])]
            elif self.starts_atom() and not self.is_split_number(first):
                factors.append(self.power())
            else:
                break
        node = product(factors)
        return node if minus > 0 else negative(node)

    def signed(self) -> ExprNode:
        """A factor that may have a sign, as after `*` and `^`."""
        minus = 1
        while sign := self.accept("+", "-", "pm", "mp"):
            minus *= self.signum(sign)
        node = self.mixed() or self.power()
        return node if minus > 0 else neg(node)

    def is_mod(self) -> bool:
        if self.accept("bmod"):
            return True
        token = self.peek()
        if token and token.kind == "w" and token.text == "mod":
            self.at += 1
            return True
        return False

    def is_split_number(self, first: int) -> bool:
        """Two numbers side by side are no product: `4 2` is neither 8 nor 42, but `2^6 3^5` is."""
        token = self.tokens[self.at]
        if token.spaced == 2:
            raise AnswerSyntaxError  # another line
        if token.kind != "n":
            return False
        if self.tokens[self.at - 1].kind == "n" and self.at > first:
            is_power = self.tokens[self.at - 2].text in ("^", "**") and self.at - 2 > first
            following = self.peek(1)
            if not is_power or following is None or following.text not in ("^", "**"):
                raise AnswerSyntaxError
        return False

    def mixed(self) -> ExprNode | None:
        r"""A mixed number: a whole number, then a proper fraction of whole numbers."""
        whole = self.peek()
        if whole is None or whole.kind != "n" or not whole.text.isdigit():
            return None
        following = self.peek(1)
        if following is None:
            return None
        if following.kind == "c" and following.text == "frac":
            start = self.at
            self.at += 1
            as_written, self.as_written = self.as_written, False
            part = rational(self.power())
            self.as_written = as_written
            literal = all(t.kind == "n" or t.text in "{}frac" for t in self.tokens[start : self.at])
            if part is not None and literal and 0 < part < 1:
                return self.literal(int(whole.text) + part)
            self.at = start
            return None
        slash, bottom = self.peek(2), self.peek(3)
        if not (following.kind == "n" and following.spaced and slash and slash.text == "/"):
            return None
        if not (following.text.isdigit() and bottom and bottom.kind == "n"):
            return None
        if not bottom.text.isdigit() or not 0 < int(following.text) < int(bottom.text):
            return None
        self.at += 4
        return self.literal(int(whole.text) + Fraction(int(following.text), int(bottom.text)))

    def power(self) -> ExprNode:
        return self.postfix(self.atom())

    def postfix(self, node: ExprNode) -> ExprNode:
        while self.at < self.end:
            token = self.tokens[self.at]
            if token.kind == "p" and token.text in ("^", "**"):
                self.at += 1
                if self.accept("'") or self.next_text() == "prime":
                    raise AnswerSyntaxError
                node = raised(node, self.script())
            elif token.text == "!" and token.kind == "p":
                self.at += 1
                node = call("factorial", [node])
            elif token.text == "%" and token.kind == "p":
                self.at += 1
                node = mul((node, num(Fraction(1, 100))))
            elif token.text == "°":
                self.at += 1
                node = mul((node, const("pi"), num(Fraction(1, 180))))
            elif token.text == "'" and node.op == "sym":
                self.at += 1
                node = sym(f"{node.args[0]}'")
            elif token.text == "(" and node.op in ("sym", "pow") and self.is_applied(node):
                node = self.applied_to(node)
            else:
                return node
        return node

    def script(self) -> ExprNode:
        """What stands after `^`: a group, or one signed factor (right to left)."""
        self.deeper()
        minus = 1
        while sign := self.accept("+", "-"):
            minus *= self.signum(sign)
        token = self.peek()
        if token is not None and token.kind == "p" and token.text == "{":
            node = self.group()
        else:
            is_word = token is not None and token.kind == "w"
            node = self.argument() if is_word else self.atom()
            if self.next_text() in ("^", "**"):
                node = self.postfix(node)
        self.depth -= 1
        return node if minus > 0 else neg(node)
