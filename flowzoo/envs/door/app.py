"""The door's application: `/v1/chat/completions` and `/v1/models`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence

from flowzoo.envs.door.openapi import describe
from flowzoo.envs.door.run import Link, OpenRequest, ProgramRun, over
from flowzoo.envs.door.wire import (
    KINDS,
    UNSUPPORTED,
    ChatCall,
    completion,
    events,
    model_list,
    read_call,
)
from flowzoo.envs.script import ProgramReply
from flowzoo.front.front import Front
from flowzoo.front.refusal import ClientGoneError, RefusalError
from flowzoo.front.request import HttpReply, HttpRequest, json_reply

LAST_S = 0.01
"""Seconds before a stream's last events, to detect a client that has disconnected."""


class DoorFront(Front):
    """The application of a door; `runs` are by API key."""

    most_connections = 2**14

    def __init__(self, runs: Mapping[str, ProgramRun]) -> None:
        super().__init__(
            {
                "POST /v1/chat/completions": self._chat,
                "GET /v1/models": self._models,
                "GET /openapi.json": self._description,
            }
        )
        self.runs = runs

    def check(self, request: HttpRequest) -> None:
        """Raise `RefusalError` for a request whose key is of no run."""
        if request.key not in self.runs:
            message = "The API key belongs to no running episode: use the key of the program"
            raise RefusalError(401, "invalid_api_key", message)

    def note_refused(self, request: HttpRequest, error: RefusalError) -> None:
        """Count a refused request of a run."""
        if run := self.runs.get(request.key):
            run.refuse(error)

    def gauges(self) -> dict[str, float]:
        """Runs of programs."""
        return {"program_runs": len(self.runs)}

    async def _chat(self, request: HttpRequest) -> HttpReply:
        run, link = self.runs[request.key], request.state["link"]
        call = read_call(await body_for(request, run), run.program.models)
        entry = await run.ask(call.request, link, request.header(b"idempotency-key") or None)
        return await answered(call, entry, link)

    async def _models(self, request: HttpRequest) -> HttpReply:
        return json_reply(200, model_list(self.runs[request.key].program.models))

    async def _description(self, request: HttpRequest) -> HttpReply:
        models = self.runs[request.key].program.models
        return json_reply(200, describe("flowzoo's door", KINDS, UNSUPPORTED, models, tools=True))


async def body_for(request: HttpRequest, run: ProgramRun) -> bytes:
    """Read the body of a request to a run; `RefusalError` if it is too large or the run ends."""
    try:
        async with asyncio.timeout(None) as limit:
            run.incoming.add(limit)
            return await request.body(run.program.request_bytes, run.room)
    except TimeoutError:
        raise over() from None
    finally:
        run.incoming.discard(limit)


async def answered(call: ChatCall, entry: OpenRequest, link: Link) -> HttpReply:
    """Respond to an open request when it has a reply or its client has disconnected."""
    await asyncio.wait((link.end, entry.reply), return_when=asyncio.FIRST_COMPLETED)
    if link.end.done():  # a reply that arrives at the same time is kept for a repeated request
        raise ClientGoneError
    reply: ProgramReply = entry.reply.result()
    if not call.stream:
        return json_reply(200, completion(call, entry.number, reply))
    parts, count = list(events(call, entry.number, reply)), 3 if call.stream_usage else 2
    # In one piece: a client that has the finish reason has left nothing unread.
    last, first = b"".join(parts[-count:]), unless_left(parts[:-count], link)
    return HttpReply(200, last, "text/event-stream", parts=first)


async def unless_left(parts: Sequence[bytes], link: Link) -> AsyncIterator[bytes]:
    """The parts of a stream; a client that disconnects early does not get what follows them."""
    for part in parts:
        yield part
    await asyncio.wait((link.end,), timeout=LAST_S)
