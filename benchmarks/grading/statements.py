"""Sorts of logic and structure: statements, sets, congruences, permutations, products, words."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import product
from random import Random
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from benchmarks.grading.sort import Sort, formed, rules, shuffled, swapped, with_item

Tree: TypeAlias = Any
"""Statement: ("atom", letter), ("not", tree), or ("and" or "or", tree, tree)."""


def draw_statement(letters: str) -> Callable[[Random], Tree]:
    """Generator of statements about some letters, each of them once."""

    def draw(rng: Random) -> Tree:
        leaves: list[Tree] = [("atom", letter) for letter in letters[: rng.randint(2, 3)]]
        leaves = [("not", leaf) if rng.random() < 0.3 else leaf for leaf in leaves]
        tree = leaves[0]
        for leaf in leaves[1:]:
            tree = rng.choice(["and", "or"]), *rng.sample([tree, leaf], 2)
        return ("not", tree) if rng.random() < 0.2 else tree

    return draw


def truth(tree: Tree, point: Mapping[str, bool]) -> bool:
    """Truth of a statement, given the truth of its letters."""
    name, *parts = tree
    if name == "atom":
        return point[parts[0]]
    values = [truth(part, point) for part in parts]
    return not values[0] if name == "not" else all(values) if name == "and" else any(values)


def same_truth(first: Tree, second: Tree) -> bool:
    """True if two statements are equivalent."""
    points = [
        {letter: values[idx % 3] for idx, letter in enumerate("pqrABC")}
        for values in product([False, True], repeat=3)
    ]
    return all(truth(first, point) == truth(second, point) for point in points)


LOGIC = {"and": r" \land ", "or": r" \lor ", "not": r"\neg "}
OTHER_LOGIC = {"and": r" \wedge ", "or": r" \vee ", "not": r"\lnot "}
WORDS = {"and": r" \text{ and } ", "or": r" \text{ or } ", "not": r"\text{not } "}
ALGEBRA = {"and": r" \cap ", "or": r" \cup ", "not": "^c"}


def statement(tree: Tree, signs: Mapping[str, str], outer: bool = True) -> str:
    """LaTeX of a statement with some signs; a mark of a complement is behind it."""
    name, *parts = tree
    if name == "atom":
        return str(parts[0])
    texts = [statement(part, signs, outer=False) for part in parts]
    if name == "not" and signs["not"].startswith("^"):
        base = f"({texts[0]})" if parts[0][0] == "not" else texts[0]
        return base + signs["not"]
    if name == "not":
        return signs["not"] + texts[0]
    joined = signs[name].join(texts)
    return joined if outer else f"({joined})"


def other_signs(tree: Tree, rng: Random) -> str:
    """The signs of logic have several commands."""
    return statement(tree, rng.choice([OTHER_LOGIC, {**LOGIC, "not": r"\sim "}]))


def words_of_logic(tree: Tree, _: Random) -> str:
    """The signs of logic have names."""
    return statement(tree, WORDS)


STATEMENT_MISSES = rules("statement_missed")
STATEMENT_MOVES = tuple(rules("statement").values())
PROPOSITION = Sort(
    "proposition",
    draw_statement("pqr"),
    lambda tree: statement(tree, LOGIC),
    STATEMENT_MISSES,
    (other_signs, words_of_logic),
    (*STATEMENT_MOVES, *rules("proposition").values()),
    same_truth,
)


def complement_signs(tree: Tree, rng: Random) -> str:
    """The complement of a set has several marks."""
    return statement(
        tree, {**ALGEBRA, "not": rng.choice(["^{c}", r"^\complement", r"^{\mathsf{c}}"])}
    )


ALGEBRA_OF_SETS = Sort(
    "algebra of sets",
    draw_statement("ABC"),
    lambda tree: statement(tree, ALGEBRA),
    STATEMENT_MISSES,
    (complement_signs,),
    STATEMENT_MOVES,
    same_truth,
)

Quantified: TypeAlias = tuple[tuple[str, str], tuple[str, ...], str]
"""Quantifiers of two variables in order, the variables, and the relation of x and y."""
RELATIONS = {"<": "y > x", r"\le": r"y \ge x", "=": "y = x"}


def draw_quantified(rng: Random) -> Quantified:
    """Draw a statement about all or some numbers."""
    signs = rng.choice([(r"\forall", r"\exists"), (r"\exists", r"\forall"), (r"\forall",) * 2])
    return signs, tuple(rng.sample("xy", 2)), rng.choice(list(RELATIONS))


def quantified(value: Quantified, names: str = "xy", joint: str = r"\ ") -> str:
    """LaTeX of a quantified statement with names for its variables."""
    signs, order, sign = value
    bound = {"x": names[0], "y": names[1]}
    heads = (f"{quantifier} {bound[name]}" for quantifier, name in zip(signs, order, strict=True))
    return f"{joint.join(heads)}{joint}{names[0]} {sign} {names[1]}"


def renamed_variables(value: Quantified, rng: Random) -> str:
    """The letter of a quantified variable is bound."""
    return quantified(value, rng.choice(["ab", "st", "uv"]))


def other_spacing(value: Quantified, rng: Random) -> str:
    """The space, comma or colon behind a quantified variable has no meaning."""
    return quantified(value, joint=rng.choice([r"\,", r", ", r"\; ", r":\ "]))


def converse(value: Quantified, _: Random) -> str:
    """A relation read from the right has the converse sign."""
    return quantified(value).replace(f"x {value[2]} y", RELATIONS[value[2]])


def other_quantifier(value: Quantified, _: Random) -> Quantified:
    """A statement with the other quantifier of its second variable."""
    (first, second), order, sign = value
    return (first, r"\exists" if second == r"\forall" else r"\forall"), order, sign


def same_quantified(first: Quantified, second: Quantified) -> bool:
    """True if both are the same but for the order of like quantifiers."""
    alike = len(set(first[0])) == 1 and first[0] == second[0] and first[2] == second[2]
    return alike or first == second


QUANTIFIED = Sort(
    "quantified statement",
    draw_quantified,
    quantified,
    {
        "quantifier": other_quantifier,
        "order": lambda value, _: (value[0][::-1], value[1][::-1], value[2]),
        "operator": lambda value, _: (*value[:2], {"<": r"\le", r"\le": "="}.get(value[2], "<")),
    },
    (renamed_variables, other_spacing, converse),
    same=same_quantified,
)

Congruence: TypeAlias = tuple[int, int]
"""Residue and modulus."""


def draw_congruence(rng: Random) -> Congruence:
    """Draw a residue and its modulus."""
    modulus = rng.randint(3, 60)
    return rng.randrange(modulus), modulus


def congruence(value: Congruence) -> str:
    """LaTeX of a congruence."""
    return rf"x \equiv {value[0]} \pmod{{{value[1]}}}"


def other_modulus_sign(value: Congruence, rng: Random) -> str:
    """The modulus of a congruence has several commands."""
    form = rng.choice([r"({\rm mod}\ %d)", r"(\text{mod } %d)", r"\mod{%d}", r"\ (\bmod\ %d)"])
    return rf"x \equiv {value[0]} {form % value[1]}"


def as_family(value: Congruence, rng: Random) -> str | None:
    """A residue class holds the multiples of the modulus, shifted by the residue."""
    letter = rng.choice("knt")
    if not value[0]:
        return None
    return rf"x = {value[1]}{letter} + {value[0]}, {letter} \in \mathbb{{Z}}"


def other_residue(value: Congruence, rng: Random) -> Congruence:
    """A residue may be any member of its class."""
    return value[0] + value[1] * rng.choice([-1, 1]), value[1]


CONGRUENCE = Sort(
    "congruence",
    draw_congruence,
    congruence,
    {
        "off by one": lambda value, rng: (value[0] + rng.choice([-1, 1]), value[1]),
        "modulus": lambda value, rng: (value[0], value[1] + rng.choice([-1, 1])),
        "sign": lambda value, _: (-value[0], value[1]),
        "modulus doubled": lambda value, _: (value[0], value[1] * 2),
    },
    (other_modulus_sign, as_family),
    (other_residue,),
    same=lambda first, second: first[1] == second[1] and (first[0] - second[0]) % first[1] == 0,
)

Cycles: TypeAlias = tuple[tuple[int, ...], ...]


def draw_cycles(rng: Random) -> Cycles:
    """Draw one cycle or two disjoint ones."""
    numbers = tuple(rng.sample(range(1, 9), rng.randint(3, 6)))
    cut = rng.randint(2, len(numbers) - 2) if len(numbers) > 3 and rng.random() < 0.6 else 0
    return (numbers[:cut], numbers[cut:]) if cut else (numbers,)


def cycles(value: Cycles, space: str = r"\ ") -> str:
    """LaTeX of a permutation."""
    return "".join(f"({space.join(map(str, cycle))})" for cycle in value)


def other_gaps(value: Cycles, rng: Random) -> str:
    """The width of the space in a cycle has no meaning."""
    return cycles(value, rng.choice([" ", r"\,", "~", r"\;", r" \; "]))


def rotated(value: Cycles, rng: Random) -> Cycles:
    """A cycle may start at any of its numbers."""
    idx = rng.randrange(len(value))
    return with_item(value, idx, (*value[idx][1:], value[idx][0]))


def cycles_reordered(value: Cycles, _: Random) -> Cycles:
    """Disjoint cycles commute."""
    return value[::-1]


def images(value: Cycles) -> Mapping[int, int]:
    """Image of every number that a permutation moves."""
    return {number: cycle[(idx + 1) % len(cycle)] for cycle in value if len(cycle) > 1
            for idx, number in enumerate(cycle)}  # fmt: skip


def swapped_in_cycle(value: Cycles, rng: Random) -> Cycles:
    """A permutation with two numbers of a cycle swapped."""
    idx = rng.randrange(len(value))
    return with_item(value, idx, shuffled(value[idx], rng))


def other_number(value: Cycles, _: Random) -> Cycles:
    """A permutation that moves 9 for its first number."""
    return with_item(value, 0, (9, *value[0][1:]))


PERMUTATION = Sort(
    "permutation",
    draw_cycles,
    cycles,
    {
        "order": swapped_in_cycle,
        "operands": lambda value, _: tuple(cycle[::-1] for cycle in value),
        "element": lambda value, _: value[:-1] or None,
        "off by one": other_number,
        "cycles joined": lambda value, _: (tuple(n for cycle in value for n in cycle),),
    },
    (other_gaps,),
    (rotated, cycles_reordered),
    same=lambda first, second: images(first) == images(second),
)


CHOICE = Sort(
    "choice",
    lambda rng: rng.choice("ABCDE"),
    str,
    {
        "off by one": lambda value, rng: chr(ord(value) + rng.choice([-1, 1]))
        if value not in "AE" else None,
        "letter": lambda value, rng: rng.choice([c for c in "ABCDE" if c != value]),
    },
    (formed("bracketed_choice"),),
)  # fmt: skip

Choices: TypeAlias = tuple[tuple[str, ...], str]
"""Letters, and the word that joins them: and, or."""


def joined(letters: Sequence[str], joint: str) -> str:
    """Letters with commas between them, and a joint before the last."""
    return ", ".join(letters[:-1]) + joint + letters[-1]


def draw_choices(rng: Random) -> Choices:
    """Draw two or three letters that are all right, or that are alternatives."""
    return tuple(sorted(rng.sample("ABCDE", rng.randint(2, 3)))), rng.choice(["and", "and", "or"])


def word_apart(value: Choices, _: Random) -> str:
    """The word between letters may be a text of its own."""
    return joined(value[0], rf" \text{{ {value[1]} }} ")


def commas_alone(value: Choices, rng: Random) -> str | None:
    """A list of choices names all of them."""
    form = rng.choice([r"\text{%s}", r"\textbf{%s}", "%s"])
    return form % ", ".join(value[0]) if value[1] == "and" else None


def choices_reordered(value: Choices, rng: Random) -> Choices:
    """The choices of a list have no order."""
    return shuffled(value[0], rng), value[1]


def other_choice(value: Choices, rng: Random) -> Choices:
    """Choices with another letter in one place."""
    others = [letter for letter in "ABCDE" if letter not in value[0]]
    return with_item(value[0], rng.randrange(len(value[0])), rng.choice(others)), value[1]


CHOICES = Sort(
    "several choices",
    draw_choices,
    lambda value: rf"\text{{{joined(value[0], f' {value[1]} ')}}}",
    {
        "letter": other_choice,
        "element": lambda value, _: (value[0][:-1], value[1]) if len(value[0]) > 2 else None,
        "and/or": lambda value, _: (value[0], "or" if value[1] == "and" else "and"),
    },
    (word_apart, commas_alone),
    (choices_reordered,),
    same=lambda first, second: (set(first[0]), first[1]) == (set(second[0]), second[1]),
)

NAMES = ("Paris", "Tuesday", "Mercury", "parabola", "isosceles", "Euler", "increasing", "octagon",
         "rhombus", "hyperbola", "Saturn", "Oslo", "ellipse", "decreasing", "even", "odd",
         "Friday", "March", "Elena", "Marcus", "convex", "prime", "yes", "no")  # fmt: skip


def draw_word(rng: Random) -> str:
    """Draw a name, a sequence of letters, or a code of digits and letters."""
    kind = rng.random()
    if kind < 0.5:
        return rng.choice(NAMES)
    if kind < 0.75:
        letters = rng.choice(["HT", "WL", "ABC", "LR", "XO"])
        return "".join(rng.choice(letters) for _ in range(rng.randint(2, 5)))
    digit, letter = str(rng.randint(1, 9)), rng.choice("abcdfgh")
    return rng.choice([letter + digit, f"N{letter}{digit}", f"{digit}{letter.upper()}7", digit
                       + letter.upper()])  # fmt: skip


WORD = Sort(
    "word",
    draw_word,
    lambda value: rf"\text{{{value}}}",
    {
        "order of letters": swapped,
        "letter": lambda value, rng: value.replace(
            letter := rng.choice(value),
            "K" if letter.isupper() else "9" if letter.isdigit() else "k",
        ),
        "other word": lambda value, rng: draw_word(rng),
        "element": lambda value, _: value[:-1] if len(value) > 2 else None,
    },
    (formed("word_font"),),
)


def draw_genotype(rng: Random) -> str:
    """Draw a genotype of one or two genes."""
    pairs = [rng.choice([letter * 2, letter + letter.lower(), letter.lower() * 2])
             for letter in rng.choice(["A", "R", "AB", "TR"])]  # fmt: skip
    return "".join(pairs)


def other_allele(value: str, rng: Random) -> str:
    """A genotype with the other allele in one place."""
    idx = rng.randrange(len(value) // 2) * 2
    pair = value[idx : idx + 2]
    pair = pair.title() if pair[0] == pair[1] else rng.choice([pair.upper(), pair.lower()])
    return value[:idx] + pair + value[idx + 2 :]


GENOTYPE = Sort(
    "genotype",
    draw_genotype,
    lambda value: rf"\text{{{value}}}",
    {"case": other_allele, "element": lambda value, _: value[2:] or None},
    (formed("word_font"),),
)

Product: TypeAlias = Any
"""("vec" or "mat", letter), or the name of an operation and its operands."""
_RNG = np.random.default_rng(7)
VECTORS = {letter: _RNG.normal(size=3) for letter in "abcuv"}
MATRICES = {letter: _RNG.normal(size=(3, 3)) for letter in "ABC"}


def draw_product(rng: Random) -> Product:
    """Draw a product of vectors or of matrices."""
    u, v, w = (("vec", letter) for letter in rng.sample("abc", 3))
    m, n, k = (("mat", letter) for letter in rng.sample("ABC", 3))
    return rng.choice([
        ("cross", u, v), ("dot", u, ("cross", v, w)), ("cross", u, ("cross", v, w)),
        ("plus", ("cross", u, v), ("cross", v, w)), ("times", m, n), ("times", ("times", m, n), k),
        ("times", ("T", m), ("T", n)), ("times", ("inv", m), ("inv", n)), ("T", ("times", m, n)),
        ("times", ("times", ("inv", m), n), m), ("plus", ("times", m, n), ("T", m)),
    ])  # fmt: skip


OPERATIONS: Mapping[str, Callable[..., Any]] = {
    "cross": np.cross, "dot": np.dot, "plus": np.add, "minus": np.subtract, "times": np.matmul,
    "T": np.transpose, "inv": np.linalg.inv, "neg": np.negative,
}  # fmt: skip


def product_value(tree: Product) -> NDArray[np.float64]:
    """Value of a product for vectors and matrices drawn at random."""
    name, *parts = tree
    if name in ("vec", "mat"):
        return (VECTORS if name == "vec" else MATRICES)[parts[0]]
    return np.asarray(OPERATIONS[name](*map(product_value, parts)))


def same_product(first: Product, second: Product) -> bool:
    """True if both have the same value."""
    a, b = product_value(first), product_value(second)
    return a.shape == b.shape and bool(np.allclose(a, b))


INFIX = {"cross": r" \times ", "dot": r" \cdot ", "plus": " + ", "minus": " - ", "times": " "}


def formula(tree: Product, font: str = r"\vec{%s}", outer: bool = True) -> str:
    """LaTeX of a product with a font for its vectors; matrices are bold."""
    name, *parts = tree
    if name in ("vec", "mat"):
        return (font if name == "vec" else r"\mathbf{%s}") % parts[0]
    texts = [formula(part, font, outer=False) for part in parts]
    if name in ("T", "inv"):
        return texts[0] + {"T": "^T", "inv": "^{-1}"}[name]
    text = f"-{texts[0]}" if name == "neg" else INFIX[name].join(texts)
    return text if outer else f"({text})"


def vector_font(tree: Product, rng: Random) -> str | None:
    """A vector has an arrow, or is bold."""
    font = rng.choice([r"\mathbf{%s}", r"\boldsymbol{%s}", r"\overrightarrow{%s}"])
    return formula(tree, font) if r"\vec" in formula(tree) else None


def transpose_sign(tree: Product, rng: Random) -> str | None:
    """The transpose has several signs."""
    text = formula(tree)
    sign = rng.choice([r"^\top", r"^{\mathsf{T}}", r"^{T}", r"^{\intercal}"])
    return text.replace("^T", sign) if "^T" in text else None


def other_product(tree: Product, _: Random) -> Product:
    """A dot for a cross, a cross for a dot, a difference for a sum."""
    other = {"cross": "dot", "dot": "cross", "plus": "minus"}.get(tree[0])
    vectors = tree[0] == "plus" or (len(tree) > 2 and tree[1][0] == tree[2][0] == "vec")
    return (other, *tree[1:]) if other and vectors else None


PRODUCT_MISSES = rules("product_missed")
PRODUCT = Sort(
    "product of vectors or matrices",
    draw_product,
    formula,
    {
        "operands": PRODUCT_MISSES["operands"],
        "operator": other_product,
        "sign": lambda tree, _: ("neg", tree),
        "exponent": PRODUCT_MISSES["exponent"],
    },
    (vector_font, transpose_sign),
    tuple(rules("product").values()),
    same_product,
)
SORTS = (PROPOSITION, ALGEBRA_OF_SETS, QUANTIFIED, CONGRUENCE, PERMUTATION, CHOICE, CHOICES, WORD,
         GENOTYPE, PRODUCT)  # fmt: skip
