"""Replies without thoughts, which are in `<think>` tags."""


def strip_thinking(text: str) -> str:
    """Return a reply without its thoughts; without any, return it unchanged."""
    return visible(text) if "think>" in text else text


def visible(text: str) -> str:
    """Return a reply without thoughts and outer blanks; an unfinished thought hides the rest."""
    start = text.rfind("</think>")
    if start >= 0:
        text = text[start + len("</think>") :]
    opened = text.find("<think>")
    return (text if opened < 0 else text[:opened]).strip()
