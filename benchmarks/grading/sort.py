"""A sort of answers, and answers of it: a value, its writings, and values beside it."""

from __future__ import annotations

import operator
import re
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from random import Random
from typing import Any, TypeAlias

Spelling: TypeAlias = Callable[[Any, Random], str | None]
"""Another text of a value, or None where the value has no such text."""
Change: TypeAlias = Callable[[Any, Random], Any]
"""Another value, or None where there is none; a move keeps the meaning, a miss changes it."""
Rule: TypeAlias = Callable[[Any], Any]
"""A node of a tree rewritten, or None where the rule does not apply to it."""


@dataclass(frozen=True)
class Sort:
    """A sort of answers."""

    name: str
    draw: Callable[[Random], Any]
    """Draws a value."""
    write: Callable[[Any], str]
    """LaTeX of a value as a reference answer has it."""
    misses: Mapping[str, Change]
    """Near misses by kind."""
    spellings: Sequence[Spelling] = ()
    moves: Sequence[Change] = ()
    same: Callable[[Any, Any], bool] = field(default=operator.eq)
    """True if two values are the same answer; a miss that is the same value is none."""


def paths(tree: Any) -> list[tuple[int, ...]]:
    """Positions of all nodes of a tree; a node is a tuple of its name and its operands."""
    if not isinstance(tree, tuple):
        return []
    below = [(idx, *path) for idx, part in enumerate(tree) for path in paths(part)]
    return [(), *below]


def node_at(tree: Any, path: tuple[int, ...]) -> Any:
    """Node at a position."""
    for idx in path:
        tree = tree[idx]
    return tree


def replaced(tree: Any, path: tuple[int, ...], node: Any) -> Any:
    """The tree with another node at a position."""
    if not path:
        return node
    first, *rest = path
    return (*tree[:first], replaced(tree[first], tuple(rest), node), *tree[first + 1 :])


def anywhere(rule: Rule) -> Change:
    """A rule, used at one node at which it applies, drawn at random."""

    def change(tree: Any, rng: Random) -> Any:
        positions = paths(tree)
        for path in rng.sample(positions, len(positions)):
            node = rule(node_at(tree, path))
            if node is not None:
                return replaced(tree, path, node)
        return None

    change.__name__ = rule.__name__
    change.__doc__ = rule.__doc__
    return change


RULES = tomllib.loads(Path(__file__).with_name("rules.toml").read_text(encoding="utf-8"))


def rules(section: str) -> dict[str, Change]:
    """Rewrites of a node anywhere in a tree by name, from a section of `rules.toml`.

    A case is `TREE -> TREE`, in which u, v and w are any nodes and a number is a constant; the
    first one that fits a node is used, and cases are separated by semicolons.
    """
    return {name: anywhere(_rule(name, *rule)) for name, rule in RULES[section].items()}


def formed(
    name: str, write: Callable[[Any], str] = str, section: str = "value_forms"
) -> Callable[[Any, Random], str]:
    """Spelling of a value that puts its text into one of the forms in a section of `rules.toml`."""
    why, *forms = RULES[section][name]

    def spelling(value: Any, rng: Random) -> str:
        form = rng.choice(forms) if len(forms) > 1 else forms[0]
        return form.replace("…", write(value))

    spelling.__name__, spelling.__doc__ = name, why
    return spelling


def _rule(name: str, why: str, text: str) -> Rule:
    cases = [[*map(_read, case.split("->"))] for case in text.split(";")]

    def rule(node: Any) -> Any:
        for pattern, result in cases:
            found: dict[str, Any] = {}
            if _fits(pattern, node, found):
                return _filled(result, found)
        return None

    rule.__name__, rule.__doc__ = name, why
    return rule


def _read(text: str) -> Any:
    """A tree from its text, in which brackets hold a name and operands."""
    stack: list[list[Any]] = [[]]
    for token in re.findall(r"[()]|[^\s()]+", text):
        if token == "(":
            stack.append([])
        elif token == ")":
            node = tuple(stack.pop())
            stack[-1].append(node)
        else:
            is_number = token.lstrip("-")[0].isdigit()
            stack[-1].append(("num", Fraction(token)) if is_number else token)
    return stack[0][0]


def _fits(pattern: Any, node: Any, found: dict[str, Any]) -> bool:
    if isinstance(pattern, str) and pattern in "uvw":
        found[pattern] = node
        return True
    if not isinstance(pattern, tuple) or not isinstance(node, tuple):
        return pattern == node
    pairs = zip(pattern, node, strict=False)
    return len(pattern) == len(node) and all(_fits(*pair, found) for pair in pairs)


def _filled(pattern: Any, found: dict[str, Any]) -> Any:
    if isinstance(pattern, tuple):
        return tuple(_filled(part, found) for part in pattern)
    return found.get(pattern, pattern) if isinstance(pattern, str) else pattern


def swapped(text: str, rng: Random) -> str | None:
    """A text with two unlike neighbors swapped."""
    places = [idx for idx in range(len(text) - 1) if text[idx] != text[idx + 1]]
    if not places:
        return None
    idx = rng.choice(places)
    return text[:idx] + text[idx + 1] + text[idx] + text[idx + 2 :]


def with_item(items: Sequence[Any], idx: int, item: Any) -> tuple[Any, ...]:
    """Items with another one at an index."""
    return (*items[:idx], item, *items[idx + 1 :])


def shuffled(items: Sequence[Any], rng: Random) -> tuple[Any, ...]:
    """Items in another order."""
    return tuple(rng.sample(items, len(items)))
