"""Replies to a request, and their formats in Chat Completions and Responses."""

import json
import time
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from flowzoo.envs.door.wire import ModelRequest
from flowzoo.envs.text import encodable
from flowzoo.envs.tools import ToolCall
from flowzoo.front.refusal import RefusalError

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


DONE = b"data: [DONE]\n\n"
"""The last event of a stream."""


class ChatWriter:
    """Writes Chat Completions."""

    def __init__(self, request: ModelRequest, identity: str) -> None:
        self._request = request
        self._head = {
            "id": f"chatcmpl-{identity}", "created": int(time.time()), "model": request.model,
        }  # fmt: skip
        self._notes = ignored_note(request)

    def whole(self, choices: Sequence[ReplyChoice], usage: UsedTokens | None) -> JSON:
        """All replies as one object."""
        rows = []
        for choice in choices:
            message: JSON = {
                "role": "assistant", "content": choice.text, "refusal": choice.refusal,
            }  # fmt: skip
            if choice.calls:
                message |= {"content": choice.text or None, "tool_calls": sent_calls(choice.calls)}
            rows.append(self._row(choice.index, "message", message, choice.finish, choice.facts))
        head = {**self._head, "object": "chat.completion", "choices": rows}
        return {**head, "usage": self._usage(usage), **self._notes}

    def start(self) -> list[bytes]:
        """First events of a stream."""
        delta = {"role": "assistant", "content": ""}
        chunks = [self._chunk(0, delta, **self._notes)]
        return [*chunks, *(self._chunk(index, delta) for index in range(1, self._request.samples))]

    def turn(self, index: int, text: str) -> bytes:
        """The event of a turn of an agent: where reasoning models stream their thoughts."""
        return self._chunk(index, {"reasoning_content": text})

    def parts(self, choice: ReplyChoice) -> list[bytes]:
        """Events of a reply before its finish reason."""
        deltas: list[JSON] = []
        if choice.refusal is not None:
            deltas.append({"refusal": choice.refusal})
        elif choice.text or not choice.calls:
            deltas.append({"content": choice.text})
        for number, row in enumerate(sent_calls(choice.calls)):
            deltas.append({"tool_calls": [{"index": number, **row}]})
        return [self._chunk(choice.index, delta) for delta in deltas]

    def finish(self, choice: ReplyChoice) -> list[bytes]:
        """Events of the end of a reply."""
        row = self._row(choice.index, "delta", {}, choice.finish, choice.facts)
        return [self._event([row])]

    def end(self, usage: UsedTokens | None) -> list[bytes]:
        """Last events of a stream."""
        last = [self._event([], usage=self._usage(usage))] if self._request.stream_usage else []
        return [*last, DONE]

    def fail(self, error: RefusalError) -> bytes:
        """The event of an error amid a stream, which ends there."""
        return event(error.body())

    def _row(
        self, index: int, name: str, value: JSON, finish: str | None, facts: Mapping[str, Any]
    ) -> JSON:
        extras = {"flowzoo": dict(facts)} if facts else {}
        return {"index": index, name: value, "logprobs": None, "finish_reason": finish, **extras}

    def _chunk(self, index: int, delta: JSON, **more: Any) -> bytes:
        return self._event([self._row(index, "delta", delta, None, {})], **more)

    def _event(self, choices: list[JSON], **more: Any) -> bytes:
        head = {**self._head, "object": "chat.completion.chunk"}
        return event({**head, "choices": choices, **more})

    def _usage(self, usage: UsedTokens | None) -> JSON | None:
        if usage is None:
            return None
        prompt, output = usage
        counts = {"prompt_tokens": prompt, "completion_tokens": output}
        return {**counts, "total_tokens": prompt + output}


class _Item(NamedTuple):
    # An item of the output: its events begin with `kind`, and `value` is its text, named `name`.
    item: JSON
    kind: str
    name: str
    value: str
    part: JSON | None

    @property
    def more(self) -> JSON:
        """Fields of the events of its text."""
        return {"logprobs": []} if self.name == "text" else {}


