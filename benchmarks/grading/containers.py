"""Sorts of several numbers: vectors, matrices, intervals, sets, lists, tuples, named parts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fractions import Fraction
from itertools import pairwise
from random import Random
from typing import TypeAlias

from benchmarks.grading.figures import RATIONAL, rational
from benchmarks.grading.sort import Change, Sort, formed, shuffled, with_item

Numbers: TypeAlias = tuple[Fraction, ...]
Rows: TypeAlias = tuple[Numbers, ...]


def draw_number(rng: Random) -> Fraction:
    """Draw a small number, mostly an integer."""
    bottom = rng.choice([1, 1, 1, 2, 3, 4])
    return Fraction(rng.choice([1, 1, -1]) * rng.randint(1, 12), bottom)


def draw_numbers(least: int, most: int) -> Callable[[Random], Numbers]:
    """Generator of several unlike numbers."""

    def draw(rng: Random) -> Numbers:
        count, numbers = rng.randint(least, most), list[Fraction]()
        while len(numbers) < count:
            number = draw_number(rng)
            numbers += [] if number in numbers else [number]
        return tuple(numbers)

    return draw


def one_off(numbers: Numbers, rng: Random) -> Numbers:
    """Numbers with one that is off by one."""
    idx = rng.randrange(len(numbers))
    return with_item(numbers, idx, numbers[idx] + rng.choice([-1, 1]))


def one_sign(numbers: Numbers, rng: Random) -> Numbers:
    """Numbers with one that has the other sign."""
    idx = rng.randrange(len(numbers))
    return with_item(numbers, idx, -numbers[idx])


def one_less(numbers: Numbers, rng: Random) -> Numbers | None:
    """Numbers without one of them."""
    idx = rng.randrange(len(numbers))
    return (*numbers[:idx], *numbers[idx + 1 :]) if len(numbers) > 2 else None


def one_more(numbers: Numbers, rng: Random) -> Numbers:
    """Numbers with one more at the end."""
    return (*numbers, draw_number(rng))


NUMBER_MISSES = {"off by one": one_off, "sign": one_sign, "element": one_less, "one more": one_more}
ORDER_MISS = {"order": shuffled}


def written_as(template: str, separators: Sequence[str]) -> Callable[[Numbers], str]:
    """Writer of numbers with the first of some separators, between the halves of a template."""
    before, after = template.split("…")
    return lambda numbers: before + separators[0].join(map(rational, numbers)) + after


def other_separators(template: str, separators: Sequence[str]) -> Callable[[Numbers, Random], str]:
    """Spelling of numbers with another of some separators."""
    before, after = template.split("…")

    def other_separator(numbers: Numbers, rng: Random) -> str:
        """The spacing and the sign between elements have no meaning."""
        separator = rng.choice(separators)
        return before + separator.join(map(rational, numbers)) + after

    return other_separator


def elements_respelled(template: str) -> Callable[[Numbers, Random], str]:
    """Spelling of numbers in which every fraction is spelled in another way."""
    before, after = template.split("…")

    def respelled_elements(numbers: Numbers, rng: Random) -> str:
        """An element may be written as any number of its value."""
        texts = []
        for number in numbers:
            spellings = [spelling(number, rng) for spelling in RATIONAL.spellings[:3]]
            usable = [text for text in spellings if text] if number.denominator > 1 else []
            texts.append(rng.choice(usable or [rational(number)]))
        return before + ", ".join(texts) + after

    return respelled_elements


TUPLE = Sort(
    "tuple",
    draw_numbers(2, 4),
    written_as("(…)", [", "]),
    {**NUMBER_MISSES, **ORDER_MISS},
    (other_separators("(…)", [r",\,", r",\; ", "; ", r";\ ", ","]), elements_respelled("(…)")),
)


def reordered(numbers: Numbers, rng: Random) -> Numbers:
    """The members of a set have no order."""
    return shuffled(numbers, rng)


def repeated(numbers: Numbers, rng: Random) -> Numbers:
    """A member of a set that is written twice is one member."""
    return (*numbers, rng.choice(numbers))


def same_set(first: Numbers, second: Numbers) -> bool:
    """True if both have the same members."""
    return set(first) == set(second)


SET = Sort(
    "set",
    draw_numbers(2, 4),
    written_as(r"\{…\}", [", "]),
    NUMBER_MISSES,
    (
        formed("braces", lambda numbers: ", ".join(map(rational, numbers))),
        other_separators(r"\{…\}", [r",\,", "; ", ","]),
        elements_respelled(r"\{…\}"),
    ),
    (reordered, repeated),
    same_set,
)


def joined_by_and(numbers: Numbers, rng: Random) -> str:
    """The word and joins the last element of a list to the others."""
    *first, last = map(rational, numbers)
    joint = rng.choice([r" \text{ and } ", r"\text{, and }", " and "])
    return ", ".join(first) + joint + last


LIST = Sort(
    "finite list",
    draw_numbers(2, 4),
    written_as("…", [", "]),
    NUMBER_MISSES,
    (joined_by_and, other_separators("…", [r",\,", r",\quad ", "; "]), elements_respelled("…")),
    (),
    same_set,
)


def array(rows: Rows, name: str = "pmatrix") -> str:
    """LaTeX of rows in a matrix environment."""
    body = r" \\ ".join(" & ".join(map(rational, row)) for row in rows)
    return rf"\begin{{{name}}} {body} \end{{{name}}}"


def column(numbers: Numbers, name: str = "pmatrix") -> str:
    """LaTeX of a column vector."""
    return array(tuple((number,) for number in numbers), name)


def square_column(numbers: Numbers, _: Random) -> str:
    """Round and square brackets of a vector have the same meaning."""
    return column(numbers, "bmatrix")


def transposed_row(numbers: Numbers, rng: Random) -> str:
    """The transpose of a row is a column."""
    mark = rng.choice(["T", r"\top", r"\mathsf{T}", r"{\intercal}"])
    row = rng.choice([array((numbers,)), f"({', '.join(map(rational, numbers))})"])
    return f"{row}^{{{mark}}}"


def angle_brackets(numbers: Numbers, _: Random) -> str:
    """Angle brackets hold the components of a vector."""
    return rf"\langle {', '.join(map(rational, numbers))} \rangle"


def unit_vectors(numbers: Numbers, rng: Random) -> str | None:
    """A vector in space is the sum of its components times the unit vectors."""
    if len(numbers) != 3:
        return None
    hat = rng.choice([r"\mathbf{%s}", r"\hat{%s}", r"\vec{%s}"])
    names = [hat % letter for letter in "ijk"]
    terms = (f"{'' if abs(n) == 1 else rational(abs(n))}{name}" for n, name in
             zip(numbers, names, strict=True))  # fmt: skip
    signs = ("-" if number < 0 else "+" for number in numbers)
    return "".join(s + t for s, t in zip(signs, terms, strict=True)).removeprefix("+")


VECTOR = Sort(
    "vector",
    draw_numbers(2, 4),
    column,
    {**NUMBER_MISSES, **ORDER_MISS},
    (square_column, transposed_row, angle_brackets, unit_vectors),
)


def draw_matrix(rng: Random) -> Rows:
    """Draw a matrix of two or three rows and columns."""
    count, width = rng.randint(2, 3), rng.randint(2, 3)
    return tuple(tuple(draw_number(rng) for _ in range(width)) for _ in range(count))


def square_brackets(rows: Rows, rng: Random) -> str:
    """Round and square brackets of a matrix have the same meaning."""
    if rng.random() < 0.5:
        return array(rows, "bmatrix")
    body = array(rows, "array").replace("{array}", f"{{array}}{{{'c' * len(rows[0])}}}", 1)
    return rf"\left[ {body} \right]"


def transposed(rows: Rows) -> Rows:
    """The transpose of a matrix."""
    return tuple(zip(*rows, strict=True))


def transposed_twice(rows: Rows, _: Random) -> str:
    """The transpose of the transpose is the matrix."""
    return f"{array(transposed(rows))}^T"


def factored(rows: Rows, _: Random) -> str:
    """A number before a matrix multiplies all of its elements."""
    factor = Fraction(1, 12)
    return rational(factor) + array(tuple(tuple(n / factor for n in row) for row in rows))


def in_a_row(change: Change) -> Change:
    """Change of one row of a matrix."""

    def miss(rows: Rows, rng: Random) -> Rows:
        idx = rng.randrange(len(rows))
        return with_item(rows, idx, change(rows[idx], rng))

    return miss


MATRIX = Sort(
    "matrix",
    draw_matrix,
    array,
    {
        "off by one": in_a_row(one_off),
        "sign": in_a_row(one_sign),
        "order": lambda rows, _: rows[::-1],
        "transposed": lambda rows, _: transposed(rows),
        "element": lambda rows, _: rows[:-1] if len(rows) > 2 else None,
    },
    (square_brackets, transposed_twice, factored),
)

Piece: TypeAlias = tuple[Fraction | None, bool, Fraction | None, bool]
"""Lower end, True if it is closed, upper end, True if it is closed; None is an infinite end."""


def draw_pieces(rng: Random) -> tuple[Piece, ...]:
    """Draw one interval or two that do not touch."""
    ends = sorted({draw_number(rng) for _ in range(9)})[:4]
    closed = [rng.random() < 0.5 for _ in ends]
    first: Piece = (ends[0], closed[0], ends[1], closed[1])
    second: Piece = (ends[2], closed[2], ends[3], closed[3])
    pieces = [first] if rng.random() < 0.6 else [first, second]
    if rng.random() < 0.3:
        pieces[0] = (None, False, *pieces[0][2:])
    elif rng.random() < 0.3:
        pieces[-1] = (*pieces[-1][:2], None, False)
    return tuple(pieces)


def interval(piece: Piece, brackets: str = "(])[") -> str:
    """LaTeX of an interval; brackets are open left, closed right, open right, closed left."""
    low, low_closed, high, high_closed = piece
    left = brackets[3] if low_closed else brackets[0]
    right = brackets[1] if high_closed else brackets[2]
    ends = (
        r"-\infty" if low is None else rational(low),
        r"\infty" if high is None else rational(high),
    )
    return f"{left}{ends[0]}, {ends[1]}{right}"


def intervals(pieces: tuple[Piece, ...]) -> str:
    """LaTeX of a union of intervals."""
    return r" \cup ".join(map(interval, pieces))


def outward_brackets(pieces: tuple[Piece, ...], _: Random) -> str:
    """An outward bracket leaves its end out, as ISO 80000 has it."""
    return r" \cup ".join(interval(piece, "]][[") for piece in pieces)


def inequality(piece: Piece) -> str:
    """LaTeX of the inequality of an interval."""
    low, low_closed, high, high_closed = piece
    if high is None:
        return f"x {_less(low_closed, '>')} {rational(low or 0)}"
    upper = f"x {_less(high_closed)} {rational(high)}"
    return upper if low is None else f"{rational(low)} {_less(low_closed)} {upper}"


def _less(closed: bool, sign: str = "<") -> str:
    return {"<": r"\le", ">": r"\ge"}[sign] if closed else sign


def as_inequality(pieces: tuple[Piece, ...], rng: Random) -> str:
    """An interval is the solution of its inequality."""
    return rng.choice([r" \text{ or } ", r" \lor "]).join(map(inequality, pieces))


def set_builder(pieces: tuple[Piece, ...], rng: Random) -> str:
    """An interval is the set of the real numbers that its inequality admits."""
    bar = rng.choice([r" \mid ", ": ", "|"])
    letter = rng.choice(["x", r"x \in \mathbb{R}"])
    condition = r" \text{ or } ".join(map(inequality, pieces))
    return rf"\{{{letter}{bar}{condition}\}}"


def membership(pieces: tuple[Piece, ...], _: Random) -> str:
    """The solutions of an inequality are the members of an interval."""
    return rf"x \in {intervals(pieces)}"


def union_reversed(pieces: tuple[Piece, ...], _: Random) -> tuple[Piece, ...]:
    """A union commutes."""
    return pieces[::-1]


def other_end(pieces: tuple[Piece, ...], rng: Random) -> tuple[Piece, ...] | None:
    """Intervals with an open end closed or a closed end opened."""
    idx = rng.randrange(len(pieces))
    low, low_closed, high, high_closed = pieces[idx]
    if low is not None and (high is None or rng.random() < 0.5):
        return with_item(pieces, idx, (low, not low_closed, high, high_closed))
    return with_item(pieces, idx, (low, low_closed, high, not high_closed))


def moved_end(step: Fraction) -> Change:
    """Change of one end by a step that reaches no other end."""

    def miss(pieces: tuple[Piece, ...], rng: Random) -> tuple[Piece, ...] | None:
        idx = rng.randrange(len(pieces))
        low, low_closed, high, high_closed = pieces[idx]
        piece = (low, low_closed, high + step, high_closed) if high is not None else (
            (low or 0) - step, low_closed, None, high_closed
        )  # fmt: skip
        after = with_item(pieces, idx, piece)
        ends = [end for part in after for end in (part[0], part[2]) if end is not None]
        return after if all(a < b for a, b in pairwise(ends)) else None

    return miss


def half_line_turned(pieces: tuple[Piece, ...], _: Random) -> tuple[Piece, ...] | None:
    """A half line that goes the other way."""
    if len(pieces) > 1:
        return None
    low, low_closed, high, high_closed = pieces[0]
    return None if None not in (low, high) else ((high, high_closed, low, low_closed),)


INTERVAL = Sort(
    "interval",
    draw_pieces,
    intervals,
    {
        "end": other_end,
        "off by one": moved_end(Fraction(1)),
        "branch": half_line_turned,
        "element": lambda pieces, _: pieces[:-1] or None,
        "sign": lambda pieces, _: tuple(
            (h if h is None else -h, hc, low if low is None else -low, lc)
            for low, lc, h, hc in pieces[::-1]
        ),
    },
    (outward_brackets, as_inequality, set_builder, membership),
    (union_reversed,),
    same=lambda first, second: set(first) == set(second),
)

Parts: TypeAlias = tuple[tuple[str, Fraction], ...]
PEOPLE = ("Paolo", "Qing", "Rayna", "Ana", "Ben", "Clara")


def draw_parts(rng: Random) -> Parts:
    """Draw two or three letters, or people, with their values."""
    names = rng.choice(["xyz", "abc", "pqr"]) if rng.random() < 0.6 else rng.sample(PEOPLE, 3)
    numbers = draw_numbers(3, 3)(rng)
    count = rng.randint(2, 3)
    people = len(names[0]) > 1
    values = [abs(number.numerator) if people else number for number in numbers]
    return tuple((names[idx], Fraction(values[idx])) for idx in range(count))


def named(parts: Parts, sign: str = "", joint: str = ", ") -> str:
    """LaTeX of names and values."""
    sign = sign or (" = " if len(parts[0][0]) == 1 else ": ")
    names = [name if len(name) == 1 else rf"\text{{{name}}}" for name, _ in parts]
    return joint.join(f"{name}{sign}{rational(value)}" for name, (_, value) in
                      zip(names, parts, strict=True))  # fmt: skip


def parts_reordered(parts: Parts, rng: Random) -> Parts:
    """Parts with names have no order."""
    return shuffled(parts, rng)


def other_joint(parts: Parts, rng: Random) -> str:
    """The word, sign or space between parts has no meaning."""
    return named(parts, joint=rng.choice(["; ", r" \text{ and } ", r",\quad ", r" \\ "]))


def other_equals(parts: Parts, rng: Random) -> str | None:
    """A colon or an equals sign gives a name its value."""
    return named(parts, rng.choice([" = ", "="])) if len(parts[0][0]) > 1 else named(parts, "=")


def names_first(parts: Parts, _: Random) -> str | None:
    """A tuple of names equals the tuple of their values."""
    if len(parts[0][0]) > 1:
        return None
    names = ", ".join(name for name, _ in parts)
    return f"({names}) = ({', '.join(rational(value) for _, value in parts)})"


def system(parts: Parts, _: Random) -> str | None:
    """Equations behind a brace hold together."""
    lines = named(parts, joint=r" \\ ")
    return rf"\begin{{cases}} {lines} \end{{cases}}" if len(parts[0][0]) == 1 else None


def of_values(change: Change) -> Change:
    """Change of the values of named parts."""

    def miss(parts: Parts, rng: Random) -> Parts:
        values = change(tuple(value for _, value in parts), rng)
        return tuple((name, value) for (name, _), value in zip(parts, values, strict=True))

    return miss


NAMED = Sort(
    "named parts",
    draw_parts,
    named,
    {
        "off by one": of_values(one_off),
        "sign": of_values(one_sign),
        "order": of_values(shuffled),
        "element": lambda parts, _: parts[:-1] if len(parts) > 2 else None,
        "letter": lambda parts, _: tuple(
            ("w" if len(name) == 1 else "Dmitri", value) if not idx else (name, value)
            for idx, (name, value) in enumerate(parts)
        ),
    },
    (other_joint, other_equals, names_first, system),
    (parts_reordered,),
    same=lambda first, second: dict(first) == dict(second),
)
SORTS = (TUPLE, SET, LIST, VECTOR, MATRIX, INTERVAL, NAMED)
