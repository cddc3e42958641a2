"""Shortening prompts that are over their budget: quotes first, the problem last.

A workflow needs no marks for this. Replies, search results and program outputs are in the episode's
transcript, and a prompt that quotes them word for word is searched for them. Quotes longer than a
cap lose their middle, the cap being the largest that fits, so that long candidates give way first
and equals stay equal. Where that is not enough, everything but the problem falls under the cap; a
problem that is itself too long loses the middle of the prompt, token by token.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import NamedTuple

from flowzoo.envs.script import Message
from flowzoo.reward.visible import strip_thinking

MARK = " [...] "
"""Marks a cut."""

_LEAST = 24
"""Characters below which a text is not searched for: a short answer may occur anywhere."""


class Span(NamedTuple):
    """Characters `start` to `end` of a message that may be shortened; quotes go before the rest."""

    message: int
    start: int
    end: int
    quote: bool


def middle_out(text: str, cap: int) -> str:
    """The first and last characters of `text`, `cap` in all, with a mark between them.

    A text that the mark would not make shorter stays.
    """
    if len(text) <= cap + len(MARK):
        return text
    head = (cap + 1) // 2
    return f"{text[:head]}{MARK}{text[len(text) - cap + head :]}"


def find_spans(messages: Sequence[Message], keep: str, quotes: Sequence[str]) -> list[Span]:
    """Spans of `messages` that may be shortened, in order: all but the first `keep`."""
    forms = {form.strip() for quote in quotes for form in (quote, strip_thinking(quote))}
    patterns = sorted((form for form in forms if len(form) >= _LEAST), key=lambda t: (-len(t), t))
    spans: list[Span] = []
    keep_found = not keep
    for number, message in enumerate(messages):
        text = message["content"]
        claimed: list[tuple[int, int, bool]] = []
        start_of_keep = -1 if keep_found else text.find(keep)
        if start_of_keep >= 0:
            keep_found = True
            claimed.append((start_of_keep, start_of_keep + len(keep), False))
        for form in patterns:
            start = text.find(form)
            while start >= 0:
                end = start + len(form)
                if all(end <= low or high <= start for low, high, _ in claimed):
                    claimed.append((start, end, True))
                start = text.find(form, end)
        spans += [Span(number, low, high, True) for low, high, quote in claimed if quote]
        edges = [(0, 0, False), *sorted(claimed), (len(text), len(text), False)]
        spans += [
            Span(number, left[1], right[0], False)
            for left, right in pairwise(edges)
            if right[0] - left[1] >= _LEAST
        ]
    return sorted(spans)


def cut(messages: Sequence[Message], spans: Sequence[Span], cap: int) -> list[Message]:
    """`messages` in which no span has more than `cap` characters (and the mark)."""
    texts = [message["content"] for message in messages]
    for number, start, end, _ in reversed(spans):  # from the back, so that offsets stay right
        text = texts[number]
        texts[number] = text[:start] + middle_out(text[start:end], cap) + text[end:]
    return [{**message, "content": text} for message, text in zip(messages, texts, strict=True)]


def shorten(
    messages: Sequence[Message],
    keep: str,
    quotes: Sequence[str],
    fits: Callable[[Sequence[Message]], bool],
) -> list[Message] | None:
    """`messages` made to fit by shortening all but `keep`; None where that is not enough.

    Args:
        messages: a chat that does not fit.
        keep: the problem's text.
        quotes: what may be quoted: earlier replies, passages, outputs.
        fits: whether a chat fits its budget.
    """
    spans = find_spans(messages, keep, quotes)
    for chosen in ([span for span in spans if span.quote], spans):
        best = cut(messages, chosen, 0)
        if not chosen or not fits(best):
            continue
        low, high = 0, max(span.end - span.start for span in chosen)
        while high - low > max(2, low // 64):
            cap = (low + high) // 2
            tried = cut(messages, chosen, cap)
            if fits(tried):
                low, best = cap, tried
            else:
                high = cap
        return best
    return None
