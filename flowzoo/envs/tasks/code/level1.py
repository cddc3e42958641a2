"""Level 1 of the generated code problems: two operations on a number, for models of pocket size.

`Write f(x): take x, add 3, then multiply by 4.` asks for `return (x + 3) * 4`. There are 8,779
statements. The traps are real ones: order of operations, parentheses, `x - 5` against `5 - x`,
quotient against remainder. The wording is frozen: the shipped pocket model was trained on it.
"""

from __future__ import annotations

import operator
import random
from collections.abc import Callable

from flowzoo.envs.tasks.code.family import PUBLIC, CodeDraft, ProblemFamily

LOW, HIGH = 2, 19
"""Constants are drawn from here."""

PHRASES = {
    "+": "add {}",
    "-": "subtract {}",
    "*": "multiply by {}",
    "//": "floor-divide by {}",
    "%": "reduce modulo {}",
    "from": "subtract it from {}",
}
_SUMS = ("+", "-", "from")
PAIRS = (
    *(
        (first, second)
        for first in PHRASES
        for second in PHRASES
        # Two of a kind would mostly come to one operation.
        if first != second and not (first in _SUMS and second in _SUMS)
    ),
    ("+", "from"),
    ("*", "*"),
    ("//", "//"),
    ("from", "-"),
)
"""The operations and their order."""

_RANGES = ((10, 99), (100, 400), (-400, -41), (400, 999), (0, 99), (-40, -1))
_MEANING: dict[str, Callable[[int, int], int]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "//": operator.floordiv,
    "%": operator.mod,
    "from": lambda x, constant: constant - x,
}


def operation(name: str, inner: str, constant: int) -> str:
    """The expression for one operation on `inner`."""
    return f"{constant} - ({inner})" if name == "from" else f"({inner}) {name} {constant}"


def is_constant(first: str, a: int, second: str, b: int) -> bool:
    """Whether the two operations give (nearly) the same number for every x."""
    if (first, second) == ("%", "//"):
        return 2 * b > a
    return (first, second) == ("*", "%") and a % b == 0


def inputs(value: Callable[[int], int]) -> Callable[[random.Random], tuple[int]]:
    """Draws small numbers for the examples, then hidden inputs.

    Those are first two pairs of neighbours with different values, which tell constants that are
    off by one behind a division; then numbers of every size.
    """
    drawn = 0
    waiting: list[int] = []

    def draw(rng: random.Random) -> tuple[int]:
        nonlocal drawn
        drawn += 1
        if drawn in (PUBLIC + 1, PUBLIC + 3):
            x = rng.randint(-40, 40)
            while value(x) == value(x + 1):
                x += 1
            waiting.extend((x + 1, x))
        if waiting:
            return (waiting.pop(),)
        low, high = (0, 20) if drawn <= PUBLIC else _RANGES[drawn % len(_RANGES)]
        return (rng.randint(low, high),)

    return draw


def draft(rng: random.Random) -> CodeDraft:
    """Two operations with their constants, and inputs from small to large."""
    first, second = rng.choice(PAIRS)
    a = b = 0
    while not a or is_constant(first, a, second, b):
        a, b = rng.randint(LOW, HIGH), rng.randint(LOW, HIGH)
    steps = PHRASES[first].format(a), PHRASES[second].format(b)
    expression = operation(second, operation(first, "x", a), b)

    def value(x: int) -> int:
        return _MEANING[second](_MEANING[first](x, a), b)

    return CodeDraft(
        f"Write f(x): take x, {steps[0]}, then {steps[1]}.",
        f"def f(x):\n    return {expression}",
        inputs(value),
        "f",
    )


LEVEL_1 = (ProblemFamily("two operations", 1, draft),)
