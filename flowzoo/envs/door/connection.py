"""Connections of the servers: uvicorn's, with bounds on the bytes of a request beside its body."""

from __future__ import annotations

import asyncio
import json
from http import HTTPStatus
from itertools import chain

import uvicorn
from starlette.applications import Starlette
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from flowzoo.envs.door.refusal import RefusalError

MOST_BYTES = 2**16
"""Most bytes of a request's address and header fields, of the size of a chunk, and of trailers."""
MOST_FIELDS = 100
"""Most header fields of a request with its trailers. A field of a few bytes takes a hundred bytes
of memory."""
HEAD_S = 30.0
"""Most seconds from the start of a request, or of a connection, to the end of the header."""
_BACKLOG = 4096


def server_config(
    app: Starlette, keep_alive_s: int, http: type[BoundedConnection] | None = None
) -> uvicorn.Config:
    """Server settings: bounded headers, no access log, no features for browsers."""
    return uvicorn.Config(
        app,
        http=http or BoundedConnection,
        log_config=None,
        access_log=False,
        lifespan="off",
        ws="none",
        proxy_headers=False,
        server_header=False,
        date_header=False,
        timeout_keep_alive=keep_alive_s,
        backlog=_BACKLOG,
    )


class BoundedConnection(HttpToolsProtocol):
    """A connection that is closed if a header is too large or too slow.

    The parser stores a line until its end, and uvicorn all fields of a request.
    """

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Wait for the first request."""
        super().connection_made(transport)
        self.url, self.headers = b"", []
        self._count = self._chunk = self._start = 0
        self._in_head = True
        self._set_deadline()

    def connection_lost(self, exc: Exception | None) -> None:
        """Cancel the deadline."""
        super().connection_lost(exc)
        self._end_head()

    def data_received(self, data: bytes) -> None:
        """Parse bytes, and count the ones outside of bodies."""
        self._chunk = len(data)
        self._count += self._chunk
        super().data_received(data)
        if self._count - self._start > MOST_BYTES or len(self.headers) > MOST_FIELDS:
            self._refuse_size()
        elif self._in_head and self._deadline is None:
            self._set_deadline()

    def on_message_begin(self) -> None:
        """Start to count."""
        super().on_message_begin()
        self._in_head = True
        self._restart_count()

    def on_headers_complete(self) -> None:
        """Start the request if its header is within the bounds."""
        self._end_head()
        if len(self.headers) > MOST_FIELDS or (
            self._count > MOST_BYTES
            and len(self.url) + sum(map(len, chain.from_iterable(self.headers))) > MOST_BYTES
        ):
            self._refuse_size()
            raise ValueError("the header is too large")  # stops the parser
        super().on_headers_complete()

    def on_chunk_header(self) -> None:
        """Count anew: the number of chunks has no limit."""
        self._restart_count()

    def on_body(self, body: bytes) -> None:
        """Receive a part of a body; the application limits its size."""
        self._count -= len(body)
        super().on_body(body)

    def send_400_response(self, msg: str) -> None:
        """Respond to bytes that are not HTTP, unless the request has a response."""
        if not self.transport.is_closing():
            super().send_400_response(msg)

    def _restart_count(self) -> None:
        # The parser does not tell where in the received bytes it is: `_count` is the most that the
        # request may have, `_count - _start` the least.
        self._count = self._start = self._chunk

    def _set_deadline(self) -> None:
        self._deadline: asyncio.TimerHandle | None = self.loop.call_later(HEAD_S, self._refuse_slow)

    def _end_head(self) -> None:
        self._in_head = False
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _refuse_size(self) -> None:
        message = f"The header has more than {MOST_BYTES:,} bytes or {MOST_FIELDS} fields."
        self._refuse(RefusalError(431, "header_too_large", message))

    def _refuse_slow(self) -> None:
        if self.cycle is None or self.cycle.response_complete:
            message = f"The header did not arrive within {HEAD_S:g} s."
            self._refuse(RefusalError(408, "timeout", message))
        else:  # reading may pause until the request before it has a response
            self._set_deadline()

    def _refuse(self, refusal: RefusalError) -> None:
        if self.transport.is_closing():
            return
        body = json.dumps(refusal.body())
        head = (
            f"HTTP/1.1 {refusal.status} {HTTPStatus(refusal.status).phrase}\r\n"
            f"content-type: application/json\r\ncontent-length: {len(body)}\r\n"
            "connection: close\r\n\r\n"
        )
        self.transport.write((head + body).encode())
        self.transport.close()
        super().on_message_begin()  # frees the fields now: many connections may be refused at once
