"""Generated code problems: 26 families in three levels, tens of thousands of statements.

1. one expression in one variable (`code_level1`), for models of pocket size
2. functions over numbers, lists, strings and dicts (`code_level2`)
3. programs that read stdin, and longer functions (`code_level3`)
"""

from __future__ import annotations

import random

from flowzoo.envs.tasks.code.family import CodeDraft, ProblemFamily
from flowzoo.envs.tasks.code.level1 import LEVEL_1
from flowzoo.envs.tasks.code.level2 import LEVEL_2
from flowzoo.envs.tasks.code.level3 import LEVEL_3
from flowzoo.errors import unknown

LEVELS: dict[int, tuple[ProblemFamily, ...]] = {1: LEVEL_1, 2: LEVEL_2, 3: LEVEL_3}
FAMILIES: dict[str, ProblemFamily] = {
    family.name: family for families in LEVELS.values() for family in families
}


def family_named(name: str) -> ProblemFamily:
    """The family called `name`.

    Raises:
        UsageError: there is none; the near matches are named.
    """
    if name not in FAMILIES:
        raise unknown("family of code problems", name, FAMILIES)
    return FAMILIES[name]


def draw(
    level: int, rng: random.Random, family: str | None = None
) -> tuple[ProblemFamily, CodeDraft]:
    """A draft of `level`, of one of its families or of the one named; `complete` makes it whole."""
    chosen = family_named(family) if family else rng.choice(LEVELS[level])
    return chosen, chosen.draft(rng)
