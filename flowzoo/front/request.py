"""A request to a front, and the reply to it."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import Any, NamedTuple

from flowzoo.front.refusal import BodyRoom, ClientGoneError, RefusalError

Receive = Callable[[], Awaitable[Mapping[str, Any]]]
Send = Callable[[Mapping[str, object]], Awaitable[None]]
BODY_S = 60.0
"""Most seconds of the body of a request, from the end of its header."""
MOST_INCOMING = 2**28
"""Most bytes of request bodies of all clients of a front at the same time."""
_PIECE = 2**16  # bytes of a reply that are written at once


class HttpRequest:
    """A request whose header was read."""

    def __init__(self, scope: Mapping[str, Any], receive: Receive, room: BodyRoom) -> None:
        """Take the scope and the channel of an ASGI application, and the room for bodies."""
        self.method, self.path, self.state = scope["method"], scope["path"], scope["state"]
        self.query = scope["query_string"].decode("latin-1")
        self._headers, self._receive, self._room = scope["headers"], receive, room
        self._departure: asyncio.Future[None] | None = None

    def values(self, name: bytes) -> list[str]:
        """All values of a header field."""
        return [value.decode("latin-1") for field, value in self._headers if field == name]

    def header(self, name: bytes) -> str:
        """The first value of a header field; empty: there is none."""
        return next(iter(self.values(name)), "")

    @property
    def key(self) -> str:
        """The API key of the request; empty: it has none."""
        kind, _, key = self.header(b"authorization").partition(" ")
        return key.strip() if kind.lower() == "bearer" else ""

    async def body(self, most: int, *rooms: BodyRoom, seconds: float | None = None) -> bytes:
        """Read the body; its bytes count in `rooms` too during that time.

        Raises:
            RefusalError: it exceeds `most` bytes, the free room or the time.
        """
        seconds = BODY_S if seconds is None else min(seconds, BODY_S)
        rooms = (*rooms, self._room)
        held = [0] * len(rooms)
        try:
            async with asyncio.timeout(seconds):
                return await self._read(most, rooms, held)
        except TimeoutError:
            message = f"The request did not come within {seconds:g} s."
            raise RefusalError(408, "timeout", message) from None
        finally:
            for room, count in zip(rooms, held, strict=True):
                room.held -= count

    async def _read(self, most: int, rooms: Sequence[BodyRoom], held: list[int]) -> bytes:
        too_large = RefusalError(413, "request_too_large", f"The request exceeds {most:,} bytes.")
        if int(self.header(b"content-length") or 0) > most:
            raise too_large
        body, more = bytearray(), True
        while more:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                raise ClientGoneError
            chunk, more = message["body"], message["more_body"]
            if len(body) + len(chunk) > most:
                raise too_large
            for index, room in enumerate(rooms):
                room.take(len(chunk))
                held[index] += len(chunk)
            body += chunk
        return bytes(body)

    @property
    def departure(self) -> asyncio.Future[None]:
        """Done once the client has disconnected; a body that was not read is dropped."""
        if self._departure is None:
            self._departure = asyncio.ensure_future(self._leaves())
        return self._departure

    async def _leaves(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass

    def end(self) -> None:
        """Wait for the client no longer."""
        if self._departure is not None:
            self._departure.cancel()


class HttpReply(NamedTuple):
    """The reply to a request."""

    status: int
    body: bytes
    """Sent in one piece with the end of the reply where there are `parts`."""
    kind: str = "application/json"
    """Media type."""
    headers: Mapping[str, str] = {}
    parts: AsyncIterator[bytes] | None = None
    """Sent before `body`, as they come."""

    async def send(self, send: Send) -> None:
        """Send it to an ASGI server."""
        fields = {"content-type": self.kind, **self.headers}
        if self.parts is None:
            fields["content-length"] = str(len(self.body))
        headers = [(name.lower().encode(), value.encode()) for name, value in fields.items()]
        await send({"type": "http.response.start", "status": self.status, "headers": headers})
        if self.parts is not None:
            async for part in self.parts:
                await send({"type": "http.response.body", "body": part, "more_body": True})
                await asyncio.sleep(0)  # for the end of a connection to be noticed
        for start in range(0, max(1, len(self.body)), _PIECE):  # waits for a reader of each
            piece, more = self.body[start : start + _PIECE], start + _PIECE < len(self.body)
            await send({"type": "http.response.body", "body": piece, "more_body": more})


def json_reply(status: int, body: object, headers: Mapping[str, str] | None = None) -> HttpReply:
    """A reply with a JSON body."""
    return HttpReply(status, json.dumps(body).encode(), headers=headers or {})
