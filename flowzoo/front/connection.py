"""Connections of the servers: uvicorn's, with bounds on bytes, requests and time beside bodies."""

import asyncio
import json
import logging
from contextlib import suppress
from http import HTTPStatus
from itertools import chain
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from flowzoo.front.front import Front
from flowzoo.front.refusal import RefusalError

MOST_BYTES = 2**16
"""Most bytes of a request's address and header fields, of the size of a chunk, and of trailers."""
MOST_FIELDS = 100
"""Most header fields of a request with its trailers. A field of a few bytes takes a hundred bytes
of memory."""
MOST_PIPELINED = 16
"""Most requests that a client may send before it has the reply to the first."""
HEAD_S = 10.0
"""Most seconds from the start of a request, or of a connection, to the end of the header; and of
the rest of a body after the reply."""
STALL_S = 30.0
"""Most seconds without a client that reads, while a reply waits for it."""
_LINGER_S, _LINGER_BYTES, _LINGERING = 2.0, 2**20, 1024
"""Most seconds that a refused client has to read the reply, most bytes that it sends in this time,
and most such clients above the bound of connections. A socket that is closed while bytes of its
client are unread resets the connection, and the reply is lost."""
_QUIET = logging.getLogger("flowzoo.front.connection")
_QUIET.setLevel(logging.CRITICAL + 1)  # uvicorn logs every request that is no HTTP


