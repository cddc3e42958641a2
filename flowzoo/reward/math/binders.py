r"""Sums, products, limits, integrals, derivatives and matrices, as parts of an expression.

Sums and integrals keep their bound variable and become one node; nothing is summed or integrated.
"""

from __future__ import annotations

from flowzoo.reward.math.cursor import AnswerSyntaxError, TokenCursor
from flowzoo.reward.math.matrices import determinant
from flowzoo.reward.math.tree import ONE, ExprNode, bind, call, replace, sym

_MAX_CELLS = 256


def _integrand(body: ExprNode) -> tuple[str, ExprNode]:
    """The variable of integration and the integrand of `body`, which holds a `dx` as a factor."""
    found = _differentials(body)
    if len(found) != 1:
        raise AnswerSyntaxError
    name = found.pop()
    return name[2:], replace(body, name, ONE)


def _differentials(node: ExprNode) -> set[str]:
    if node.op == "sym":
        name = node.args[0]
        return {name} if name.startswith("d:") else set()
    return set().union(*(_differentials(arg) for arg in node.args if isinstance(arg, ExprNode)))


class Binders(TokenCursor):
    """The part of the parser that reads binders and environments."""

    def binder(self, name: str) -> ExprNode:
        """A sum, product, integral or limit, whose command was just read."""
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
            variable, body = _integrand(body)
        return bind(name, variable, [body, *parts])

    def index(self) -> tuple[str, ExprNode]:
        r"""`{k=1}` below a sum or `{x \to 0}` below a limit: the variable and its start."""
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
        """A matrix; a `vmatrix` is a determinant."""
        kind, cells = self.cells()
        if kind == "Vmatrix":  # a norm
            raise AnswerSyntaxError
        rows = [call("row", row) for row in cells]
        if kind == "vmatrix":
            return determinant(cells) or call("det", rows)
        return call("matrix", rows)

    def cells(self) -> tuple[str, list[list[ExprNode]]]:
        r"""Rows of the environment whose `\begin` was just read."""
        kind = self.subscript()
        rows: list[list[ExprNode]] = [[]]
        if kind == "array":
            self.subscript()
        while True:
            if self.accept("end"):
                break
            stop = self.cell_end()
            if stop > self.at:
                rows[-1].append(self.inside(stop))
            else:
                self.at = stop + 1
            mark = self.tokens[stop]
            if mark.text == "end":
                break
            if mark.text == "\\\\":
                rows.append([])
        if self.subscript() != kind:
            raise AnswerSyntaxError
        rows = [row for row in rows if row]
        if not rows or sum(map(len, rows)) > _MAX_CELLS or len({len(row) for row in rows}) > 1:
            raise AnswerSyntaxError
        return kind, rows

    def cell_end(self) -> int:
        """Index of the token that ends the cell that begins here."""
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
        r"""`\frac{d}{dx}`, as a symbol in front of what is differentiated."""
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
