"""Replies in the format of Chat Completions."""

import time
from collections.abc import Mapping, Sequence
from typing import Any

from flowzoo.envs.door.replies import JSON, ReplyChoice, UsedTokens, event, ignored_note, sent_calls
from flowzoo.envs.door.wire import ModelRequest
from flowzoo.front.refusal import RefusalError

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
