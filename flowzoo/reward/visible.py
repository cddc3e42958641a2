"""What of a reply counts as said: everything but thoughts, which stand in `<think>` tags."""

from __future__ import annotations


def strip_thinking(text: str) -> str:
    """A reply without thoughts; one that has none stays as it is, blanks at its ends included."""
    return visible(text) if "think>" in text else text


def visible(text: str) -> str:
    """A reply as team-mates see it: without thoughts; an unfinished one hides all that follows."""
    start = text.rfind("</think>")
    if start >= 0:
        text = text[start + len("</think>") :]
    opened = text.find("<think>")
    return (text if opened < 0 else text[:opened]).strip()
