"""Reading answers of an OpenAI-compatible endpoint: replies with thoughts, and refusals."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from flowzoo.agents.chat.shorten import Span, cut, shorten
from flowzoo.agents.policy import Completion, Request
from flowzoo.envs.records import FinishReason, Usage
from flowzoo.envs.script import Message

_LENGTH = re.compile(
    r"context[ _]length|context window|maximum context|maximum (?:model )?(?:input )?length"
    r"|prompt is too long|too many (?:input )?tokens",
    re.IGNORECASE,
)
_LEAST = 64
"""Characters to which no prompt is shortened: a server that refuses fewer means something else."""


def whole_text(message: Mapping[str, Any], cut_off: bool, thinking: bool | None) -> str:
    """Text of a message, with its thoughts in `<think>` tags.

    Servers that part thoughts from the rest send them as `reasoning` or `reasoning_content`. One
    that does not, and whose chat template opens the thought, sends a text whose first tag is the
    closing one; if thoughts were asked for and the reply was cut off, that tag is missing too.

    Raises:
        TypeError: the content or the thoughts are not text.
    """
    content = message.get("content")
    thoughts = message.get("reasoning") or message.get("reasoning_content")
    for name, value in (("content", content), ("reasoning", thoughts)):
        if not isinstance(value, (str, type(None))):
            raise TypeError(f"message.{name} is {type(value).__name__}, expected text")
    text = content or ""
    if thoughts:
        closing = "" if cut_off and not text else "</think>"
        return f"<think>{thoughts}{closing}{text}"
    opened = cut_off and thinking and "think>" not in text
    return f"<think>{text}" if opened else text


def read_usage(body: Mapping[str, Any]) -> Usage | None:
    """Token counts in a server's answer; None for values that are not counts."""
    usage = body.get("usage")
    if not isinstance(usage, Mapping):
        return None
    counts = [
        count if type(count) is int and count >= 0 else None
        for count in (usage.get("prompt_tokens"), usage.get("completion_tokens"))
    ]
    return None if counts == [None, None] else Usage(*counts)


def read_completion(body: Any, thinking: bool | None = None) -> Completion:
    """The completion in a server's answer, with the answer's token counts.

    Log-probabilities are taken where the server sent them; token ids too (`prompt_token_ids` and
    `token_ids`, which vLLM's server adds on request). `thinking`: see `OpenAIPolicy`.

    Raises:
        KeyError, TypeError, IndexError, ValueError: the answer has another layout.
    """
    choice = body["choices"][0]
    tokens = (choice.get("logprobs") or {}).get("content") or ()
    finish: FinishReason = "length" if choice.get("finish_reason") == "length" else "stop"
    return Completion(
        text=whole_text(choice["message"], finish == "length", thinking),
        prompt_ids=tuple(body.get("prompt_token_ids") or ()),
        output_ids=tuple(choice.get("token_ids") or ()),
        logps=tuple(float(token["logprob"]) for token in tokens),
        finish=finish,
        usage=read_usage(body),
    )


def was_filtered(body: Any) -> bool:
    """Return True if the server cut the reply for its content."""
    return body["choices"][0].get("finish_reason") == "content_filter"


def refused_for_length(status: int, message: str) -> bool:
    """Return True if a server refused a prompt because it is too long for the model."""
    return status in (400, 413, 422) and _LENGTH.search(message) is not None


def size(messages: Sequence[Message]) -> int:
    """Characters of a chat."""
    return sum(len(message["content"]) for message in messages)


def shorter(request: Request, messages: Sequence[Message]) -> tuple[Sequence[Message], int] | None:
    """The prompt of `request` in three quarters of the characters of `messages`, its last form.

    An endpoint does not say how long a prompt is before it refuses one. If shortening quotes is not
    enough, every message loses its middle.

    Returns:
        The messages, and how many characters the original has more; None if there is nothing
        left to take.
    """
    budget = size(messages) * 3 // 4
    if budget < _LEAST:
        return None
    texts = shorten(request.messages, request.keep, request.quotes, lambda m: size(m) <= budget)
    if texts is None:
        spans = [
            Span(number, 0, len(message["content"]), False)
            for number, message in enumerate(messages)
        ]
        texts = cut(messages, spans, budget // len(messages) // 2)
        if size(texts) >= size(messages):
            return None
    return texts, size(request.messages) - size(texts)
