"""Reading and showing replies: small pure functions that the workflows share."""

from __future__ import annotations

import re
from collections.abc import Mapping

from flowzoo.reward import extract
from flowzoo.reward.visible import visible

__all__ = ["boxed_choice", "boxed_number", "lone_number", "visible", "without_box"]

_LONGEST = 4
"""Digits of a number that is read."""
_TEXT = re.compile(r"\\text\{(.*)\}")


def boxed_number(text: str, count: int) -> int | None:
    """The number in the last box if it is within 1..count, else None."""
    box = (extract(text, "strict") or "").strip()
    if not (box.isascii() and box.isdigit() and len(box) <= _LONGEST):
        return None
    return int(box) if 1 <= int(box) <= count else None


def lone_number(text: str, count: int) -> int | None:
    """The first lone digit within 1..count, or None (a published fallback)."""
    for digit in re.findall(r"(?<![0-9])[1-9](?![0-9])", text):
        if int(digit) <= count:
            return int(digit)
    return None


def boxed_choice(text: str, choices: Mapping[str, bool]) -> bool | None:
    """What `choices` says of the last box's content, whatever its case, or None."""
    box = extract(text, "strict")
    if box is None:
        return None
    content = box.strip()
    worded = _TEXT.fullmatch(content)
    content = (worded[1] if worded else content).strip().rstrip(".").lower()
    return choices.get(content)


def without_box(text: str) -> str:
    """A worked solution up to its last box: the work without the answer."""
    start = text.rfind("\\boxed")
    return (text if start < 0 else text[:start]).rstrip(" $")
