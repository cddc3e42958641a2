r"""Several relations side by side in one answer: where one ends and the next begins.

`x = 1 \quad x = 3`, `a = 1 \\ b = 2` and `x = 1 | x = 3` are several equations, not one chain whose
last side counts.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Final

from flowzoo.reward.math.tokens import MathToken

_ROWS: Final = re.compile(
    r"\\begin\s?\{(cases|aligned|align\*?|gathered|split|array|system)\}\s?(?:\{[lcr| ]*\})?"
    r"(?P<rows>.*)\\end\s?\{\1\}",
    re.DOTALL,
)
_RELATION = re.compile(r"[<>=]|\\(?:leq|geq|neq|equiv|in)(?![A-Za-z])")


def rows_of(cleaned: str) -> str | None:
    """The rows of an answer that is one environment of relations, without alignment marks."""
    found = _ROWS.fullmatch(cleaned)
    if found is None or "\\begin" in found["rows"] or "\\end" in found["rows"]:
        return None
    rows = [row for row in found["rows"].split("\\\\") if row.strip()]
    if found[1] == "cases" and "&" in found["rows"]:
        return None  # pieces of a function, each with its condition
    if not all(_RELATION.search(row) for row in rows):
        return None
    return "\\\\".join(rows).replace("&", " ").strip()


_PIECES: Final = re.compile(
    r"(?:[^=\\]{1,24}=)?\s*\\begin\s?\{cases\}(?P<rows>.*)\\end\s?\{cases\}", re.DOTALL
)
_LED_BY = re.compile(
    r"(?:\\text\s?\{\s*,?\s*(?:if|for|when|where)?\s*\}|\b(?:if|for|when)\b)", re.IGNORECASE
)


def pieces_of(cleaned: str) -> list[tuple[str, str]] | None:
    """Value and condition of each piece of a function that is defined in pieces, or None."""
    found = _PIECES.fullmatch(cleaned)
    if found is None or "&" not in found["rows"] or "\\begin" in found["rows"]:
        return None
    rows = [row.split("&") for row in found["rows"].split("\\\\") if row.strip()]
    if len(rows) < 2 or not all(len(row) == 2 and row[1].strip() for row in rows):
        return None
    return [
        (value.strip(" ,.;\n"), _LED_BY.sub(" ", condition, count=1).strip(" ,.;\n"))
        for value, condition in rows
    ]


def split_relations(
    tokens: Sequence[MathToken],
    top: Sequence[int],
    relations: Sequence[int],
    bounds: tuple[int, int],
    is_name: Callable[[int, int], bool],
    is_closed: Callable[[int, int], bool],
) -> list[tuple[int, int]]:
    """The slices of the relations that stand side by side; one slice if it is a chain.

    Args:
        tokens: all tokens.
        top: indices of those outside every bracket.
        relations: indices of the relation signs among them.
        bounds: where the answer starts and ends.
        is_name: whether a slice only names something.
        is_closed: whether a slice is an expression without symbols.
    """
    start, end = bounds
    slices: list[tuple[int, int]] = []
    begin = start
    seen = {_text(tokens, start, relations[0])}
    for left, right in pairwise(relations):
        inside = [idx for idx in top if left < idx < right]
        cut = _hard_cut(tokens, inside) or _soft_cut(
            tokens, inside, right, seen, is_name, is_closed
        )
        if cut is None:
            continue
        slices.append((begin, cut[0]))
        begin = cut[1]
        seen.add(_text(tokens, begin, right))
    return [*slices, (begin, end)]


def _text(tokens: Sequence[MathToken], start: int, end: int) -> str:
    return "".join(token.text for token in tokens[start:end])


def _hard_cut(tokens: Sequence[MathToken], inside: Sequence[int]) -> tuple[int, int] | None:
    """A row end, a bar or a wide space between two sides."""
    for idx in inside[1:-1]:
        if tokens[idx].text == "\\\\":
            return idx, idx + 1
    bars = [idx for idx in inside[1:-1] if tokens[idx].text in ("|", "parallel")]
    if len(bars) in (1, 2) and bars[-1] - bars[0] == len(bars) - 1:
        return bars[0], bars[-1] + 1
    for idx in inside[1:]:
        if tokens[idx].spaced == 2:
            return idx, idx
    return None


def _soft_cut(
    tokens: Sequence[MathToken], inside: Sequence[int], right: int, seen: set[str],
    is_name: Callable[[int, int], bool], is_closed: Callable[[int, int], bool],
) -> tuple[int, int] | None:  # fmt: skip
    """A plain space between a value and the name that the next equation begins with."""
    if not inside:
        return None
    start = inside[0]
    for idx in inside[1:]:
        behind = tokens[idx - 1]
        is_name_again = _text(tokens, idx, right) in seen
        # White space behind a command only ends it.
        is_space = tokens[idx].spaced and (behind.kind != "c" or is_name_again)
        if is_space and is_name(idx, right) and (is_name_again or is_closed(start, idx)):
            return idx, idx
    return None
