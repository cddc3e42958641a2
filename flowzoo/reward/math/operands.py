r"""Operands of an expression: numbers, names, functions, fractions, roots, brackets, bars."""

from __future__ import annotations

import re
from fractions import Fraction
from typing import Final

from flowzoo.reward.listed import names
from flowzoo.reward.math.binders import Binders, determinant
from flowzoo.reward.math.cursor import AnswerSyntaxError, number
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
    sym,
)

_FUNCTIONS: Final = names(
    "sin cos tan cot sec csc sinh cosh tanh coth arcsin arccos arctan arccot arcsec arccsc "
    "arsinh arcosh artanh ln exp log lg"
)
_SAME: Final = {
    "asin": "arcsin", "acos": "arccos", "atan": "arctan", "tg": "tan", "ctg": "cot",
    "arcsinh": "arsinh", "arccosh": "arcosh", "arctanh": "artanh", "asinh": "arsinh",
    "acosh": "arcosh", "atanh": "artanh", "ceiling": "ceil", "Abs": "abs", "arctg": "arctan",
    "cosec": "csc", "lb": "log2",
}  # fmt: skip
_CALLED: Final = names("abs floor ceil max min gcd lcm det binom")
_INVERSE: Final = {
    "sin": "arcsin", "cos": "arccos", "tan": "arctan", "cot": "arccot", "sec": "arcsec",
    "csc": "arccsc", "sinh": "arsinh", "cosh": "arcosh", "tanh": "artanh",
}  # fmt: skip
GREEK: Final = names(
    "alpha beta gamma delta epsilon varepsilon zeta eta theta vartheta iota kappa lambda mu "
    "nu xi rho sigma tau phi varphi chi psi omega Gamma Delta Theta Lambda Xi Pi Sigma Phi "
    "Psi Omega ell hbar aleph wp"
)
_CONSTANTS: Final = {"pi": "pi", "infty": "inf", "infinity": "inf", "inf": "inf", "oo": "inf"}
_ACCENTS: Final = names("overline vec hat bar tilde dot ddot widehat overrightarrow angle")
_NO_OPERAND: Final = names(
    "ldots dots cdots vdots ddots begin end rightarrow Rightarrow implies iff leq geq neq in "
    "notin approx equiv sim prime not circ star oplus otimes forall exists cup cap setminus "
    "subset subseteq perp parallel cong rfloor rceil rangle therefore because quad"
)
TIMES: Final = frozenset(("*", "cdot", "times"))
_PRODUCT_LETTERS = re.compile(r"[b-df-hj-np-tv-z]{3,5}|[abcxyz]{3}")
_ATOM_ENDS: Final = frozenset(("+", "-", ",", ";", ")", "]", "}", "\\}", "=", "<", ">", "&", "/"))


def _is_name(word: str) -> bool:
    name = _SAME.get(word, word)
    return name in _CONSTANTS or name in GREEK or name in _FUNCTIONS or name in ("sqrt", "abs")


def is_function(word: str) -> bool:
    """Whether a word or command is the name of a function."""
    name = _SAME.get(word, word)
    return name in _FUNCTIONS or name in _CALLED or name == "sqrt"


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


