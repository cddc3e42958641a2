r"""Operands of an expression: numbers, names, functions, fractions, roots, brackets, bars."""

from __future__ import annotations

import re
from typing import Final

from flowzoo.reward.listed import names
from flowzoo.reward.math.cursor import AnswerSyntaxError
from flowzoo.reward.math.functions import Functions
from flowzoo.reward.math.tokens import MathToken
from flowzoo.reward.math.tree import (
    ExprNode,
    call,
    const,
    divide,
    mul,
    sym,
)
from flowzoo.reward.math.vocabulary import (
    CALLED,
    CONSTANTS,
    FUNCTIONS,
    GREEK,
    SAME,
    is_function,
    is_name,
)

_ACCENTS: Final = names("overline vec hat bar tilde dot ddot widehat overrightarrow angle")

_NO_OPERAND: Final = names(
    "ldots dots cdots vdots ddots begin end rightarrow Rightarrow implies iff leq geq neq in "
    "notin approx equiv sim prime not circ star oplus otimes forall exists cup cap setminus "
    "subset subseteq perp parallel cong rfloor rceil rangle therefore because quad"
)
TIMES: Final = frozenset(("*", "cdot", "times"))
_PRODUCT_LETTERS = re.compile(r"[b-df-hj-np-tv-z]{3,5}|[abcxyz]{3}")


class Operands(Functions):
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
        return token.text not in (
            "bmod",
            "rfloor",
            "rceil",
            "rangle",
            "end",
            "pm",
            "mp",
            "choose",
            "over",
        )

    def atom(self) -> ExprNode:
        """One operand."""
        token = self.peek()
        if token is None:
            raise AnswerSyntaxError
        if token.kind == "n":
            self.at += 1
            return self.subscripted(self.number(token.text), token.text)
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
        r"""`{n \choose k}` or `{a \over b}`."""
        close_at = self.partner[self.at]
        idx = self.at + 1
        while idx < close_at:
            token = self.tokens[idx]
            if token.kind == "c" and token.text in ("choose", "over"):
                self.at += 1
                top = self.inside(idx)
                bottom = self.inside(close_at)
                return (
                    call("binom", [top, bottom]) if token.text == "choose" else divide(top, bottom)
                )
            idx = max(self.partner[idx], idx) + 1
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
        name = SAME.get(text, text)
        if is_function(name):
            return self.function(name)
        if text in CONSTANTS and len(text) > 1:
            return const(CONSTANTS[text])
        if self.integrals and text[0] == "d" and (variable := self.differential(text)):
            return sym(f"d:{variable}")
        if len(text) == 1:
            return self.letter(text)
        if text in GREEK:
            return self.subscripted(sym(text), text)
        for head in ("sin", "cos", "tan", "ln", "log"):
            if text.startswith(head) and len(text) == len(head) + 1:
                self.at -= 1
                self.tokens[self.at] = MathToken("w", text[len(head) :], 0)
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
        name = SAME.get(content, content)
        if name in FUNCTIONS or name in CALLED:
            return self.function(name)
        if len(content) == 1 and content.isalpha():
            return self.letter(content)
        if content.isalnum():
            return self.subscripted(sym(content), content)
        raise AnswerSyntaxError

    def command(self, name: str) -> ExprNode:
        """The operand that a command, just read, begins."""
        same = SAME.get(name, name)
        if same in FUNCTIONS or same in CALLED or name == "sqrt":
            return self.fraction("binom") if same == "binom" else self.function(same)
        special = self.special(name)
        if special is not None:
            return special
        if name in CONSTANTS:
            return const(CONSTANTS[name])
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
            self.tokens[self.at] = MathToken("n", token.text[1:], 0)
            return self.number(token.text[0])
        if token.kind == "w" and len(token.text) > 1 and not is_name(token.text):
            self.tokens[self.at] = MathToken("w", token.text[1:], 0)
            return self.single(token.text[0])
        return self.atom()

    def argument_whole(self) -> ExprNode:
        """One argument, in which a number is not split into digits."""
        token = self.peek()
        if token is not None and token.kind == "n":
            self.at += 1
            return self.number(token.text)
        return self.argument()

    def fraction(self, kind: str) -> ExprNode:
        """A fraction or a binomial of two arguments."""
        top = self.argument()
        bottom = self.argument()
        return divide(top, bottom) if kind == "frac" else call("binom", [top, bottom])
