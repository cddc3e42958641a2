"""Transition words in twelve categories."""

from __future__ import annotations

import re
from collections.abc import Mapping

TRANSITIONS: Mapping[str, tuple[str, ...]] = {
    "addition": ("also", "in addition", "moreover", "furthermore", "besides"),
    "contrast": ("but", "however", "in contrast", "on the other hand", "yet"),
    "cause": ("because", "since", "due to", "owing to"),
    "result": ("therefore", "so", "thus", "as a result", "consequently"),
    "time": ("then", "after", "before", "meanwhile", "later"),
    "order": ("first", "second", "next", "finally"),
    "example": ("for example", "for instance", "such as"),
    "emphasis": ("indeed", "in fact", "above all", "especially"),
    "likeness": ("similarly", "likewise", "in the same way"),
    "condition": ("if", "unless", "provided that", "otherwise"),
    "concession": ("although", "even though", "despite", "still"),
    "summary": ("in short", "overall", "in conclusion", "to sum up"),
}
_WHOLE = {
    name: re.compile(rf"\b(?:{'|'.join(map(re.escape, phrases))})\b")
    for name, phrases in TRANSITIONS.items()
}


def transition_score(text: str, whole_words: bool = True) -> float:
    """0.4 for the first category of transition words in `text`, 0.05 for each further one.

    Args:
        text: one or several completions.
        whole_words: a phrase counts only between word boundaries; the published reward also finds
            "so" in "some".
    """
    text = " ".join(text.lower().split())
    if whole_words:
        found = sum(pattern.search(text) is not None for pattern in _WHOLE.values())
    else:
        found = sum(any(phrase in text for phrase in group) for group in TRANSITIONS.values())
    return 0.4 + 0.05 * (found - 1) if found else 0.0