class Operands(Binders):
    """The part of the parser that reads one operand."""

    def starts_atom(self) -> bool:
        """Whether the next token begins an operand."""
        token = self.tokens[self.at]
        if token.kind in "nwt":
            return True
        if token.text == "|":
            return self.bars == 0
        if token.kind == "p":
            return token.text in ("(", "[", "{", "\\{") or ord(token.text[0]) > 127
        return token.text not in ("bmod", "rfloor", "rceil", "rangle", "end", "pm", "mp", "choose")

    def atom(self) -> ExprNode:
        """One operand."""
        token = self.peek()
        if token is None:
            raise AnswerSyntaxError
        if token.kind == "n":
            self.at += 1
            return self.subscripted(num(number(token.text)), token.text)
        if token.kind == "w":
            return self.word(token.text)
        if token.kind == "t":
            return self.text(token.text)
        if token.kind == "c":
            self.at += 1
            return self.command(token.text)
        if token.text in ("(", "[", "{", "\\{"):
            return self.choose() or self.group()
        if token.text == "|":
            return self.absolute()
        if ord(token.text[0]) > 127 and token.text.isalpha():
            self.at += 1
            return sym(token.text)
        raise AnswerSyntaxError

    def choose(self) -> ExprNode | None:
        r"""`{n \choose k}`."""
        close_at = self.partner[self.at]
        for idx in range(self.at + 1, close_at):
            if self.tokens[idx].kind == "c" and self.tokens[idx].text == "choose":
                self.at += 1
                top = self.inside(idx)
                bottom = self.inside(close_at)
                return call("binom", [top, bottom])
        return None

    def absolute(self) -> ExprNode:
        """An absolute value, whose bar is next."""
        self.at += 1
        self.bars += 1
        self.deeper()
        node = self.sum()
        self.depth -= 1
        if not self.accept("|"):
            raise AnswerSyntaxError
        self.bars -= 1
        return call("abs", [node])

    def word(self, text: str) -> ExprNode:
        """A run of letters: a function, a name, or single letters that multiply."""
        self.at += 1
        name = _SAME.get(text, text)
        if is_function(name):
            return self.function(name)
        if text in _CONSTANTS and len(text) > 1:
            return const(_CONSTANTS[text])
        if self.integrals and text[0] == "d" and (variable := self.differential(text)):
            return sym(f"d:{variable}")
        if len(text) == 1:
            return self.letter(text)
        if text in GREEK:
            return self.subscripted(sym(text), text)
        for head in ("sin", "cos", "tan", "ln", "log"):
            if text.startswith(head) and len(text) == len(head) + 1:
                self.at -= 1
                self.tokens[self.at] = MathToken("w", text[len(head) :], False)
                return self.function(head)
        if len(text) == 2 or _PRODUCT_LETTERS.fullmatch(text):
            # An exponent belongs to the last letter: `xy^2` is x times y^2.
            last = self.postfix(self.letter(text[-1]))
            return mul([*(self.single(char) for char in text[:-1]), last])
        return self.subscripted(sym(text), text)

    def differential(self, text: str) -> str:
        r"""The variable of `dx`, `d x` or `d\theta`."""
        if len(text) == 2:
            return text[1]
        token = self.peek()
        if len(text) > 1 or token is None or token.kind not in "wc":
            return ""
        if len(token.text) > 1 and token.text not in GREEK:
            return ""
        self.at += 1
        return token.text

    def text(self, content: str) -> ExprNode:
        """The content of a text command as a function or a symbol."""
        self.at += 1
        name = _SAME.get(content, content)
        if name in _FUNCTIONS or name in _CALLED:
            return self.function(name)
        if len(content) == 1 and content.isalpha():
            return self.letter(content)
        if content.isalnum():
            return self.subscripted(sym(content), content)
        raise AnswerSyntaxError

    def command(self, name: str) -> ExprNode:
        """The operand that a command, just read, begins."""
        same = _SAME.get(name, name)
        if same in _FUNCTIONS or same in _CALLED or name == "sqrt":
            return self.fraction("binom") if same == "binom" else self.function(same)
        special = self.special(name)
        if special is not None:
            return special
        if name in _CONSTANTS:
            return const(_CONSTANTS[name])
        if name in ("e", "i"):
            return const(name)
        if name in _ACCENTS:
            return self.accented(name)
        if name in _NO_OPERAND:
            raise AnswerSyntaxError
        return self.subscripted(sym(name), name)

    def special(self, name: str) -> ExprNode | None:
        """The operand of a command with a syntax of its own; None for other commands."""
        if name == "frac":
            return self.derivative() or self.fraction("frac")
        if name in ("lfloor", "lceil", "langle"):
            return self.enclosed(name)
        if name in ("sum", "prod", "int", "iint", "oint", "lim"):
            return self.binder(name)
        if name == "begin":
            return self.matrix()
        if name in ("boxed", "fbox", "underline", "mathrm", "mathbf", "text", "boldsymbol"):
            return self.argument()
        return None

    def enclosed(self, name: str) -> ExprNode:
        r"""What stands between `\lfloor` or `\lceil` and its partner."""
        close = {"lfloor": "rfloor", "lceil": "rceil", "langle": "rangle"}[name]
        self.deeper()
        node = self.sum()
        self.depth -= 1
        if not self.accept(close):
            raise AnswerSyntaxError
        if name == "langle":
            raise AnswerSyntaxError
        return call("floor" if name == "lfloor" else "ceil", [node])

    def accented(self, name: str) -> ExprNode:
        """A letter under an accent, as a symbol of its own."""
        if name != "angle" and self.next_text() != "{":
            raise AnswerSyntaxError
        return self.subscripted(sym(f"{name}({self.subscript()})"), name)

    def argument(self) -> ExprNode:
        """One argument of a command: a group, one digit of a number, or one atom."""
        token = self.peek()
        if token is None:
            raise AnswerSyntaxError
        if token.kind == "p" and token.text == "{":
            return self.choose() or self.group()
        if token.kind == "n" and len(token.text) > 1 and token.text.isdigit():
            self.tokens[self.at] = MathToken("n", token.text[1:], False)
            return num(int(token.text[0]))
        if token.kind == "w" and len(token.text) > 1 and not _is_name(token.text):
            self.tokens[self.at] = MathToken("w", token.text[1:], False)
            return self.single(token.text[0])
        return self.atom()

    def argument_whole(self) -> ExprNode:
        """One argument, in which a number is not split into digits."""
        token = self.peek()
        if token is not None and token.kind == "n":
            self.at += 1
            return num(number(token.text))
        return self.argument()

    def fraction(self, kind: str) -> ExprNode:
        """A fraction or a binomial of two arguments."""
        top = self.argument()
        bottom = self.argument()
        return divide(top, bottom) if kind == "frac" else call("binom", [top, bottom])

    def root(self) -> ExprNode:
        """A root: its degree in brackets, then the radicand."""
        degree: ExprNode | None = None
        token = self.peek()
        if token and token.text == "[" and token.kind == "p":
            degree = self.group()
        radicand = self.radicand()
        return power(radicand, HALF if degree is None else power(degree, MINUS_ONE))

    def radicand(self) -> ExprNode:
        """The radicand of a root; all digits of a number belong to it."""
        token = self.peek()
        if token is not None and token.kind == "n":
            self.at += 1
            return num(number(token.text))
        return self.argument()

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
        name = _SAME.get(token.text, token.text)
        if token.kind == "w":
            return name not in _FUNCTIONS
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
