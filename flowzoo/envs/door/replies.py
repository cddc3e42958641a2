"""Replies to a request before they have a format."""

import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from flowzoo.envs.door.wire import ModelRequest
from flowzoo.envs.text import encodable
from flowzoo.envs.tools import ToolCall

JSON = dict[str, Any]


class ReplyChoice(NamedTuple):
    """One of the replies to a request."""

    index: int
    text: str
    finish: str
    """`stop`, `length` or `tool_calls`."""
    calls: Sequence[ToolCall] = ()
    refusal: str | None = None
    """Why there is no text."""
    facts: Mapping[str, Any] = {}
    """Field `flowzoo` of the reply."""


class UsedTokens(NamedTuple):
    """Tokens of all calls for a request."""

    prompt: int
    output: int


def event(row: JSON, name: str = "") -> bytes:
    """A server-sent event."""
    head = f"event: {name}\n" if name else ""
    return head.encode() + b"data: " + json.dumps(row).encode() + b"\n\n"


def make_choice(request: ModelRequest, choice: ReplyChoice) -> ReplyChoice:
    """The reply as its request wants it: until a stop text, and JSON without its code fence.

    Calls after a stop text are dropped.
    """
    text, finish, calls = choice.text, choice.finish, choice.calls
    ends = [end for end in (text.find(stop) for stop in request.ask.stop) if end >= 0]
    if ends:
        text, finish, calls = text[: min(ends)], "stop", ()
    if request.wants_json:
        text = strip_fence(text)
    finish = "tool_calls" if calls else finish
    return choice._replace(text=encodable(text), finish=finish, calls=calls)


def strip_fence(text: str) -> str:
    """The JSON in a code fence; other texts as they are."""
    head, _, rest = text.strip().partition("\n")
    body, fence, after = rest.rpartition("```")
    if not (head.startswith("```") and fence) or after:
        return text
    try:
        json.loads(body)
    except (ValueError, RecursionError):
        return text
    return body.strip()


def ignored_note(request: ModelRequest) -> JSON:
    """The field `flowzoo` of a reply that names ignored fields; empty without one."""
    return {"flowzoo": {"ignored": list(request.ignored)}} if request.ignored else {}


def sent_calls(calls: Sequence[ToolCall]) -> list[JSON]:
    """Calls in the format of a response: arguments are a JSON string."""
    rows = [call.plain() for call in calls]
    for row in rows:
        arguments = json.dumps(row["function"]["arguments"], ensure_ascii=False)
        row["function"]["arguments"] = encodable(arguments)
    return rows
