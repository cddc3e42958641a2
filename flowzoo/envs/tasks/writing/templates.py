"""What a frame of a generated source is."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple


class TextTemplate(NamedTuple):
    """Texts with the same gaps: a source and what two good writers make of it."""

    gaps: Mapping[str, tuple[str, ...]]
    """Gap -> its possible fillings."""
    source: str
    first: str
    """`tldr`: a concise summary. `expansion`: the background."""
    second: str
    """`tldr`: a detailed summary. `expansion`: the method."""


def gaps(**choices: str) -> Mapping[str, tuple[str, ...]]:
    """Gaps from lists separated by slashes."""
    return {name: tuple(listing.split("/")) for name, listing in choices.items()}
