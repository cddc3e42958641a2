"""Sorts of expressions: real and complex ones, functions, relations, families of solutions."""

from __future__ import annotations

import cmath
import math
from collections.abc import Callable, Mapping
from fractions import Fraction
from random import Random
from typing import Any, TypeAlias

from benchmarks.grading.figures import rational
from benchmarks.grading.sort import Change, Sort, anywhere, formed, rules

Tree: TypeAlias = Any
"""Expression: ("num", rational), ("var", letter), or the name of an operation and its operands."""
FUNCTIONS: Mapping[str, Callable[[complex], complex]] = {
    "sin": cmath.sin, "cos": cmath.cos, "ln": cmath.log, "sqrt": cmath.sqrt,
}  # fmt: skip
POINTS = ({"x": 0.7318, "y": 1.3471, "a": 0.4142, "b": 2.2361, "t": 1.1, "u": 0.3},
          {"x": 2.8457, "y": 0.5913, "a": 1.7193, "b": 0.8261, "t": 0.6, "u": 2.1},
          {"x": 1.4691, "y": 2.1177, "a": 3.1618, "b": 1.3093, "t": 2.2, "u": 0.9})  # fmt: skip
"""Positive values of the letters, at which two trees are compared."""


def num(value: int | Fraction) -> Tree:
    """Constant."""
    return "num", Fraction(value)


def value_at(tree: Tree, point: Mapping[str, float]) -> complex:
    """Value of an expression at a point."""
    name, *parts = tree
    if name == "num":
        return complex(float(parts[0]))
    if name == "var":
        return 1j if parts[0] == "i" else math.pi if parts[0] == "pi" else complex(point[parts[0]])
    values = [value_at(part, point) for part in parts]
    if name in FUNCTIONS:
        return FUNCTIONS[name](values[0])
    if name == "neg":
        return -values[0]
    first, second = values
    return {"add": lambda: first + second, "mul": lambda: first * second,
            "div": lambda: first / second, "pow": lambda: first**second}[name]()  # fmt: skip


def same_value(first: Tree, second: Tree) -> bool:
    """True unless the values at a point differ beyond rounding; a point without values is none."""
    for point in POINTS:
        try:
            a, b = value_at(first, point), value_at(second, point)
        except (ArithmeticError, ValueError):
            continue
        if abs(a - b) > 1e-6 * (1 + abs(a) + abs(b)):
            return False
    return True


RANK = {"add": 1, "neg": 1, "mul": 2, "num": 4, "var": 4, "pow": 3, "div": 4}


def tex(tree: Tree, rank: int = 0) -> str:
    """LaTeX of an expression, in brackets if it binds less than the rank."""
    name, *parts = tree
    text = _plain(name, parts)
    weak = RANK.get(name, 3) < rank or (name == "num" and rank > 1 and _signed_or_high(parts, rank))
    return f"({text})" if weak or (name == "div" and rank == 4) else text


def _signed_or_high(parts: list[Any], rank: int) -> bool:
    return parts[0] < 0 or (rank == 4 and parts[0].denominator > 1)


def _plain(name: str, parts: list[Any]) -> str:
    match name:
        case "num":
            return rational(parts[0])
        case "var":
            return r"\pi" if parts[0] == "pi" else parts[0]
        case "neg":
            return f"-{tex(parts[0], 2)}"
        case "add":
            second = tex(parts[1], 1) if parts[1][0] != "neg" else tex(parts[1])
            second = f"({second})" if parts[1][0] == "add" else second
            return f"{tex(parts[0])}{'' if second.startswith('-') else '+'}{second}"
        case "mul":
            return _product(*parts)
        case "div":
            return rf"\frac{{{tex(parts[0])}}}{{{tex(parts[1])}}}"
        case "pow":
            return f"{tex(parts[0], 4)}^{{{tex(parts[1])}}}"
        case "sqrt":
            return rf"\sqrt{{{tex(parts[0])}}}"
        case _:
            return rf"\{name}({tex(parts[0])})"


