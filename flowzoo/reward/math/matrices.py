"""Arithmetic of explicit matrices: sums, products with numbers and matrices, powers, determinants.

A matrix is a call of `matrix` with rows; its cells are computed like expressions.
"""

from collections.abc import Sequence
from itertools import combinations
from typing import Final

from flowzoo.reward.math.tree import (
    MINUS_ONE,
    ONE,
    ZERO,
    ExprNode,
    add,
    call,
    mul,
    num,
    power,
    rational,
    substitute,
    sym,
    symbols,
)

_MOST_POWER: Final = 24
_MOST_SIZE: Final = 8
Cells = list[list[ExprNode]]


def is_matrix(node: ExprNode) -> bool:
    """Return True if a node is an explicit matrix."""
    return node.op == "call" and node.args[0] == "matrix"


def rows_of(node: ExprNode | None) -> Cells:
    """The rows of an explicit matrix; none of another node."""
    return [list(row.args[1:]) for row in node.args[1:]] if node and is_matrix(node) else []


def built(cells: Cells) -> ExprNode:
    """The matrix of rows of cells."""
    return call("matrix", [call("row", row) for row in cells])


def total(terms: Sequence[ExprNode]) -> ExprNode:
    """The sum of terms; of matrices of one shape, cell by cell."""
    if not terms or not all(map(is_matrix, terms)):
        return add(terms)
    tables = [rows_of(term) for term in terms]
    shapes = {(len(table), len(table[0])) for table in tables}
    if len(shapes) > 1:
        return add(terms)
    rows, columns = shapes.pop()
    return built(
        [[add(table[i][j] for table in tables) for j in range(columns)] for i in range(rows)]
    )


def product(factors: Sequence[ExprNode]) -> ExprNode:
    """The product of factors in order; capital letters may be matrices."""
    if not any(map(is_matrix, factors)):
        return mul(factors)
    scalars = [factor for factor in factors if not is_matrix(factor)]
    if any(name[:1].isupper() for scalar in scalars for name in symbols(scalar)):
        return mul(factors)
    tables = [rows_of(factor) for factor in factors if is_matrix(factor)]
    cells = tables[0]
    for table in tables[1:]:
        if len(cells[0]) != len(table) or max(len(cells), len(table), len(table[0])) > _MOST_SIZE:
            return mul(factors)
        cells = _times(cells, table)
    scale = mul(scalars) if scalars else ONE
    return built([[mul((scale, cell)) for cell in row] for row in cells])


def _times(a: Cells, b: Cells) -> Cells:
    return [
        [add(mul((a[i][k], b[k][j])) for k in range(len(b))) for j in range(len(b[0]))]
        for i in range(len(a))
    ]


def negative(node: ExprNode) -> ExprNode:
    """Minus a node."""
    return product((MINUS_ONE, node))


def raise_power(base: ExprNode, exponent: ExprNode) -> ExprNode:
    """A power; of a square matrix by multiplication."""
    if _is_matmul(base) and exponent.key in ("T", "-1"):
        return call("@matmul", [raise_power(arg, exponent) for arg in reversed(base.args[1:])])
    if base.op == "pow" and base.args[1].key == exponent.key == "T":
        return base.args[0]
    if not is_matrix(base):
        return power(base, exponent)
    cells, count = rows_of(base), rational(exponent)
    if exponent.key == "T":
        return built([list(column) for column in zip(*cells, strict=True)])
    size = len(cells)
    is_square = all(len(row) == size for row in cells) and size <= 4
    if count is None or count.denominator != 1 or not 0 <= count <= _MOST_POWER or not is_square:
        return power(base, exponent)
    result = [[ONE if i == j else ZERO for j in range(size)] for i in range(size)]
    for _ in range(int(count)):
        result = _times(result, cells)
    return built(result)


def determinant(cells: Sequence[Sequence[ExprNode]]) -> ExprNode | None:
    """The determinant of up to three rows."""
    size = len(cells)
    if size > 3 or any(len(row) != size for row in cells):
        return None
    if size == 1:
        return cells[0][0]
    terms: list[ExprNode] = []
    for column in range(size):
        minor = [[cell for c, cell in enumerate(row) if c != column] for row in cells[1:]]
        inner = determinant(minor)
        if inner is None:
            return None
        terms.append(mul((num((-1) ** column), cells[0][column], inner)))
    return add(terms)


