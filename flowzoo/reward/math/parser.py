r"""Recursive-descent parser of one scalar expression, LaTeX or plain, to a tree.

Every call consumes a token or ends, and brackets nest at most 64 deep, so it cannot hang.
"""

import re
from fractions import Fraction
from typing import Final

from flowzoo.reward.math import vocabulary
from flowzoo.reward.math.matrices import (
    built,
    determinant,
    in_order,
    negative,
    product,
    raise_power,
    rows_of,
    total,
)
from flowzoo.reward.math.plain_text import SYMBOLS
from flowzoo.reward.math.tokens import (
    MathToken,
    MathTokens,
    TokenCursor,
    number_value,
    stands_alone,
)
from flowzoo.reward.math.tree import (
    HALF,
    MINUS_ONE,
    ONE,
    AnswerSyntaxError,
    AnswerTooLargeError,
    ExprNode,
    add,
    bind,
    call,
    complex_part,
    const,
    divide,
    exact_log,
    has_minus,
    key_depth,
    mul,
    neg,
    num,
    power,
    rational,
    substitute,
    sym,
    symbols,
)

# First character of the symbol of a number in a tree as written; 0 and 1 stay numbers.
WRITTEN: Final = "="
_MAX_CELLS: Final = 256
_ODD = re.compile(r"\d?[13579]", re.ASCII)
_SCALES: Final = frozenset(("t", "s", "k", "r", "lambda", "mu"))  # letters of lines in space
_TIMES: Final = frozenset(("*", "cdot", "times"))
_NO_ATOM: Final = frozenset(
    ("bmod", "rfloor", "rceil", "rangle", "end", "pm", "mp", "choose", "over")
)
_MAX_TREE: Final = 130  # functions on trees recurse, and `x!!!` builds deep ones without brackets
_SHORT_KEY: Final = 300


def parse_scalar(source: MathTokens, start: int, end: int, sign: int = 1) -> ExprNode:
    r"""Return the tree of the tokens from `start` to `end`, with `\pm` read as `sign` (1 or -1)."""
    parser = _Parser(source, start, end, sign)
    node = parser.sum()
    if parser.at < end:
        raise AnswerSyntaxError
    if len(node.key) > _SHORT_KEY and key_depth(node.key) > _MAX_TREE:
        raise AnswerTooLargeError
    return node


