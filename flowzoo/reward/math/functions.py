r"""Functions in an expression: their powers, subscripts and arguments, with brackets or without."""

from __future__ import annotations

from fractions import Fraction
from typing import Final

from flowzoo.reward.math.binders import Binders, determinant
from flowzoo.reward.math.cursor import AnswerSyntaxError
from flowzoo.reward.math.tokens import MathToken
from flowzoo.reward.math.tree import (
    HALF,
    MINUS_ONE,
    ExprNode,
    call,
    const,
    divide,
    mul,
    num,
    power,
    rational,
)
from flowzoo.reward.math.vocabulary import FUNCTIONS, GREEK, SAME

_INVERSE: Final = {
    "sin": "arcsin", "cos": "arccos", "tan": "arctan", "cot": "arccot", "sec": "arcsec",
    "csc": "arccsc", "sinh": "arsinh", "cosh": "arcosh", "tanh": "artanh",
}  # fmt: skip
_ATOM_ENDS: Final = frozenset(("+", "-", ",", ";", ")", "]", "}", "\\}", "=", "<", ">", "&", "/"))


def _exact_log(value: ExprNode, base: ExprNode) -> ExprNode | None:
    """The logarithm of a power of a rational base, where it is a whole number."""
    number_, root = rational(value), rational(base)
    if number_ is None or root is None or number_ <= 0 or root <= 1:
        return None
    reached, count = Fraction(1), 0
    target = number_ if number_ >= 1 else 1 / number_
    while reached < target and count < 256:
        reached, count = reached * root, count + 1
    if reached != target:
        return None
    return num(count if number_ >= 1 else -count)


class Functions(Binders):
    """The part of the parser that reads a function with its arguments."""

    def starts_atom(self) -> bool:
        """Whether the next token begins an operand: see `operands`."""
        raise NotImplementedError

    def root(self) -> ExprNode:
        """A root: its degree in brackets, then the radicand."""
        degree: ExprNode | None = None
        token = self.peek()
        if token and token.text == "[" and token.kind == "p":
            degree = self.group()
        radicand = self.argument_whole()
        return power(radicand, HALF if degree is None else power(degree, MINUS_ONE))

    def function(self, name: str) -> ExprNode:
        """A function by name, with its power and its argument."""
        if name == "sqrt":
            return self.root()
        self.deeper()
        exponent: ExprNode | None = None
        base: ExprNode | None = None
        while self.next_text() in ("^", "_") and self.tokens[self.at].kind == "p":
            self.at += 1
            if self.tokens[self.at - 1].text == "^":
                exponent = self.script()
            else:
                base = self.argument_whole()
        if exponent is not None and exponent.key == "-1" and name in _INVERSE:
            name, exponent = _INVERSE[name], None
        node = self.applied(name, self.arguments(), base)
        self.depth -= 1
        return node if exponent is None else power(node, exponent)

    def arguments(self) -> list[ExprNode]:
        """The arguments of a function, in brackets or loose."""
        token = self.peek()
        if token is None:
            raise AnswerSyntaxError
        if token.kind == "p" and token.text in ("(", "[", "{"):
            close_at = self.partner[self.at]
            if close_at < 0 or close_at >= self.end:
                raise AnswerSyntaxError
            commas = self.commas(self.at + 1, close_at)
            self.at += 1
            return [self.inside(idx) for idx in [*commas, close_at]]
        return [self.loose_argument()]

    def loose_argument(self) -> ExprNode:
        r"""The argument of a function without brackets: `2x` in `\sin 2x`."""
        factors: list[ExprNode] = []
        while self.at < self.end:
            token = self.tokens[self.at]
            if factors and (token.kind != "n" and not self.is_loose(token)):
                break
            if token.text in _ATOM_ENDS and token.kind == "p":
                if token.text == "-" and not factors:
                    self.at += 1
                    factors.append(MINUS_ONE)
                    continue
                break
            if not self.starts_atom():
                break
            factors.append(self.power())
        if not factors:
            raise AnswerSyntaxError
        return mul(factors)

    def is_loose(self, token: MathToken) -> bool:
        """Whether a token goes on in the argument of a function without brackets."""
        name = SAME.get(token.text, token.text)
        if token.kind == "w":
            return name not in FUNCTIONS
        if token.kind == "c":
            return token.text in GREEK or token.text in ("pi", "sqrt", "frac")
        return False

    def applied(self, name: str, args: list[ExprNode], base: ExprNode | None) -> ExprNode:
        """The function `name` of its arguments; `base` is the subscript of a logarithm."""
        if name in ("max", "min", "gcd", "lcm"):
            return call(name, args)
        if name == "binom" and len(args) == 2:
            return call(name, args)
        if name == "det" and args[0].op == "call" and args[0].args[0] == "matrix":
            rows = args[0].args[1:]
            return determinant([row.args[1:] for row in rows]) or call("det", rows)
        if len(args) != 1 and not (name == "log" and len(args) == 2 and base is None):
            raise AnswerSyntaxError
        if name == "exp":
            return power(const("e"), args[0])
        if name in ("log", "lg"):
            base = args[1] if len(args) == 2 else base or num(10)
            if base.key == "#e":
                return call("ln", args[:1])
            return _exact_log(args[0], base) or divide(call("ln", args[:1]), call("ln", [base]))
        return call(name, args)