def _product(first: Tree, second: Tree) -> str:
    left, right = tex(first, 2), tex(second, 3)
    apart = (
        right[0].isdigit() or right.startswith(r"\frac") or first[0] not in ("num", "var", "pow")
    )
    return (
        f"{left} \\cdot {right}" if apart else f"{left}{' ' if left[-1].isalpha() else ''}{right}"
    )


def draw_tree(letters: str, depth: int) -> Callable[[Random], Tree]:
    """Generator of expressions of a depth in some letters."""

    def draw(rng: Random, depth: int = depth) -> Tree:
        if depth == 0:
            if rng.random() < 0.4:
                return num(rng.randint(2, 9))
            return "var", rng.choice(letters)
        below = [draw(rng, rng.randint(0, depth - 1)), draw(rng, depth - 1)]
        name = rng.choice(["add", "add", "mul", "mul", "div", "pow", "fn", "sub"])
        if name == "pow":
            return "pow", below[1], num(rng.randint(2, 4))
        if name == "fn":
            return rng.choice(list(FUNCTIONS)), below[1]
        if name == "sub":
            return "add", below[0], ("neg", below[1])
        return name, *rng.sample(below, 2)

    def with_letter(rng: Random) -> Tree:
        while True:
            tree = draw(rng)
            values = [_value_or_none(tree, point) for point in POINTS]
            if None not in values and len({round(v.real, 6) for v in values if v}) == len(POINTS):
                return tree

    return with_letter


def _value_or_none(tree: Tree, point: Mapping[str, float]) -> complex | None:
    try:
        value = value_at(tree, point)
    except (ArithmeticError, ValueError):
        return None
    return value if abs(value.imag) < 1e-12 and 1e-6 < abs(value) < 1e6 else None


NUMBER_MOVES = tuple(rules("number").values())
MOVES = (*NUMBER_MOVES, *rules("letters").values())
"""Moves of an expression with letters."""


def other_exponent(tree: Tree) -> Tree:
    """An exponent that is larger by one."""
    return ("pow", tree[1], num(tree[2][1] + 1)) if tree[0] == "pow" else None


def next_constant(tree: Tree) -> Tree:
    """A constant that is larger by one."""
    return num(tree[1] + 1) if tree[0] == "num" and tree[1].denominator == 1 else None


_MISSED = rules("number_missed")
MISSES: Mapping[str, Change] = {
    "sign": _MISSED["sign"], "operator": _MISSED["operator"], "exponent": anywhere(other_exponent),
    "off by one": anywhere(next_constant), "operands": _MISSED["operands"],
    "function": _MISSED["function"], "branch": _MISSED["branch"], "letter": _MISSED["letter"],
}  # fmt: skip
REAL = Sort("real expression", draw_tree("xyab", 3), tex, MISSES, (), MOVES, same_value)


def draw_surd(rng: Random) -> Tree:
    """Draw a number of roots, logarithms, π and rationals."""
    kinds = ("sqrt", num(rng.choice([2, 3, 5, 7]))), ("ln", num(rng.randint(2, 9))), ("var", "pi")
    second = "mul", num(rng.randint(2, 9)), rng.choice(kinds)
    tree = "add", num(rng.randint(1, 9)), second if rng.random() < 0.5 else ("neg", second)
    return ("div", tree, num(rng.randint(2, 7))) if rng.random() < 0.5 else tree


SURD = Sort(
    "irrational number",
    draw_surd,
    tex,
    {kind: MISSES[kind] for kind in ("sign", "operator", "off by one", "operands", "branch")},
    (),
    NUMBER_MOVES,
    same_value,
)


def draw_complex(rng: Random) -> Tree:
    """Draw a complex number with rational or irrational parts."""
    size = rng.choice([num(rng.randint(2, 9)), ("sqrt", num(rng.choice([2, 3, 5])))])
    imaginary = "mul", size, ("var", "i")
    real = rng.choice([num(rng.randint(-9, 9) or 4), ("sqrt", num(rng.choice([2, 3, 5])))])
    tree = "add", real, rng.choice([imaginary, ("neg", imaginary)])
    return ("div", tree, num(rng.randint(2, 7))) if rng.random() < 0.4 else tree