# Grammar, loosest first: sum, product (also by juxtaposition, `mod`), sign, power and postfix,
# atom. `\sin 2x` takes the product that follows, `\log` without a base is decimal, `1/2x` is
# `(1/2)x`, `2\frac{1}{3}` is a mixed number.
class _Parser(TokenCursor):
    """Parser of one slice of tokens."""

    def __init__(self, source: MathTokens, start: int, end: int, sign: int) -> None:
        super().__init__(source, start, end)
        self.as_written, self.plus_minus = source.as_written, sign
        self.bars = self.integrals = 0
        self.bound: tuple[str, ...] = ()

    def number(self, text: str) -> ExprNode:
        return self.literal(number_value(text))

    def literal(self, value: Fraction) -> ExprNode:
        # The node of a number that is written: itself, or a symbol in a tree as written.
        return sym(f"{WRITTEN}{value}") if self.as_written and value not in (0, 1) else num(value)

    def inside(self, close_at: int) -> ExprNode:
        # Parse from here to the bracket at `close_at`, and skip it.
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
        # 1 or -1 for a sign, with the requested reading of `±`.
        if sign in ("+", "-"):
            return 1 if sign == "+" else -1
        return self.plus_minus if sign == "pm" else -self.plus_minus

    def signs(self) -> int:
        # The product of the signs that come next.
        minus = 1
        while sign := self.accept("+", "-", "pm", "mp"):
            minus *= self.signum(sign)
        return minus

    def items(self) -> list[ExprNode]:
        # The expressions between the commas of the bracket that comes next.
        close_at = self.partner[self.at]
        if close_at < 0 or close_at >= self.end:
            raise AnswerSyntaxError
        commas = self.commas(self.at + 1, close_at)
        self.at += 1
        return [self.inside(idx) for idx in (*commas, close_at)]

    def group(self) -> ExprNode:
        is_row = self.next_text() in ("(", "[")
        items = self.items()
        if len(items) > 1 and not is_row:
            raise AnswerSyntaxError
        return built([items]) if len(items) > 1 else items[0]  # a vector inside an expression

    def single(self, char: str) -> ExprNode:
        return const(char) if char in "ei" and char not in self.bound else sym(char)

    def letter(self, char: str) -> ExprNode:
        return self.subscripted(self.single(char), char)

    def subscripted(self, node: ExprNode, name: str) -> ExprNode:
        # `node`, or the symbol of `name` with the following subscript.
        if not self.accept("_"):
            return node
        if self.bound and (member := self.member(name)):
            return member
        below = self.subscript()
        base = vocabulary.number_in_words(below) if name.isdigit() else None
        return sym(f"{name}_{below if base is None else base}")

    def member(self, name: str) -> ExprNode | None:
        # The member of a sequence that a bound letter numbers, as a value of a function.
        start, token = self.at, self.peek()
        if token is None:
            raise AnswerSyntaxError
        nodes = self.indices()
        if any(symbols(node) & frozenset(self.bound) for node in nodes):
            return call(f"@{name}_", nodes)
        self.at, self.tokens[start] = start, token
        return None

    def indices(self) -> list[ExprNode]:
        # The indices of `{ij}` or `{i,j}`, which are no product, or the one that comes next.
        close_at = self.partner[self.at] if self.next_text() == "{" else -1
        inside = self.tokens[self.at + 1 : close_at] if 0 <= close_at < self.end else []
        nodes: list[ExprNode] = []
        if all(token.kind in "wn" or token.text == "," for token in inside):
            for token in inside:
                if token.kind == "n":
                    nodes.append(self.number(token.text))
                elif token.kind == "w":
                    nodes += map(self.single, token.text)
        if len(nodes) < 2:
            return [self.argument()]
        self.at = close_at + 1
        return nodes

    def subscript(self) -> str:
        # Text of a subscript: one token or a group, without white space.
        if self.at >= self.end:
            raise AnswerSyntaxError
        start = self.at
        is_group = self.tokens[start].text == "{" and self.tokens[start].kind == "p"
        self.at = (self.partner[start] if is_group else start) + 1
        if self.at > self.end or self.at <= start:
            raise AnswerSyntaxError
        parts = self.tokens[start + 1 : self.at - 1] if is_group else self.tokens[start : self.at]
        return "".join(token.text for token in parts)

    def binder(self, name: str) -> ExprNode:
        self.deeper()
        low = high = None
        variable = ""
        while self.next_text() in ("_", "^") and self.tokens[self.at].kind == "p":
            mark = self.tokens[self.at].text
            self.at += 1
            if mark == "^":
                high = self.script()
            elif name in ("sum", "prod", "lim"):
                variable, low = self.index()
            else:
                low = self.argument_whole()
        parts = [part for part in (low, high) if part is not None]
        is_integral = name.endswith("int")
        outer, self.bound = self.bound, (*self.bound, variable)
        self.integrals += is_integral
        body = self.sum() if is_integral else self.product()
        self.integrals -= is_integral
        self.bound = outer
        self.depth -= 1
        if is_integral:
            variable, body = self.integrand(body)
        return bind(name, variable, [body, *parts])

    def integrand(self, body: ExprNode) -> tuple[str, ExprNode]:
        # Return the variable of integration and the integrand of a body with `dx` as a factor.
        differentials = [name for name in symbols(body) if name.startswith("d:")]
        if len(differentials) != 1:
            raise AnswerSyntaxError
        return differentials[0][2:], substitute(body, {differentials[0]: ONE})

    def index(self) -> tuple[str, ExprNode]:
        # `{k=1}` below a sum or `{x \to 0}` below a limit: the variable and its start.
        if self.next_text() != "{":
            raise AnswerSyntaxError
        close_at = self.partner[self.at]
        name = self.peek(1)
        if name is None or name.kind not in "wc":
            raise AnswerSyntaxError
        self.at += 2
        if not self.accept("=", "rightarrow"):
            raise AnswerSyntaxError
        return name.text, self.inside(close_at)

    def matrix(self) -> ExprNode:
        # The environment whose `\begin` was just read; a `vmatrix` is a determinant.
        kind = self.subscript()
        if kind == "array":
            self.subscript()
        rows: list[list[ExprNode]] = [[]]
        mark = ""
        while mark != "end":
            stop = self.cell_end()
            mark = self.tokens[stop].text
            if stop > self.at:
                rows[-1].append(self.inside(stop))
            else:
                self.at = stop + 1
            if mark == "\\\\":
                rows.append([])
        rows = [row for row in rows if row]
        is_table = len({*map(len, rows)}) == 1 and sum(map(len, rows)) <= _MAX_CELLS
        if self.subscript() != kind or kind == "Vmatrix" or not is_table:  # `Vmatrix` is a norm
            raise AnswerSyntaxError
        nodes = [call("row", row) for row in rows]
        if kind == "vmatrix":
            return determinant(rows) or call("det", nodes)
        return call("matrix", nodes)

    def cell_end(self) -> int:
        idx = self.at
        while idx < self.end:
            token = self.tokens[idx]
            if token.text in ("&", "\\\\") or (token.kind == "c" and token.text == "end"):
                return idx
            if token.kind == "c" and token.text == "begin":
                raise AnswerSyntaxError
            idx = self.partner[idx] + 1 if self.partner[idx] > idx else idx + 1
        raise AnswerSyntaxError

    def derivative(self) -> ExprNode | None:
        # `\frac{d}{dx}`, as a symbol before the differentiated expression.
        start = self.at
        if self.next_text() != "{" or self.partner[start] < 0:
            return None
        middle = self.partner[start] + 1
        top = "".join(token.text for token in self.tokens[start + 1 : middle - 1])
        if top not in ("d", "partial") or middle >= self.end or self.partner[middle] < 0:
            return None
        close_at = self.partner[middle]
        bottom = "".join(token.text for token in self.tokens[middle + 1 : close_at])
        if not bottom.startswith(top) or len(bottom) == len(top):
            return None
        self.at = close_at + 1
        return sym(f"d/{bottom}")

    def root(self) -> ExprNode:
        # A root: its degree in brackets, then the radicand.
        degree: ExprNode | None = None
        is_odd = False
        token = self.peek()
        if token and token.text == "[" and token.kind == "p":
            start = self.at + 1
            degree = self.group()
            written = "".join(token.text for token in self.tokens[start : self.at - 1])
            is_odd = _ODD.fullmatch(written) is not None
        radicand = self.argument_whole()
        exponent = HALF if degree is None else power(degree, MINUS_ONE)
        if is_odd and has_minus(radicand):
            return neg(power(neg(radicand), exponent))  # the real root, not the principal one
        return power(radicand, exponent)

    def function(self, name: str) -> ExprNode:
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
        if exponent is not None and exponent.key == "-1" and name in vocabulary.INVERSE:
            name, exponent = vocabulary.INVERSE[name], None
        node = self.applied(name, self.arguments(), base)
        self.depth -= 1
        return node if exponent is None else power(node, exponent)

    def arguments(self) -> list[ExprNode]:
        if self.next_text() in ("(", "[", "{", "\\{"):
            return self.items()
        return [self.loose_argument()]

    def loose_argument(self) -> ExprNode:
        # The argument of a function without brackets: `2x` in `\sin 2x`.
        minus = self.accept("-")
        factors: list[ExprNode] = []
        while self.at < self.end and self.starts_atom() and (not factors or self.is_loose()):
            factors.append(self.power())
        if not factors:
            raise AnswerSyntaxError
        return neg(mul(factors)) if minus else mul(factors)

    def is_loose(self) -> bool:
        # True if the next token goes on such an argument.
        kind, text, _ = self.tokens[self.at]
        if kind == "w":
            return vocabulary.SAME.get(text, text) not in vocabulary.FUNCTIONS
        return kind == "n" or (
            kind == "c" and (text in vocabulary.GREEK or text in ("pi", "sqrt", "frac"))
        )

    def is_applied(self, node: ExprNode) -> bool:
        # True if the bracket that comes next holds the arguments of the letter `node`.
        # `f(x)`, `P(A)` and `y(0)` are values of functions; `n(n + 1)`, whose letter also occurs
        # alone, `a(x + 1)` and `C(x - 1)(x - 2)` are products.
        symbol = node.args[0] if node.op == "pow" else node
        if symbol.op != "sym" or (node.op == "pow" and self.tokens[self.at - 1].text == "'"):
            return False
        name: str = symbol.args[0]
        letter = name.partition("_")[0].rstrip("'")
        close_at = self.partner[self.at]
        is_open = close_at < 0 or close_at >= self.end
        if letter in self.bound or letter[:1] in ("", WRITTEN) or is_open:
            return False
        if self.commas(self.at + 1, close_at):
            is_scale = letter in _SCALES and self.tokens[self.at + 1].kind != "w"
            return not is_scale  # `t(1, 2)` is a vector
        if letter in vocabulary.KNOWN and node.op == "sym" and name == letter:
            return True
        inside = self.tokens[self.at + 1 : close_at]
        if inside and inside[0].kind == "t" and inside[0].text.isupper():
            return False  # a product of matrices
        is_point = len(inside) == 1 and (inside[0].kind == "n" or len(inside[0].text) == 1)
        is_point = is_point or (
            len(inside) == 2 and inside[0].text == "-" and inside[1].kind == "n"
        )
        if node.op == "pow" and letter not in vocabulary.FUNCTION_LETTERS:
            return False
        if letter not in vocabulary.FUNCTION_LETTERS and len(letter) < 3:
            if not is_point or self.tokens[self.at].spaced:
                return False
        elif letter not in vocabulary.ALWAYS_APPLIED:
            following = self.tokens[close_at + 1 : close_at + 2]
            if close_at + 1 < self.end and following[0].text == "(":
                return False
        return not stands_alone(self.tokens, self.partner, letter)

    def applied_to(self, node: ExprNode) -> ExprNode:
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
        if name in vocabulary.KNOWN and len(args) == 1:
            return call(vocabulary.KNOWN[name], args)
        return call(f"@{name}", args)

    def applied(self, name: str, args: list[ExprNode], base: ExprNode | None) -> ExprNode:
        # The function `name` of its arguments; `base` is the subscript of a logarithm.
        if name in ("max", "min", "gcd", "lcm"):
            return call(name, args)
        if name == "binom" and len(args) == 2:
            return call(name, args)
        if name == "det" and (rows := rows_of(args[0])):
            return determinant(rows) or call("det", args[0].args[1:])
        if len(args) != 1 and not (name == "log" and len(args) == 2 and base is None):
            raise AnswerSyntaxError
        if name == "cis":
            return add((call("cos", args), mul((const("i"), call("sin", args)))))
        if name in ("Re", "Im"):
            return complex_part(args[0], name == "Im") or call(name, args)
        if name == "exp":
            return power(const("e"), args[0])
        if name in ("log", "lg"):
            base = args[1] if len(args) == 2 else base or num(10)
            if base.key == "#e":
                return call("ln", args[:1])
            return exact_log(args[0], base) or divide(call("ln", args[:1]), call("ln", [base]))
        return call(name, args)

    def starts_atom(self) -> bool:
        token = self.tokens[self.at]
        if token.kind in "nwt":
            return True
        if token.text == "|":
            return self.bars == 0
        if token.kind == "p":
            return token.text in ("(", "[", "{", "\\{") or ord(token.text[0]) > 127
        return token.text not in _NO_ATOM

    def atom(self) -> ExprNode:
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
            self.at += 1
            self.bars += 1
            node = self.enclosed("|")
            self.bars -= 1
            return call("abs", [node])
        if ord(token.text[0]) > 127 and token.text.isalpha():
            self.at += 1
            return sym(token.text)
        raise AnswerSyntaxError

    def choose(self) -> ExprNode | None:
        # `{n \choose k}` or `{a \over b}`.
        close_at = self.partner[self.at]
        inside = self.source.top(self.at + 1, close_at)
        idx = next((idx for idx in inside if self.tokens[idx].text in ("choose", "over")), -1)
        if idx < 0:
            return None
        self.at += 1
        top, bottom = self.inside(idx), self.inside(close_at)
        is_choice = self.tokens[idx].text == "choose"
        return call("binom", [top, bottom]) if is_choice else divide(top, bottom)

    def word(self, text: str) -> ExprNode:
        # A run of letters: a function, a name, or single letters that multiply.
        self.at += 1
        name = vocabulary.SAME.get(text, text)
        if vocabulary.is_function(name):
            return self.function(name)
        if text in vocabulary.CONSTANTS and len(text) > 1:
            return const(vocabulary.CONSTANTS[text])
        if self.integrals and text[0] == "d" and (variable := self.differential(text)):
            return sym(f"d:{variable}")
        if text in vocabulary.GREEK:
            return self.subscripted(sym(text), text)
        following = self.peek() if text.isupper() else None
        is_digit = following and following.kind == "n" and following.text.isdigit()
        if following and is_digit and not following.spaced:
            self.at += 1  # `A3` is a name with an index, not a product
            return sym(f"{text}_{following.text}")
        if len(text) == 1:
            return self.letter(text)
        for head in ("sin", "cos", "tan", "ln", "log"):
            if text.startswith(head) and len(text) == len(head) + 1:
                self.at -= 1
                self.tokens[self.at] = MathToken("w", text[len(head) :], 0)
                return self.function(head)
        if text.isupper() and len(text) == 2 and self.is_of_matrices(text):
            return call("@matmul", [sym(text[0]), sym(text[1])])
        if len(text) == 2 or vocabulary.PRODUCT.fullmatch(text):
            # An exponent belongs to the last letter: `xy^2` is x times y^2.
            last = self.postfix(self.letter(text[-1]))
            return mul([*(self.single(char) for char in text[:-1]), last])
        return self.subscripted(sym(text), text)

    def is_of_matrices(self, text: str) -> bool:
        # True for `AB` in `AB - BA`, `(AB)^{-1}` and `(AB)^T`.
        behind = "".join(token.text for token in self.tokens[self.at : self.at + 6])
        is_inverse = behind.startswith((")^{-1}", ")^T", ")^{T}"))
        return is_inverse or any(token.text == text[::-1] for token in self.tokens)

    def differential(self, text: str) -> str:
        # The variable of `dx`, `d x` or `d\theta`.
        if len(text) == 2:
            return text[1]
        token = self.peek()
        if len(text) > 1 or token is None or token.kind not in "wc":
            return ""
        if len(token.text) > 1 and token.text not in vocabulary.GREEK:
            return ""
        self.at += 1
        return token.text

    def text(self, content: str) -> ExprNode:
        self.at += 1
        name = vocabulary.TYPESET.get(content) or vocabulary.SAME.get(content, content)
        if name in vocabulary.FUNCTIONS or name in vocabulary.CALLED:
            return self.function(name)
        if len(content) == 1 and content.isalpha():
            return self.letter(content)
        if content.isalnum():
            return self.subscripted(sym(content), content)
        raise AnswerSyntaxError

    def command(self, name: str) -> ExprNode:
        same = vocabulary.TYPESET.get(name) or vocabulary.SAME.get(name, name)
        if name == "frac":
            return self.derivative() or self.fraction("frac")
        if vocabulary.is_function(same):
            return self.fraction("binom") if same == "binom" else self.function(same)
        if name in ("lfloor", "lceil"):
            rounding = name.removeprefix("l")
            return call(rounding, [self.enclosed(f"r{rounding}")])
        if name in ("sum", "prod", "int", "iint", "oint", "lim"):
            return self.binder(name)
        if name == "begin":
            return self.matrix()
        if name in ("boxed", "fbox", "underline", "mathrm", "mathbf", "text", "boldsymbol"):
            return self.argument()
        if name in vocabulary.CONSTANTS or name in ("e", "i"):
            return const(vocabulary.CONSTANTS.get(name, name))
        if name in vocabulary.ACCENTS:
            text = self.next_text()
            if name != "angle" and text != "{" and not (len(text) == 1 and text.isalpha()):
                raise AnswerSyntaxError
            return self.subscripted(sym(f"{name}({self.subscript()})"), name)
        # An unknown command is a name where the answer ends with it.
        is_sign = name in SYMBOLS or (len(name) > 1 and self.at < self.end)
        if is_sign and name not in vocabulary.OPERANDS:
            raise AnswerSyntaxError
        return self.subscripted(sym(name), name)

    def enclosed(self, closing: str) -> ExprNode:
        # Parse from here to a sign that the tokens do not pair with its opening one, and skip it.
        self.deeper()
        node = self.sum()
        self.depth -= 1
        if not self.accept(closing):
            raise AnswerSyntaxError
        return node

    def argument(self) -> ExprNode:
        # One argument of a command: a group, one digit of a number, or one atom.
        token = self.peek()
        if token is None:
            raise AnswerSyntaxError
        if token.kind == "p" and token.text == "{":
            return self.choose() or self.group()
        if token.kind == "n" and len(token.text) > 1 and token.text.isdigit():
            self.tokens[self.at] = MathToken("n", token.text[1:], 0)
            return self.number(token.text[0])
        if token.kind == "w" and not vocabulary.is_name(token.text):
            self.tokens[self.at] = MathToken("w", token.text[1:], 0)
            self.at += len(token.text) == 1
            return self.single(token.text[0]) if token.text[1:] else self.letter(token.text)
        return self.atom()

    def argument_whole(self) -> ExprNode:
        token = self.peek()
        if token is not None and token.kind == "n":
            self.at += 1
            return self.number(token.text)
        return self.argument()

    def fraction(self, kind: str) -> ExprNode:
        top, bottom = self.argument(), self.argument()
        return divide(top, bottom) if kind == "frac" else call("binom", [top, bottom])

    def sum(self) -> ExprNode:
        terms = [self.product()]
        while True:
            sign = self.accept("+", "-", "pm", "mp")
            if not sign:
                return total(terms)
            term = self.product()
            terms.append(term if self.signum(sign) > 0 else negative(term))

    def product(self) -> ExprNode:
        minus = self.signs()
        first = self.at
        factors = [self.mixed() or self.power()]
        sign, sides = "", [self.tokens[first]]  # the sign between vectors
        while self.at < self.end:
            if times := self.accept(*_TIMES):
                sign = times
                sides.append(self.tokens[min(self.at, self.end - 1)])
                factors.append(self.signed())
            elif self.accept("/", "div", ":"):
                factors.append(power(self.signed(), MINUS_ONE))
            elif self.next_text() in ("bmod", "mod"):
                self.at += 1
                factors = [call("mod", [mul(factors), self.signed()])]
            elif self.starts_atom() and not self.is_split_number(first):
                pair = self.tokens[self.at - 1 : self.at + 1]
                if all(token.kind == "w" and vocabulary.is_prose(token.text) for token in pair):
                    raise AnswerSyntaxError  # words beside words are a text, whose order counts
                sides.append(self.tokens[self.at])
                factors.append(self.power())
            else:
                break
        is_cross = sign == "times" and len(self.tokens) == 3  # `u \times v` and nothing else
        if len(factors) > 1:
            factors = in_order(factors, [is_cross or side.kind == "t" for side in sides], sign)
        node = product(factors)
        return node if minus > 0 else negative(node)

    def signed(self) -> ExprNode:
        # A factor that may have a sign, as after `*` and `^`.
        minus = self.signs()
        node = self.mixed() or self.power()
        return node if minus > 0 else neg(node)

    def is_split_number(self, first: int) -> bool:
        # Two adjacent numbers are not a product: `4 2` is neither 8 nor 42, but `2^6 3^5` is a
        # product.
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
        # A mixed number: a whole number, then a proper fraction of whole numbers.
        whole = self.peek()
        if whole is None or whole.kind != "n" or not whole.text.isdigit():
            return None
        following = self.peek(1)
        if following is None:
            return None
        if following.kind == "c" and following.text == "frac":
            start, tokens = self.at, list(self.tokens)
            self.at += 1
            as_written, self.as_written = self.as_written, False
            part = rational(self.power())
            self.as_written = as_written
            literal = all(t.kind == "n" or t.text in "{}frac" for t in self.tokens[start : self.at])
            if part is not None and literal and 0 < part < 1:
                return self.literal(int(whole.text) + part)
            self.at, self.tokens = start, tokens
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
                node = raise_power(node, self.script())
            elif token.text == "!" and token.kind == "p":
                start = self.at
                while self.accept("!"):
                    pass
                is_double = self.at - start == 2
                for _ in range(start, self.at - is_double):
                    node = call("factorial2" if is_double else "factorial", [node])
            elif token.text in ("%", "‰") and token.kind == "p":
                self.at += 1
                node = mul((node, num(Fraction(1, 100 if token.text == "%" else 1000))))
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
        # Read an exponent: a group, or one signed factor (right to left).
        self.deeper()
        minus = self.signs()
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
