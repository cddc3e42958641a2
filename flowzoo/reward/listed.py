"""Sets of words, written as one text."""


def names(text: str) -> frozenset[str]:
    """Return the words of `text`."""
    return frozenset(text.split())