def roman_i(tree: Tree, _: Random) -> str:
    """The imaginary unit may be upright, as ISO 80000 has it."""
    return tex(tree).replace("i", r"\mathrm{i}")


COMPLEX = Sort(
    "complex number",
    draw_complex,
    tex,
    {
        "sign": MISSES["sign"],
        "off by one": MISSES["off by one"],
        "branch": MISSES["branch"],
        "factor i": _MISSED["factor_i"],
    },
    (roman_i,),
    NUMBER_MOVES,
    same_value,
)


def function_of(letter: str, tree: Tree) -> str:
    """LaTeX of a function's equation with a letter for x."""
    return f"f({letter})={tex(tree)}".replace("x", letter)


def renamed_argument(tree: Tree, rng: Random) -> str:
    """The letter of a function's argument is bound."""
    return function_of(rng.choice("tuz"), tree)


FUNCTION = Sort(
    "function",
    draw_tree("x", 2),
    lambda tree: function_of("x", tree),
    {kind: change for kind, change in MISSES.items() if kind != "letter"},
    (renamed_argument, formed("assigned", tex)),
    MOVES,
    same_value,
)

SIGNS = ("=", r"\le", "<", r"\ge", ">", r"\ne")
FLIPPED = dict(zip(SIGNS, ("=", r"\ge", ">", r"\le", "<", r"\ne"), strict=True))
Relation: TypeAlias = tuple[Tree, str, Tree]


def draw_relation(rng: Random) -> Relation:
    """Draw a line, a circle or a half plane."""
    a, b, c = (num(rng.randint(2, 9)) for _ in range(3))
    x, y = ("var", "x"), ("var", "y")
    if rng.random() < 0.3:
        return ("add", ("pow", x, num(2)), ("pow", y, num(2))), rng.choice(SIGNS), c
    second = "mul", b, y
    left = "add", ("mul", a, x), second if rng.random() < 0.5 else ("neg", second)
    return left, rng.choice(SIGNS[:1] * 4 + SIGNS), c


def relation(value: Relation) -> str:
    """LaTeX of a relation."""
    left, sign, right = value
    return f"{tex(left)} {sign} {tex(right)}"


def sides_swapped(value: Relation, _: Random) -> Relation:
    """A relation read from the right has the converse sign."""
    left, sign, right = value
    return right, FLIPPED[sign], left


def sides_multiplied(value: Relation, rng: Random) -> Relation:
    """A relation keeps its solutions if both sides are multiplied by a positive number."""
    left, sign, right = value
    factor = num(rng.randint(2, 4))
    return ("mul", factor, left), sign, num(factor[1] * right[1]) if right[0] == "num" else (
        "mul", factor, right
    )  # fmt: skip


def side_moved(value: Relation, _: Random) -> Relation:
    """A relation keeps its solutions if a side is subtracted from both."""
    left, sign, right = value
    return ("add", left, ("neg", right)), sign, num(0)


def left_rewritten(value: Relation, rng: Random) -> Relation | None:
    """An equal expression may replace a side of a relation."""
    left, sign, right = value
    side = MOVES[rng.randrange(2)](left, rng)
    return side and (side, sign, right)


def other_relation(value: Relation, rng: Random) -> Relation:
    """A relation with another sign."""
    left, sign, right = value
    return left, rng.choice([other for other in SIGNS if other != sign]), right


def side_missed(kind: str) -> Callable[[Relation, Random], Relation | None]:
    """Change of a side of a relation by a kind of near miss."""

    def miss(value: Relation, rng: Random) -> Relation | None:
        left, sign, right = value
        side = MISSES[kind](left, rng)
        return side and (side, sign, right)

    return miss


