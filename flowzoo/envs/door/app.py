"""The server's application: `/v1/chat/completions` and `/v1/models`."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from flowzoo.envs.door.refusal import BodyRoom, RefusalError
from flowzoo.envs.door.run import Link, OpenRequest, ProgramRun, over
from flowzoo.envs.door.wire import (
    ChatCall,
    completion,
    events,
    model_list,
    read_call,
)
from flowzoo.envs.script import ProgramReply

ADDRESSES = "POST /v1/chat/completions and GET /v1/models"
MOST_INCOMING = 2**28
"""Most bytes of request bodies from all clients at the same time."""
LAST_S = 0.01
"""Seconds before a stream's last events, to detect a client that has disconnected."""


def make_app(runs: Mapping[str, ProgramRun]) -> Starlette:
    """Make the application of a door; `runs` are by API key."""
    room = BodyRoom(MOST_INCOMING)

    async def chat(request: Request) -> Response:
        run, link = run_of(runs, request), request.state.link
        key = request.headers.get("idempotency-key")
        try:
            call = read_call(await body_for(request, run, room), run.program.models)
            entry = await run.ask(call.request, link, key)
        except RefusalError as refusal:
            run.refuse(refusal)
            raise
        return await answered(call, entry, link)

    async def models(request: Request) -> Response:
        return answer(200, model_list(run_of(runs, request).program.models))

    async def other(request: Request, error: Exception) -> Response:
        refusal = no_address(request, error, ADDRESSES)
        try:
            run_of(runs, request).refuse(refusal)
        except RefusalError as unauthorized:
            refusal = unauthorized
        return answer(refusal.status, refusal.body())

    async def refused(request: Request, error: Exception) -> Response:
        assert isinstance(error, RefusalError)
        return answer(error.status, error.body())

    routes = [
        Route("/v1/chat/completions", chat, methods=["POST"]),
        Route("/v1/models", models, methods=["GET"]),
    ]
    handlers: Any = {HTTPException: other, RefusalError: refused, ClientDisconnect: left}
    return Starlette(routes=routes, exception_handlers=handlers)


def no_address(request: Request, error: Exception, addresses: str) -> RefusalError:
    """Make the error for another address, or another method, than the `addresses` have."""
    assert isinstance(error, HTTPException)
    status = error.status_code
    code = "method_not_allowed" if status == 405 else "unknown_url"
    message = f"There is no {request.method} {request.url.path:.200}: there are {addresses}."
    return RefusalError(status, code, message)


async def left(request: Request, error: Exception) -> Response:
    """A response that no client gets, since it has disconnected."""
    return Response(status_code=499)


def answer(status: int, body: dict[str, Any]) -> Response:
    """A response with a JSON body."""
    return Response(json.dumps(body), status, media_type="application/json")


def run_of(runs: Mapping[str, ProgramRun], request: Request) -> ProgramRun:
    """Return the run of a request's API key."""
    kind, _, key = request.headers.get("authorization", "").partition(" ")
    run = runs.get(key.strip()) if kind.lower() == "bearer" else None
    if run is None:
        message = "The API key belongs to no running episode: use the key of the program"
        raise RefusalError(401, "invalid_api_key", message)
    return run


async def body_for(request: Request, run: ProgramRun, room: BodyRoom) -> bytes:
    """Read the body of a request to a run; `RefusalError` if it is too large or the run ends."""
    try:
        async with asyncio.timeout(None) as limit:
            run.incoming.add(limit)
            return await body_of(request, run.program.request_bytes, (run.room, room))
    except TimeoutError:
        raise over() from None
    finally:
        run.incoming.discard(limit)


async def body_of(request: Request, most: int, rooms: Sequence[BodyRoom]) -> bytes:
    """Read the body of a request; its bytes count in `rooms` during that time.

    Raises:
        RefusalError: it exceeds `most` bytes or the free room.
    """
    message = f"The request is larger than {most:,} bytes."
    length = request.headers.get("content-length", "")
    if length.isdigit() and int(length) > most:
        raise RefusalError(413, "request_too_large", message)
    body, held = bytearray(), [0] * len(rooms)
    try:
        async for chunk in request.stream():
            if len(body) + len(chunk) > most:
                raise RefusalError(413, "request_too_large", message)
            for index, room in enumerate(rooms):
                room.take(len(chunk))
                held[index] += len(chunk)
            body += chunk
    finally:
        for room, count in zip(rooms, held, strict=True):
            room.held -= count
    return bytes(body)


async def answered(call: ChatCall, entry: OpenRequest, link: Link) -> Response:
    """Respond to an open request when it has a reply or its client has disconnected."""
    await asyncio.wait((link.end, entry.reply), return_when=asyncio.FIRST_COMPLETED)
    if link.end.done():  # a reply that arrives at the same time is kept for a repeated request
        raise ClientDisconnect
    reply: ProgramReply = entry.reply.result()
    if call.stream:
        return Events(list(events(call, entry.number, reply)), 3 if call.stream_usage else 2, link)
    return answer(200, completion(call, entry.number, reply))


class Events(Response):
    """A stream of events, of which a client that disconnects early does not get the last ones."""

    media_type = "text/event-stream"

    def __init__(self, parts: Sequence[bytes], last: int, link: Link) -> None:
        super().__init__()
        del self.headers["content-length"]
        self.parts, self.last, self.link = parts, last, link

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the events."""
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        for part in self.parts[: -self.last]:
            await send({"type": "http.response.body", "body": part, "more_body": True})
        await asyncio.wait((self.link.end,), timeout=LAST_S)
        # In one piece: a client that has the finish reason has left nothing unread.
        await send({"type": "http.response.body", "body": b"".join(self.parts[-self.last :])})
