"""Sets of words, written as one text."""

from __future__ import annotations


def names(text: str) -> frozenset[str]:
    """Return the words of `text`."""
    return frozenset(text.split())
