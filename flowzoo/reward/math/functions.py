r"""Functions in an expression: their powers, subscripts and arguments, with brackets or without."""

from __future__ import annotations

from fractions import Fraction
from typing import Final

from flowzoo.reward.listed import names
from flowzoo.reward.math.binders import Binders
from flowzoo.reward.math.cursor import WRITTEN, AnswerSyntaxError
from flowzoo.reward.math.matrices import determinant
from flowzoo.reward.math.tokens import MathToken
from flowzoo.reward.math.tree import (
    HALF,
    MINUS_ONE,
    ExprNode,
    add,
    call,
    const,
    divide,
    mul,
    num,
    power,
    rational,
)
from flowzoo.reward.math.vocabulary import FUNCTIONS, GREEK, KNOWN, SAME

_INVERSE: Final = {
    "sin": "arcsin", "cos": "arccos", "tan": "arctan", "cot": "arccot", "sec": "arcsec",
    "csc": "arccsc", "sinh": "arsinh", "cosh": "arcosh", "tanh": "artanh",
}  # fmt: skip
_ALWAYS: Final = frozenset("fgh")
_LETTERS: Final = frozenset("fghpqABCDEFGHIJKLMNOPQRSTUVWXYZ") | names(
    "Phi Psi phi varphi psi sigma tau mu pi chi zeta eta Gamma Lambda Theta ell"
)
"""Letters that are functions before a bracket, whatever stands in it."""
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


def _part(value: ExprNode, is_imaginary: bool) -> ExprNode | None:
    """The real or imaginary part of a sum of numbers and multiples of i."""
    parts: tuple[list[ExprNode], list[ExprNode]] = ([], [])
    for term in value.args if value.op == "add" else (value,):
        factors = [f for f in (term.args if term.op == "mul" else (term,)) if f.key != "#i"]
        count = (len(term.args) if term.op == "mul" else 1) - len(factors)
        rest = mul(factors)
        if count > 1 or rational(rest) is None:
            return None
        parts[count].append(rest)
    return add(parts[is_imaginary])


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

    def is_applied(self, node: ExprNode) -> bool:
        """Whether the bracket that comes next holds the arguments of the letter `node`.

        `f(x)`, `P(A)` and `y(0)` are values of functions; `n(n + 1)`, whose letter also stands
        alone, `a(x + 1)` and `C(x - 1)(x - 2)` are products.
        """
        symbol = node.args[0] if node.op == "pow" else node
        if symbol.op != "sym" or (node.op == "pow" and self.tokens[self.at - 1].text == "'"):
            return False
        name: str = symbol.args[0]
        letter = name.partition("_")[0].rstrip("'")
        close_at = self.partner[self.at]
        if (
            letter in self.bound
            or letter[:1] in ("", WRITTEN)
            or close_at < 0
            or close_at >= self.end
        ):
            return False
        if self.commas(self.at + 1, close_at):
            return True
        if letter in KNOWN and node.op == "sym" and name == letter:
            return True
        inside = self.tokens[self.at + 1 : close_at]
        is_point = len(inside) == 1 and (inside[0].kind == "n" or len(inside[0].text) == 1)
        is_point = is_point or (
            len(inside) == 2 and inside[0].text == "-" and inside[1].kind == "n"
        )
        if node.op == "pow" and letter not in _LETTERS:
            return False
        if letter not in _LETTERS and len(letter) < 3:
            if not is_point or self.tokens[self.at].spaced:
                return False
        elif letter not in _ALWAYS and self.is_followed_by_bracket(close_at):
            return False
        return not self.stands_alone(letter)

    def is_followed_by_bracket(self, close_at: int) -> bool:
        """Whether another bracket stands right behind the one that closes here."""
        return close_at + 1 < self.end and self.tokens[close_at + 1].text == "("

    def stands_alone(self, letter: str) -> bool:
        """Whether a letter occurs anywhere without arguments."""
        for idx, token in enumerate(self.tokens):
            is_here = token.text == letter or (
                token.kind == "w" and len(token.text) < 4 and letter in token.text
            )
            if not is_here or token.kind not in "wct":
                continue
            behind = idx + 1
            while behind < len(self.tokens) and self.tokens[behind].text in ("_", "^", "'"):
                is_prime = self.tokens[behind].text == "'"
                behind += 1 if is_prime else 2
                if not is_prime and behind <= len(self.tokens):
                    behind = max(self.partner[behind - 1] + 1, behind)
            if behind >= len(self.tokens) or self.tokens[behind].text != "(":
                return True
        return False

    def applied_to(self, node: ExprNode) -> ExprNode:
        """The value of a letter as a function, at the arguments in the bracket that comes next."""
        exponent = None
        if node.op == "pow":
            node, exponent = node.args
        name: str = node.args[0]
        self.deeper()
        args = self.arguments()
        self.depth -= 1
        if exponent is not None:
            if exponent.key == "-1":
                return call(f"@{name}^-1", args)
            return power(call(f"@{name}", args), exponent)
        if name in KNOWN and len(args) == 1:
            return call(KNOWN[name], args)
        return call(f"@{name}", args)

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
        if name == "cis":
            return add((call("cos", args), mul((const("i"), call("sin", args)))))
        if name in ("Re", "Im"):
            return _part(args[0], name == "Im") or call(name, args)
        if name == "exp":
            return power(const("e"), args[0])
        if name in ("log", "lg"):
            base = args[1] if len(args) == 2 else base or num(10)
            if base.key == "#e":
                return call("ln", args[:1])
            return _exact_log(args[0], base) or divide(call("ln", args[:1]), call("ln", [base]))
        return call(name, args)