class BoundedConnection(HttpToolsProtocol):
    """A connection that is closed if its client sends too much, too slowly, or does not read.

    The parser stores a line until its end, and uvicorn all fields of a request.
    """

    def __init__(self, **parts: Any) -> None:
        super().__init__(**parts)
        front = self.config.app
        assert isinstance(front, Front)
        self.logger, self.front = _QUIET, front
        self._deadline: asyncio.TimerHandle | None = None
        self._stall: asyncio.TimerHandle | None = None
        self._linger: asyncio.TimerHandle | None = None
        self._running: Any = None  # the request that is being answered, of several
        self._is_refused = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Wait for the first request, if there is room."""
        super().connection_made(transport)
        self.url, self.headers = b"", []
        self._count = self._chunk = self._start = 0
        self._in_head, self._in_message = True, False
        self._idle_since = self.loop.time()
        self._set_deadline()
        if len(self.connections) > self.front.most_connections:
            self._make_room()

    def connection_lost(self, exc: Exception | None) -> None:
        """Cancel the deadlines."""
        super().connection_lost(exc)
        if self._running is not None:  # uvicorn tells the latest one
            self._running.disconnected = True
            self._running.message_event.set()
        self._end_wait()
        self._end_stall()
        self._linger = _cancel(self._linger)

    def data_received(self, data: bytes) -> None:
        """Parse bytes, and count the ones outside of bodies; after a refusal drop them."""
        self._chunk = len(data)
        self._count += self._chunk
        if self._is_refused:
            if self._count > _LINGER_BYTES:
                self.transport.abort()
            return
        super().data_received(data)
        if self._count - self._start > MOST_BYTES or len(self.headers) > MOST_FIELDS:
            self._refuse_size()
        elif self._in_head and self._deadline is None:
            self._set_deadline()

    def on_message_begin(self) -> None:
        """Start to count."""
        super().on_message_begin()
        self._in_head = self._in_message = True
        self._restart_count()

    def on_headers_complete(self) -> None:
        """Start the request if its header is within the bounds."""
        self._end_wait()
        self._in_head = False
        if len(self.headers) > MOST_FIELDS or (
            self._count > MOST_BYTES
            and len(self.url) + sum(map(len, chain.from_iterable(self.headers))) > MOST_BYTES
        ):
            self._refuse_size()
        elif self.parser.get_http_version() not in ("1.1", "1.0"):
            self._refuse(RefusalError(505, "unknown_version", "The server speaks HTTP/1.1."))
        elif len(self.pipeline) >= MOST_PIPELINED:
            message = f"More than {MOST_PIPELINED} requests were sent before the first reply."
            self._refuse(RefusalError(429, "too_many_requests", message))
        if self._is_refused:
            raise ValueError("the request is refused")  # stops the parser
        super().on_headers_complete()

    def _start_asgi_task(self, cycle: Any, app: Any) -> None:
        self._running = cycle
        super()._start_asgi_task(cycle, app)

    def on_chunk_header(self) -> None:
        """Count anew: the number of chunks has no limit."""
        self._restart_count()

    def on_body(self, body: bytes) -> None:
        """Receive a part of a body; the application limits its size."""
        self._count -= len(body)
        super().on_body(body)

    def on_message_complete(self) -> None:
        """Note the end of a body."""
        super().on_message_complete()
        self._in_message = False
        self._end_wait()

    def on_response_complete(self) -> None:
        """Wait for the rest of a body that was refused, or of the next header, not for long."""
        self._idle_since = self.loop.time()
        super().on_response_complete()
        if self._in_message and not self._in_head and self.cycle.response_complete:
            self._set_deadline()
        elif self._in_head and self._deadline is not None:
            self._set_deadline()  # a header that waited for this response has its whole time

    def pause_writing(self) -> None:
        """Wait for a client that reads slowly, though not for ever."""
        super().pause_writing()
        self._stall = self.loop.call_later(STALL_S, self._drop, "slow reader")

    def resume_writing(self) -> None:
        """Go on writing."""
        super().resume_writing()
        self._end_stall()

    def timeout_keep_alive_handler(self) -> None:
        """Close a connection without requests."""
        self._close()

    def send_400_response(self, msg: str) -> None:
        """Respond to bytes that are not HTTP, unless the request has a response."""
        self._refuse(RefusalError(400, "invalid_http", "The request is not valid HTTP."))

    @property
    def is_idle(self) -> bool:
        """True without a request that is being answered."""
        return self.cycle is None or self.cycle.response_complete

    def _restart_count(self) -> None:
        # The parser does not tell where in the received bytes it is: `_count` is the most that the
        # request may have, `_count - _start` the least.
        self._count = self._start = self._chunk

    def _set_deadline(self) -> None:
        self._end_wait()
        self._deadline = self.loop.call_later(HEAD_S, self._refuse_slow)

    def _end_wait(self) -> None:
        self._deadline = _cancel(self._deadline)

    def _end_stall(self) -> None:
        self._stall = _cancel(self._stall)

    def _make_room(self) -> None:
        connections: list[Any] = [other for other in self.connections if other is not self]
        others = [
            other for other in connections
            if not (other._is_refused or other.transport.is_closing())
        ]  # fmt: skip
        if len(others) < self.front.most_connections:
            return
        idle = [other for other in others if other.is_idle]
        if idle:  # not one that has just come: its first request may be under way
            min(idle, key=lambda other: other._idle_since)._drop("no room")
            return
        message = f"{self.front.most_connections:,} connections are open: try again."
        headers = {"Retry-After": "1"}
        self._refuse(RefusalError(503, "too_many_connections", message, headers=headers))

    def _refuse_size(self) -> None:
        message = f"The header has more than {MOST_BYTES:,} bytes or {MOST_FIELDS} fields."
        self._refuse(RefusalError(431, "header_too_large", message))

    def _refuse_slow(self) -> None:
        if not self.is_idle:  # reading may pause until the request before it has a response
            self._set_deadline()
        elif self._in_head:
            message = f"The header did not arrive within {HEAD_S:g} s."
            self._refuse(RefusalError(408, "timeout", message))
        else:
            self._drop("slow body")

    def _refuse(self, refusal: RefusalError) -> None:
        if self._is_refused or self.transport.is_closing():
            return
        self._is_refused = True
        self.front.tally.add(refusal.status)
        body = json.dumps(refusal.body())
        fields = {
            "content-type": "application/json",
            "content-length": len(body),
            **refusal.headers,
        }
        head = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
        status = f"HTTP/1.1 {refusal.status} {HTTPStatus(refusal.status).phrase}\r\n"
        self.transport.write(f"{status}{head}connection: close\r\n\r\n{body}".encode())
        if self.is_idle and len(self.connections) < self.front.most_connections + _LINGERING:
            self._end_wait()
            self._end_stall()
            self._count = 0
            self._linger = self.loop.call_later(_LINGER_S, self.transport.abort)
            with suppress(OSError):  # the client may have gone
                self.transport.write_eof()
        else:
            self._close()
        super().on_message_begin()  # frees the fields now: many connections may be refused at once

    def _close(self) -> None:
        self.transport.close()
        if self.transport.get_write_buffer_size():  # the client may never read it
            self._end_stall()
            self._stall = self.loop.call_later(STALL_S, self._drop, "slow reader")

    def _drop(self, reason: str) -> None:
        self.front.tally.drops[reason] += 1
        self.transport.abort()


def _cancel(timer: asyncio.TimerHandle | None) -> None:
    if timer is not None:
        timer.cancel()
