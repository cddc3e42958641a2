"""Reading the answers of chat-completions servers, as vendors send them."""

from __future__ import annotations

import email.utils
import json
import re
from collections.abc import Mapping
from typing import Any

from flowzoo.agents.policy import Completion
from flowzoo.envs.records import FinishReason, Usage
from flowzoo.envs.tools.reading import call_text

_LENGTH = re.compile(
    r"context[ _]length|context window|maximum context|maximum (?:model )?(?:input )?length"
    r"|prompt is too long|too many (?:input )?tokens",
    re.IGNORECASE,
)


def message_texts(message: Mapping[str, Any]) -> tuple[str, str]:
    """Content and thoughts of a message; a refusal is its content."""
    # Servers that part thoughts from the rest send them as `reasoning`, `reasoning_content` or as
    # parts of the content.
    content = message.get("content")
    thoughts = message.get("reasoning") or message.get("reasoning_content")
    if isinstance(content, list):
        thoughts = thoughts or "".join(_texts(content, "thinking"))
        content = "".join(_texts(content, "text"))
    for name, value in (("content", content), ("reasoning", thoughts)):
        if not isinstance(value, (str, type(None))):
            raise TypeError(f"message.{name} is {type(value).__name__}, expected text")
    refusal = message.get("refusal")
    return content or (refusal if isinstance(refusal, str) else ""), thoughts or ""


def _texts(parts: list[Any], kind: str) -> list[str]:
    texts: list[str] = []
    for part in parts:
        if part["type"] == kind:
            value = part[kind]
            texts += _texts(value, "text") if isinstance(value, list) else [value]
    return texts


def whole_text(message: Mapping[str, Any], cut_off: bool, thinking: bool | None) -> str:
    """Text of a message, with its thoughts in `<think>` tags."""
    # A server that does not part thoughts from the rest, and whose chat template opens the thought,
    # sends a text whose first tag is the closing one; if thoughts were asked for and the reply was
    # cut off, that tag is missing too.
    text, thoughts = message_texts(message)
    if thoughts:
        closing = "" if cut_off and not text else "</think>"
        return f"<think>{thoughts}{closing}{text}"
    opened = cut_off and thinking and "think>" not in text
    return f"<think>{text}" if opened else text


def calls_text(message: Mapping[str, Any]) -> str:
    """The tool calls of a message in the notation of replies, the broken ones included."""
    return "".join(map(_call, message.get("tool_calls") or ()))


def _call(call: Any) -> str:
    # Arguments are a text of JSON that the model wrote, and that may be none.
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("arguments"), str):
        return call_text(json.dumps(call))
    name, arguments = json.dumps(function.get("name")), function["arguments"] or "{}"
    return call_text(f'{{"name": {name}, "arguments": {arguments}}}')


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


def read_completion(body: Any, thinking: bool | None = None, tools: bool = False) -> Completion:
    """The completion in a server's answer; another layout raises a builtin error.

    With `tools`, its tool calls are part of the text.
    """
    # vLLM's server adds `prompt_token_ids` and `token_ids` on request.
    choice = body["choices"][0]
    tokens = (choice.get("logprobs") or {}).get("content") or ()
    finish: FinishReason = "length" if choice.get("finish_reason") == "length" else "stop"
    text = whole_text(choice["message"], finish == "length", thinking)
    return Completion(
        text=text + calls_text(choice["message"]) if tools else text,
        prompt_ids=tuple(body.get("prompt_token_ids") or ()),
        output_ids=tuple(choice.get("token_ids") or ()),
        logps=tuple(float(token["logprob"]) for token in tokens),
        finish=finish,
        usage=read_usage(body),
    )


def was_filtered(body: Any) -> bool:
    """Return True if the server cut the reply for its content."""
    return body["choices"][0].get("finish_reason") == "content_filter"


def error_status(body: Any) -> int | None:
    """Status of an error that a gateway sends as an answer with status 200; None: it is none."""
    error = body.get("error") if isinstance(body, dict) else None
    if not error or body.get("choices"):
        return None
    code = error.get("code") if isinstance(error, dict) else None
    return code if type(code) is int and 400 <= code < 600 else 502


def is_retried(status: int) -> bool:
    """Return True for overload and server errors, which are tried again."""
    return status in (408, 409, 425, 429) or (status >= 500 and status not in (501, 505))


def refused_for_length(status: int, message: str) -> bool:
    """Return True if a server refused a prompt because it is too long for the model."""
    return status in (400, 413, 422) and _LENGTH.search(message) is not None


def wait_asked(headers: Mapping[str, str], now: float) -> float:
    """Seconds that `Retry-After`, or the finer `retry-after-ms`, asks to wait."""
    fine = headers.get("retry-after-ms")
    seconds = retry_after(fine, now) / 1000 if fine else 0.0
    return seconds or retry_after(headers.get("retry-after"), now)


def retry_after(header: str | None, now: float) -> float:
    """Seconds that a `Retry-After` header (a number or an HTTP date) asks to wait."""
    if header is None:
        return 0.0
    try:
        seconds = float(header)
    except ValueError:
        try:
            seconds = email.utils.parsedate_to_datetime(header).timestamp() - now
        except ValueError:
            return 0.0
    return seconds if 0.0 < seconds < float("inf") else 0.0
