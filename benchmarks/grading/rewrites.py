"""Rewrites of any answer's LaTeX, and the replies around it."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from random import Random

from benchmarks.grading.sort import RULES, formed

Rewrite = Callable[[str, Random], str]
_TEXTS = re.compile(r"(\\(?:text|textbf|textit|texttt|textrm|begin|end|SI)\{[^{}]*\})")

_OPERATORS = re.compile(" ?([+=<>]) ?")


def outside_texts(text: str, change: Callable[[str], str]) -> str:
    """The text with its formulas changed and its texts left."""
    parts = _TEXTS.split(text)
    return "".join(part if idx % 2 else change(part) for idx, part in enumerate(parts))


def wide_commas(text: str, rng: Random) -> str:
    """The width of the space behind a comma has no meaning."""
    space = rng.choice([r",\,", r",\; ", ",  "])
    return outside_texts(text, lambda part: part.replace(", ", space))


def wide_operators(text: str, rng: Random) -> str:
    """The width of the space around a sign of an operation or relation has no meaning."""
    space = rng.choice([" ", r"\,", r"\;"])
    return outside_texts(
        text, lambda part: _OPERATORS.sub(lambda match: f" {match[1]}{space} ", part)
    )


def display_fractions(text: str, rng: Random) -> str:
    """The size of a fraction has no meaning."""
    return text.replace(r"\frac", rng.choice([r"\dfrac", r"\tfrac", r"\cfrac"]))


def display_style(text: str, _: Random) -> str:
    """The style of a formula has no meaning."""
    return rf"\displaystyle {text}"


def sized_brackets(text: str, rng: Random) -> str:
    """The size of a bracket has no meaning."""
    left, right = rng.choice([(r"\left", r"\right"), (r"\bigl", r"\bigr"), (r"\big", r"\big")])
    opened, parts = 0, list[str]()
    for part in re.split(r"(\\.|[()\[\]])", text):
        opened += part in ("(", "[")
        parts.append(f"{left}{part}" if part in ("(", "[") else part)
        if part in (")", "]"):
            if not opened:
                return text
            opened, parts[-1] = opened - 1, f"{right}{part}"
    return text if opened or r"\left" in text or r"\text" in text else "".join(parts)


UNICODE = {
    r"-": "−", r"\times": "×", r"\cdot": "·", r"\le": "≤", r"\ge": "≥", r"\pi": "π",
    r"\infty": "∞", r"\cup": "∪", r"\cap": "∩", r"\land": "∧", r"\lor": "∨", r"\in": "∈",
    r"\ne": "≠", r"\equiv": "≡", r"\forall": "∀", r"\exists": "∃",
}  # fmt: skip
SYNONYMS = {
    r"\le": r"\leq", r"\ge": r"\geq", r"\ne": r"\neq", r"\land": r"\wedge", r"\lor": r"\vee",
    "<": r"\lt ", ">": r"\gt ",
}  # fmt: skip
_COMMANDS = re.compile(r"\\[A-Za-z]+|[-<>]")


def unicode_signs(text: str, _: Random) -> str:
    """A sign in Unicode is its LaTeX command."""
    return outside_texts(
        text, lambda part: _COMMANDS.sub(lambda match: UNICODE.get(match[0], match[0]), part)
    )


def synonyms(text: str, _: Random) -> str:
    """Several commands of LaTeX draw the same sign."""
    return outside_texts(
        text, lambda part: _COMMANDS.sub(lambda match: SYNONYMS.get(match[0], match[0]), part)
    )


def outer_braces(text: str, _: Random) -> str:
    """Braces of a group draw nothing."""
    return f"{{{text}}}"


def final_period(text: str, rng: Random) -> str:
    """The period of a sentence is no part of the answer before it."""
    return text if text.rstrip("}").endswith(".") else text + rng.choice([".", r"\,."])


TEXT_REWRITES: Sequence[Rewrite] = (
    wide_commas, wide_operators, display_fractions, display_style, sized_brackets, unicode_signs,
    synonyms, outer_braces, final_period,
)  # fmt: skip
REPLIES: Sequence[Rewrite] = tuple(
    formed(name, section="reply_forms") for name in RULES["reply_forms"]
)
