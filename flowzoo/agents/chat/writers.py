"""Writers of the tokens of a prompt: the chat template, the authors of messages, the model.

A rendering with marks in place of the texts of messages shows what the template writes around them;
the rest of the real rendering are those texts, as the template has changed them.
"""

import itertools
import operator
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from flowzoo.agents.chat.thoughts import THOUGHT_FIELDS
from flowzoo.envs.script import SampledRow, TokenSpan, Writer

_MARK = re.compile(r"Qz(\d+)zQ")
_TEXTS = {"content", "text", *THOUGHT_FIELDS}
"""Fields of messages, and of parts of contents, with texts of their authors."""
_AROUND: tuple[Writer, Writer] = ("template", "user")


TextSpans = list[tuple[int, int]]
"""Start and end of every text of messages among the characters of a prompt."""


class MarkedChat(NamedTuple):
    """Messages with marks in place of their texts."""

    messages: list[Any]
    texts: list[str]


def mark_texts(messages: Sequence[Mapping[str, object]]) -> MarkedChat:
    """Put marks in place of the texts of `messages`."""
    texts = list[str]()

    def mark(value: object) -> object:
        if isinstance(value, str) and value.strip():
            texts.append(value)
            return f"Qz{len(texts) - 1}zQ"
        if isinstance(value, list):
            return [mark_fields(part) for part in value]
        return value

    def mark_fields(part: Mapping[str, object]) -> dict[str, object]:
        return {name: mark(value) if name in _TEXTS else value for name, value in part.items()}

    return MarkedChat([mark_fields(message) for message in messages], texts)


def has_other_marks(chat: object, form: MarkedChat) -> bool:
    """True if what is no text of a message in a marked `chat`, as a call's arguments, has marks."""
    return len(_MARK.findall(repr(chat))) != len(form.texts)


def text_spans(prompt: str, pattern: str, texts: Sequence[str]) -> TextSpans | None:
    """Find the texts of messages in a prompt by its rendering with marks, `pattern`.

    None where the template writes other things around these texts than around marks.
    """
    first, *rest = _MARK.split(pattern)
    if not prompt.startswith(first):
        return None
    spans, position = TextSpans(), len(first)
    for number, after in zip(rest[::2], rest[1::2], strict=True):
        forms = texts[int(number)], texts[int(number)].strip()
        end = next(
            (position + len(form) for form in forms if prompt.startswith(form + after, position)),
            # Special tokens are in no text, so that the first are the template's.
            prompt.find(after, position) if after else len(prompt),
        )
        if end < 0:
            return None
        spans.append((position, end))
        position = end + len(after)
    return spans if position == len(prompt) else None


def token_spans(
    encoding: Any, texts: TextSpans | None, start: int, size: int
) -> tuple[TokenSpan, ...]:
    """Spans of the tokens of the characters `start` to `size` of a prompt.

    A token belongs to the writer of its first character. Empty if the spans of the texts or the
    places of the tokens are unknown.
    """
    if texts is None or encoding is None:
        return ()
    borders = [0]
    for border in itertools.chain.from_iterable(texts):
        borders.append(max(borders[-1], _first_token(encoding, border - start, size - start)))
    borders.append(len(encoding))
    return join_spans(
        (writer, end - begin)
        for writer, (begin, end) in zip(
            itertools.cycle(_AROUND), itertools.pairwise(borders), strict=False
        )
    )


def go_on_from(row: SampledRow, rest: Sequence[TokenSpan], inside: int) -> tuple[TokenSpan, ...]:
    """Spans of a prompt that begins with an earlier row.

    `rest` has what is after it, and the row's own last tokens, `inside` of them.
    """
    if not (row.writers and rest):
        return ()
    after = [(writer, 1) for writer, size in rest for _ in range(size)][inside:]
    return join_spans([*row.writers, ("sampled", len(row.reply)), *after])


def join_spans(spans: Iterable[tuple[Writer, int]]) -> tuple[TokenSpan, ...]:
    """Spans without empty ones, and with neighbors of one writer as one."""
    groups = itertools.groupby((span for span in spans if span[1]), operator.itemgetter(0))
    return tuple(TokenSpan(writer, sum(size for _, size in group)) for writer, group in groups)


def _first_token(encoding: Any, border: int, size: int) -> int:
    # The first token that begins at a character or after it; some characters are in no token.
    for position in range(max(border, 0), size):
        token = encoding.char_to_token(position)
        if token is not None:
            return token + (encoding.token_to_chars(token)[0] < border)
    return len(encoding)