class ResponsesWriter:
    """Writes Responses."""

    def __init__(self, request: ModelRequest, identity: str) -> None:
        body = request.body
        self._identity, self._number = identity, 0
        self._facts = ignored_note(request).get("flowzoo", {})
        self._head: JSON = {
            "id": f"resp_{identity}", "object": "response", "created_at": int(time.time()),
            "model": request.model, "error": None, "instructions": body.get("instructions"),
            "metadata": body.get("metadata") or {}, "tools": body.get("tools") or [],
            "tool_choice": body.get("tool_choice") or "auto", "temperature": None, "top_p": None,
            "parallel_tool_calls": body.get("parallel_tool_calls") is not False,
        }  # fmt: skip
        self._choice = ReplyChoice(0, "", "stop")

    def whole(self, choices: Sequence[ReplyChoice], usage: UsedTokens | None) -> JSON:
        """All replies as one object."""
        (self._choice,) = choices
        is_cut = self._choice.finish == "length"
        counts = usage and {
            "input_tokens": usage.prompt,
            "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
            "output_tokens": usage.output,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": usage.prompt + usage.output,
        }
        facts = {**self._facts, **self._choice.facts}
        return {
            **self._row("incomplete" if is_cut else "completed"),
            "incomplete_details": {"reason": "max_output_tokens"} if is_cut else None,
            "output": [row.item for row in self._items()],
            "usage": counts,
            **({"flowzoo": facts} if facts else {}),
        }

    def start(self) -> list[bytes]:
        """First events of a stream."""
        row = self._row("in_progress")
        kinds = "response.created", "response.in_progress"
        return [self._event(kind, response=row) for kind in kinds]

    def turn(self, index: int, text: str) -> bytes:
        """A comment, as an item for thoughts would be a part of the output."""
        return b": a turn of an agent\n\n"

    def parts(self, choice: ReplyChoice) -> list[bytes]:
        """Events of a reply before its finish reason."""
        self._choice, events = choice, list[bytes]()
        for number, row in enumerate(self._items()):
            if number:  # an item ends before the next one begins
                events += self._closing(number - 1)
            item, part = row.item, row.part
            empty = {"arguments": ""} if part is None else {"content": []}
            opened = {**item, "status": "in_progress", **empty}
            added = {"output_index": number, "item": opened}
            events.append(self._event("response.output_item.added", **added))
            position = _position(number, item, part)
            if part is not None:
                added = {"part": {**part, row.name: ""}, **position}
                events.append(self._event("response.content_part.added", **added))
            events.append(self._event(f"{row.kind}.delta", delta=row.value, **row.more, **position))
        return events

    def finish(self, choice: ReplyChoice) -> list[bytes]:
        """Events of the end of a reply."""
        return self._closing(len(self._items()) - 1)

    def _closing(self, number: int) -> list[bytes]:
        row = self._items()[number]
        position, events = _position(number, row.item, row.part), list[bytes]()
        done = {row.name: row.value, **row.more}
        if row.part is None:
            done["name"] = row.item["name"]
        events.append(self._event(f"{row.kind}.done", **done, **position))
        if row.part is not None:
            events.append(self._event("response.content_part.done", part=row.part, **position))
        done = {"output_index": number, "item": row.item}
        return [*events, self._event("response.output_item.done", **done)]

    def end(self, usage: UsedTokens | None) -> list[bytes]:
        """Last events of a stream."""
        row = self.whole([self._choice], usage)
        return [self._event(f"response.{row['status']}", response=row)]

    def fail(self, error: RefusalError) -> bytes:
        """The event of an error amid a stream, which ends there."""
        stated = error.body()["error"]
        fault = {"code": stated["code"], "message": stated["message"]}
        return self._event("response.failed", response={**self._row("failed"), "error": fault})

    def _row(self, status: str) -> JSON:
        facts = {"flowzoo": self._facts} if self._facts else {}
        return {**self._head, "status": status, "incomplete_details": None, "output": [], **facts}

    def _items(self) -> list[_Item]:
        choice, items = self._choice, list[_Item]()
        status = "incomplete" if choice.finish == "length" else "completed"
        if choice.text or not choice.calls:
            part: JSON = {"type": "output_text", "text": choice.text, "annotations": []}
            kind, name = "response.output_text", "text"
            if choice.refusal is not None:
                part = {"type": "refusal", "refusal": choice.refusal}
                kind, name = "response.refusal", "refusal"
            message = {"id": f"msg_{self._identity}", "type": "message", "role": "assistant"}
            item: JSON = {**message, "status": status, "content": [part]}
            items.append(_Item(item, kind, name, part[name], part))
        for number, row in enumerate(sent_calls(choice.calls)):
            call = {"id": f"fc_{self._identity}_{number}", "type": "function_call"}
            item = {**call, "status": status, "call_id": row["id"], **row["function"]}
            kind = "response.function_call_arguments"
            items.append(_Item(item, kind, "arguments", item["arguments"], None))
        return items

    def _event(self, kind: str, **fields: Any) -> bytes:
        self._number += 1
        return event({"type": kind, "sequence_number": self._number - 1, **fields}, kind)


def _position(number: int, item: JSON, part: JSON | None) -> JSON:
    # Where an event belongs.
    position = {"output_index": number, "item_id": item["id"]}
    return position if part is None else {**position, "content_index": 0}


ReplyWriter = ChatWriter | ResponsesWriter
"""Both have the same methods."""


def reply_writer(request: ModelRequest, identity: str) -> ReplyWriter:
    """The writer for a request; `identity` is a part of ids."""
    return (ChatWriter if request.api == "chat" else ResponsesWriter)(request, identity)
