"""Replies in the format of Responses."""

import time
from collections.abc import Sequence
from typing import Any, NamedTuple

from flowzoo.envs.door.replies import JSON, ReplyChoice, UsedTokens, event, ignored_note, sent_calls
from flowzoo.envs.door.wire import ModelRequest
from flowzoo.front.refusal import RefusalError


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