def same_solutions(first: Relation, second: Relation) -> bool:
    """True if the differences of the sides have one ratio, and the signs fit that of the ratio."""
    ratios = [
        ((value_at(first[0], point) - value_at(first[2], point))
         / (value_at(second[0], point) - value_at(second[2], point))).real
        for point in POINTS
    ]  # fmt: skip
    sign = second[1] if ratios[0] > 0 else FLIPPED[second[1]]
    return first[1] == sign and math.isclose(min(ratios), max(ratios), rel_tol=1e-6)


RELATION = Sort(
    "relation",
    draw_relation,
    relation,
    {
        "operator": other_relation,
        "sign": side_missed("sign"),
        "exponent": side_missed("exponent"),
        "letter": side_missed("letter"),
        "off by one": lambda value, _: (value[0], value[1], num(value[2][1] + 1)),
    },
    (),
    (sides_swapped, sides_multiplied, side_moved, left_rewritten),
    same=same_solutions,
)  # fmt: skip

Family: TypeAlias = tuple[Fraction, Fraction, bool]
"""Start and period of a family of solutions in units of π, and True if the period is last."""


def draw_family(rng: Random) -> Family:
    """Draw the solutions of a trigonometric equation."""
    start = Fraction(rng.randint(1, 11), rng.choice([2, 3, 4, 6, 12]))
    return start % 2, rng.choice([Fraction(1), Fraction(2), Fraction(2), Fraction(1, 2)]), True


def of_pi(value: Fraction, letter: str = "") -> str:
    """LaTeX of a multiple of π and a letter, in one fraction."""
    top = abs(value.numerator)
    text = f"{top if top > 1 else ''}{letter}\\pi"
    text = rf"\frac{{{text}}}{{{value.denominator}}}" if value.denominator > 1 else text
    return f"-{text}" if value < 0 else text


def family_in(value: Family, letter: str, integers: str = r"\mathbb{Z}") -> str:
    """LaTeX of a family of solutions with a letter for its parameter."""
    start, step, last = value
    parts = [of_pi(start), of_pi(step, letter)] if start else [of_pi(step, letter)]
    text = "+".join(parts if last else parts[::-1]).replace("+-", "-")
    return rf"x = {text}, {letter} \in {integers}"


def renamed_parameter(value: Family, rng: Random) -> str:
    """The letter of a family's parameter is bound."""
    return family_in(value, rng.choice("nm"))


def worded_integers(value: Family, _: Random) -> str:
    """That a parameter is an integer may be a sentence."""
    text = family_in(value, "k").partition(",")[0]
    return rf"{text} \text{{ where }} k \text{{ is an integer}}"


def plain_integers(value: Family, rng: Random) -> str:
    """The set of integers is a Z in any of several fonts."""
    return family_in(value, "k", rng.choice([r"\mathbf{Z}", r"\Z", r"\mathbb Z"]))


def other_start(value: Family, rng: Random) -> Family:
    """A family keeps its members if it starts at another one."""
    start, step, last = value
    return start + step * rng.choice([-1, 1]), step, last


def backward(value: Family, _: Random) -> Family:
    """A parameter that runs through all integers may change its sign."""
    start, step, last = value
    return start, -step, last


def period_first(value: Family, _: Random) -> Family | None:
    """Addition commutes."""
    start, step, last = value
    return (start, step, not last) if start > 0 else None


FAMILY = Sort(
    "family of solutions",
    draw_family,
    lambda value: family_in(value, "k"),
    {
        "period": lambda value, _: (value[0], value[1] * 2, value[2]),
        "sign": lambda value, _: (-value[0], value[1], value[2]),
        "off by one": lambda value, _: (
            value[0] + Fraction(1, value[0].denominator), value[1], value[2]
        ),
    },
    (renamed_parameter, worded_integers, plain_integers),
    (other_start, backward, period_first),
    same=lambda first, second: abs(first[1]) == abs(second[1])
    and (first[0] - second[0]) % abs(first[1]) == 0,
)  # fmt: skip
SORTS = (REAL, SURD, COMPLEX, FUNCTION, RELATION, FAMILY)
