"""Expression trees and parsed answers: small, immutable, with immediate exact arithmetic.

Sums and products are flat and sorted, so two trees with the same `key` are equal. Numbers stay
below `MAX_BITS` bits; an operation that would exceed them stays symbolic.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from fractions import Fraction
from typing import Any, Final, Literal, NamedTuple

MAX_BITS: Final = 4096
_FACTORIAL_MAX: Final = 300


class ExprNode(NamedTuple):
    """One node. `op` is num, sym, const, add, mul, pow, call or bind."""

    op: str
    # num: a Fraction; sym, const: a name; call: the name, then nodes; bind (sum, product,
    # integral): the name, the bound variable, then nodes; else nodes.
    args: tuple[Any, ...]
    key: str  # text that is equal exactly for structurally equal trees


class AnswerSyntaxError(Exception):
    """The tokens are not an expression of the grammar; caught in the math modules."""


class AnswerTooLargeError(Exception):
    """An answer exceeds one of the bounds; caught in the math modules."""


def num(value: Fraction | int) -> ExprNode:
    """A rational number."""
    if type(value) is not Fraction:
        value = Fraction(value)
    return ExprNode("num", (value,), str(value))


def sym(name: str) -> ExprNode:
    """A free symbol."""
    return ExprNode("sym", (name,), name)


def const(name: str) -> ExprNode:
    """One of pi, e, i, inf."""
    return ExprNode("const", (name,), f"#{name}")


_NOTHING, _UNIT = Fraction(0), Fraction(1)
ZERO, ONE, MINUS_ONE, HALF = num(0), num(1), num(-1), num(Fraction(1, 2))


def rational(node: ExprNode) -> Fraction | None:
    """The exact value of a node that is a number."""
    return node.args[0] if node.op == "num" else None


def add(terms: Iterable[ExprNode]) -> ExprNode:
    """The sum of `terms`."""
    total, rest = _NOTHING, []
    for term in _flat("add", terms):
        if term.op == "num" and _fits(total, term.args[0]):
            total += term.args[0]
        else:
            rest.append(term)
    if total or not rest:
        rest.append(num(total))
    return _join("add", "+", rest)


def mul(factors: Iterable[ExprNode]) -> ExprNode:
    """The product of `factors`."""
    total, rest = _UNIT, []
    for factor in _flat("mul", factors):
        if factor.op == "num" and _fits(total, factor.args[0]):
            total *= factor.args[0]
        else:
            rest.append(factor)
    if total == 0 and not any(factor.op in ("pow", "const", "call", "bind") for factor in rest):
        return ZERO
    if total != 1 or not rest:
        rest.append(num(total))
    if total != 1 and len(rest) == 2 and rest[0].op == "add":
        return add(mul((num(total), term)) for term in rest[0].args)
    return _join("mul", "*", rest)


def neg(node: ExprNode) -> ExprNode:
    """Minus `node`."""
    return mul((MINUS_ONE, node))


def divide(top: ExprNode, bottom: ExprNode) -> ExprNode:
    """`top / bottom`; a zero denominator stays symbolic."""
    return mul((top, power(bottom, MINUS_ONE)))


def power(base: ExprNode, exponent: ExprNode) -> ExprNode:
    """`base ** exponent`, exact if both and the result are rational and small."""
    exact = rational(exponent)
    if exact == 1:
        return base
    if exact is not None:
        folded = _exact_power(base, exact)
        if folded is not None:
            return folded
    return ExprNode("pow", (base, exponent), f"(^ {base.key} {exponent.key})")


def call(name: str, args: Sequence[ExprNode]) -> ExprNode:
    """The function `name` of `args`, computed if they are numbers and the result is exact."""
    values = [rational(arg) for arg in args]
    exact = _exact_call(name, [v for v in values if v is not None]) if None not in values else None
    if exact is not None:
        return num(exact)
    if name in ("max", "min", "gcd", "lcm"):
        args = sorted(args, key=_key)
        if len(args) == 1:
            return args[0]
    return ExprNode("call", (name, *args), f"({name} {' '.join(arg.key for arg in args)})")


def bind(name: str, variable: str, parts: Sequence[ExprNode]) -> ExprNode:
    """A sum, product, limit or integral of `parts[0]` over `variable`; then its bounds."""
    # Bound letters have no names: their place in the tree is the name. A sum begins at 0.
    body, *limits = parts
    start = rational(limits[0]) if name == "sum" and limits else None
    shift = num(start or 0)
    letter = variable
    if not variable.startswith("#b"):
        inside = [x.args[1] for x in subtrees(body) if x.op == "bind"]
        letter = f"#b{max((int(x[2:]) + 1 for x in inside), default=0)}"
    if start or letter != variable:
        body = substitute(body, {variable: add((sym(letter), shift))})
    if start:
        limits = [x if "#inf" in x.key else add((x, neg(shift))) for x in limits]
    inner = " ".join(part.key for part in (body, *limits))
    return ExprNode("bind", (name, letter, body, *limits), f"({name} {letter} {inner})")


def subtrees(node: ExprNode) -> Iterator[ExprNode]:
    """A tree and all trees in it, from the left."""
    waiting = [node]
    while waiting:
        node = waiting.pop()
        yield node
        if node.op not in ("num", "sym", "const"):
            waiting += [arg for arg in reversed(node.args) if isinstance(arg, ExprNode)]


def symbols(*nodes: ExprNode) -> frozenset[str]:
    """Names of the free symbols of trees."""
    names: set[str] = set()
    for node in nodes:
        if node.op == "sym":
            names.add(node.args[0])
        elif node.op not in ("num", "const"):
            inside = symbols(*(arg for arg in node.args if isinstance(arg, ExprNode)))
            names |= inside - {node.args[1]} if node.op == "bind" else inside
    return frozenset(names)


def applied_letters(node: ExprNode) -> frozenset[str]:
    """Return the letters that were parsed as functions of the following brackets."""
    calls = (part.args[0] for part in subtrees(node) if part.op == "call")
    return frozenset(name[1:] for name in calls if name.startswith("@"))


def unapply(node: ExprNode, letters: frozenset[str]) -> ExprNode:
    """The tree with `letters` as factors of the following brackets, not as functions."""
    op, args = node.op, node.args
    if op == "pow" and _is_applied(args[0], letters):
        base = args[0]
        inside = unapply(base.args[1], letters)
        return mul((sym(base.args[0][1:]), power(inside, unapply(args[1], letters))))
    if _is_applied(node, letters):
        return mul((sym(args[0][1:]), unapply(args[1], letters)))
    new = [unapply(arg, letters) if isinstance(arg, ExprNode) else arg for arg in args]
    return _rebuilt(op, new, node)


def _is_applied(node: ExprNode, letters: frozenset[str]) -> bool:
    is_letter = node.op == "call" and node.args[0][:1] == "@" and node.args[0][1:] in letters
    return is_letter and len(node.args) == 2


def mentions(node: ExprNode, names: frozenset[str]) -> bool:
    """Return True if a call or binder named in `names` occurs in the tree."""
    return any(x.op in ("call", "bind") and x.args[0] in names for x in subtrees(node))


def substitute(node: ExprNode, values: Mapping[str, ExprNode]) -> ExprNode:
    """The tree with free symbols replaced; exact results are computed."""
    op, args = node.op, node.args
    if op == "sym":
        return values.get(args[0], node)
    if op in ("num", "const"):
        return node
    new: list[object] = [
        substitute(arg, values) if isinstance(arg, ExprNode) else arg for arg in args
    ]
    return _rebuilt(op, new, node)


def _rebuilt(op: str, args: list[Any], node: ExprNode) -> ExprNode:
    # A node of the same kind with other parts; `node` itself without parts.
    if op == "add":
        return add(args)
    if op == "mul":
        return mul(args)
    if op == "pow":
        return power(args[0], args[1])
    if op == "bind":
        return bind(args[0], args[1], args[2:])
    return call(args[0], args[1:]) if op == "call" else node


def _key(node: ExprNode) -> str:
    return node.key


def _flat(op: str, nodes: Iterable[ExprNode]) -> list[ExprNode]:
    flat: list[ExprNode] = []
    for node in nodes:
        if node.op == op:
            flat.extend(node.args)
        else:
            flat.append(node)
    return flat


def _join(op: str, sign: str, nodes: list[ExprNode]) -> ExprNode:
    if len(nodes) == 1:
        return nodes[0]
    nodes.sort(key=_key)
    return ExprNode(op, tuple(nodes), f"({sign} {' '.join(node.key for node in nodes)})")


def key_depth(key: str) -> int:
    """Return the depth of the parentheses of a key, and so of its tree."""
    depth = deepest = 0
    for char in key:
        depth += (char == "(") - (char == ")")
        deepest = max(deepest, depth)
    return deepest


def exact_log(value: ExprNode, base: ExprNode) -> ExprNode | None:
    """The logarithm of a power of a rational base, if it is an integer."""
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


def complex_part(value: ExprNode, is_imaginary: bool) -> ExprNode | None:
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


def has_minus(node: ExprNode) -> bool:
    """Return True for a negative number, or a product with one."""
    value = rational(node)
    if value is None and node.op == "mul":
        return any((factor := rational(arg)) is not None and factor < 0 for arg in node.args)
    return value is not None and value < 0


def bits(value: Fraction) -> int:
    """Size of a rational number."""
    return value.numerator.bit_length() + value.denominator.bit_length()


def _fits(a: Fraction, b: Fraction) -> bool:
    return bits(a) + bits(b) <= MAX_BITS


def _exact_power(base: ExprNode, exponent: Fraction) -> ExprNode | None:
    if base.op == "pow" and exponent.denominator == 1:
        return power(base.args[0], mul((base.args[1], num(exponent))))
    if base.op == "mul" and exponent.denominator == 1:
        return mul(power(factor, num(exponent)) for factor in base.args)
    value = rational(base)
    if value is None:
        return None
    if exponent.denominator != 1:
        root = _exact_root(value, exponent.denominator)
        if root is None:
            return None
        value, exponent = root, Fraction(exponent.numerator)
    if value == 0:
        return ZERO if exponent > 0 else None
    if abs(exponent.numerator) * bits(value) > MAX_BITS:
        return None
    return num(value**exponent.numerator)


def _exact_root(value: Fraction, degree: int) -> Fraction | None:
    if value < 0 or degree > 64:
        return None
    top, bottom = _integer_root(value.numerator, degree), _integer_root(value.denominator, degree)
    return None if top is None or bottom is None else Fraction(top, bottom)


def _integer_root(value: int, degree: int) -> int | None:
    if degree == 2:
        root = math.isqrt(value)
    else:
        if value.bit_length() > 900:
            return None
        root = round(value ** (1 / degree))
    return root if root**degree == value else None


def _exact_call(name: str, values: list[Fraction]) -> Fraction | None:
    first = values[0] if values else Fraction(0)
    whole = all(value.denominator == 1 for value in values)
    if name == "abs":
        return abs(first)
    if name in ("floor", "ceil"):
        return Fraction(math.floor(first) if name == "floor" else math.ceil(first))
    if name in ("max", "min") and values:
        return max(values) if name == "max" else min(values)
    if name in ("gcd", "lcm") and whole and values:
        result = (math.gcd if name == "gcd" else math.lcm)(*(value.numerator for value in values))
        return Fraction(result) if result.bit_length() <= MAX_BITS else None
    if name == "mod" and len(values) == 2 and values[1]:
        return first % values[1]
    if name == "sign" and len(values) == 1:
        return Fraction((first > 0) - (first < 0))
    if name == "gamma" and whole and 0 < first <= _FACTORIAL_MAX:
        return Fraction(math.factorial(first.numerator - 1))
    if name == "factorial" and whole and 0 <= first <= _FACTORIAL_MAX:
        return Fraction(math.factorial(first.numerator))
    if name == "factorial2" and whole and -1 <= first <= _FACTORIAL_MAX:
        return Fraction(math.prod(range(first.numerator, 0, -2)))
    if name == "binom" and whole and len(values) == 2:
        n, k = first.numerator, values[1].numerator
        return Fraction(math.comb(n, k)) if k >= 0 and 0 <= n <= _FACTORIAL_MAX else None
    return None


AnswerKind = Literal[
    "scalar", "list", "set", "seq", "union", "cap", "setminus", "ratio", "relation", "text",
]  # fmt: skip


class ParsedAnswer(NamedTuple):
    """The meaning of an answer."""

    kind: AnswerKind
    text: str = ""  # normal form as a text, of the whole answer only; a text's meaning
    node: ExprNode | None = None  # the expression of a scalar
    items: "tuple[ParsedAnswer, ...]" = ()  # members of a container, in order
    # Brackets of a `seq`: `()`, `[]`, `[)`, `(]`; of a list, `{}` if it was in braces.
    shape: str = ""
    unit: str = ""  # unit of a scalar; `%` means that the value was divided by 100
    label: str = ""  # left-hand side, such as `x` in `x = 5`
    # True if a `seq` was written as an inequality or a membership and is not a tuple.
    is_range: bool = False
    digits: int = 0  # significant digits of a scalar written as one decimal; 0 for everything else
    # `(op, difference)` with op `=`, `<`, `<=` or `!=`, for a single relation.
    relation: tuple[str, ExprNode] | None = None


def scalars(*nodes: ExprNode) -> tuple[ParsedAnswer, ...]:
    """Expressions as answers."""
    return tuple(ParsedAnswer("scalar", node=node) for node in nodes)