def in_order(factors: list[ExprNode], are_typeset: list[bool], sign: str) -> list[ExprNode]:
    """The factors of a product, with vectors and matrices as one factor that keeps their order."""
    # Vectors have an accent or are typeset; matrices are capitals, typeset, or with a transpose or
    # an inverse among them.
    if len(factors) < 2 or len(factors) != len(are_typeset):
        return factors
    if sign and any(f.key == "nabla" for f in factors):
        return [call("@cross" if sign == "times" else "@dot", factors)]
    pairs = list(zip(factors, are_typeset, strict=True))
    vectors = [f for f, is_typeset in pairs if _is_vector(f, is_typeset)]
    if len(vectors) == 2 and sign:
        parts = [f.args if f.op == "mul" else (f,) for f in vectors]
        scalars = [f for part in parts for f in part if f.op == "num"]
        bare = [next(f for f in part if f.op != "num") for part in parts]
        # A vector's letter, however it is typeset.
        spelled = [f.key.partition("(")[2][:-1] if f.op == "sym" else "" for f in bare]
        bare = [sym(x) if x else f for x, f in zip(spelled, bare, strict=True)]
        is_turned = sign == "times" and bare[0].key > bare[1].key
        name = "@cross" if sign == "times" else "@dot"
        joined = _triple(call(name, sorted(bare, key=lambda node: node.key)))
        return [
            *(f for f in factors if f not in vectors),
            *scalars,
            joined,
            num(-1 if is_turned else 1),
        ]
    letters = [(f, f.args[0] if f.op == "pow" else f, is_typeset) for f, is_typeset in pairs]
    capitals = [
        (f, bold)
        for f, base, bold in letters
        if _is_matmul(base) or (base.op == "sym" and base.key.isupper())
    ]
    exponents = [f.args[1].key for f, _ in capitals if f.op == "pow"]
    is_ordered = "T" in exponents or "-1" in exponents or sum(b for _, b in capitals) > 1
    if len(capitals) < 2 or not (is_ordered or any(_is_matmul(f) for f, _ in capitals)):
        return factors
    ordered = [f for f, _ in capitals]
    inside = [x for f in ordered for x in (f.args[1:] if _is_matmul(f) else (f,))]
    return [*(f for f in factors if f not in ordered), call("@matmul", inside)]


def _is_matmul(node: ExprNode) -> bool:
    return node.op == "call" and node.args[0] == "@matmul"


def _is_vector(node: ExprNode, is_typeset: bool) -> bool:
    if node.op == "call":
        return node.args[0] == "@cross"
    if node.op == "mul":
        rest = [f for f in node.args if f.op != "num"]
        return len(rest) == 1 and _is_vector(rest[0], is_typeset)
    name: str = node.args[0] if node.op == "sym" else ""
    is_letter = is_typeset and len(name) == 1 and name.islower()
    return is_letter or name.startswith(("vec(", "hat(", "overrightarrow("))


def _triple(node: ExprNode) -> ExprNode:
    # The scalar triple product with its vectors in order, up to the sign.
    inner = next((arg for arg in node.args[1:] if arg.op == "call"), None)
    if node.args[0] != "@dot" or inner is None:
        return node
    outer = next(arg for arg in node.args[1:] if arg is not inner)
    keys = [arg.key for arg in (outer, *inner.args[1:])]
    swaps = sum(a > b for a, b in combinations(keys, 2))
    ordered = sorted((outer, *inner.args[1:]), key=lambda arg: arg.key)
    return mul((num((-1) ** swaps), call("@triple", ordered)))


_UNIT_VECTORS: Final = ("hat(i)", "hat(j)", "hat(k)")


def in_components(node: ExprNode) -> ExprNode:
    r"""Convert `\hat{i} + 2\hat{j}` to a column; other expressions are returned unchanged."""
    if "hat(" not in node.key:
        return node
    used = symbols(node) & frozenset(_UNIT_VECTORS)
    if not used:
        return node
    nothing = dict.fromkeys(_UNIT_VECTORS, ZERO)
    if substitute(node, nothing).key != "0":
        return node
    count = 3 if "hat(k)" in used else 2
    cells = [substitute(node, {**nothing, name: ONE}) for name in _UNIT_VECTORS[:count]]
    rebuilt = add(mul((cell, sym(name))) for cell, name in zip(cells, _UNIT_VECTORS, strict=False))
    return built([[cell] for cell in cells]) if rebuilt.key == node.key else node
