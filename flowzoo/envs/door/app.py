"""The door's application: Chat Completions, Responses and models; and its connections."""

import asyncio
import socket
from collections.abc import AsyncIterator, Mapping, Sequence
from functools import partial
from typing import Any

from flowzoo.envs.door.fields import Api, IgnoredFields, Surface
from flowzoo.envs.door.openapi import describe
from flowzoo.envs.door.replies import ReplyChoice, UsedTokens, make_choice, reply_writer
from flowzoo.envs.door.run import Link, OpenRequest, ProgramRun, Sending, over
from flowzoo.envs.door.wire import ModelRequest, model_list, read_request
from flowzoo.envs.script import ProgramReply
from flowzoo.front.connection import BoundedConnection
from flowzoo.front.front import Front
from flowzoo.front.refusal import ClientGoneError, RefusalError
from flowzoo.front.request import HttpReply, HttpRequest, json_reply
from flowzoo.front.server import HOST, FrontServer, bind

LAST_S = 0.01
"""Seconds between two looks for a client that has disconnected, before a stream's last events."""
_LOOKS = 4  # on a busy machine they are late, like the client


class DoorFront(Front):
    """The application of a door; `runs` are by API key."""

    most_connections = 2**14

    def __init__(self, runs: Mapping[str, ProgramRun]) -> None:
        super().__init__(
            {
                "POST /v1/chat/completions": partial(self._reply, "chat"),
                "POST /v1/responses": partial(self._reply, "responses"),
                "GET /v1/models": self._models,
                "GET /openapi.json": self._description,
            }
        )
        self.runs, self.ignored = runs, IgnoredFields()

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

    async def _reply(self, api: Api, request: HttpRequest) -> HttpReply:
        run, link = self.runs[request.key], request.state["link"]
        surface = surface_of(run)
        parsed = read_request(await body_for(request, run), api, surface)
        self.ignored.note(parsed.ignored, surface)
        tries = request.header(b"x-stainless-retry-count")
        attempt = int(tries) if tries.isdecimal() and len(tries) < 9 else 0
        sending = Sending(link, request.header(b"idempotency-key"), attempt)
        entry = await run.ask(parsed.ask, sending, parsed.samples)
        return await answered(parsed, entry, link)

    async def _models(self, request: HttpRequest) -> HttpReply:
        return json_reply(200, model_list(self.runs[request.key].program.models))

    async def _description(self, request: HttpRequest) -> HttpReply:
        surface = surface_of(self.runs[request.key])
        return json_reply(200, describe("flowzoo's door", surface))


def surface_of(run: ProgramRun) -> Surface:
    """Facts that decide on a program's requests."""
    return Surface("door", run.program.models, strict=run.program.strict)


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


async def answered(request: ModelRequest, entry: OpenRequest, link: Link) -> HttpReply:
    """Respond to an open request when it has its replies or its client has disconnected."""
    await asyncio.wait((link.end, entry.reply), return_when=asyncio.FIRST_COMPLETED)
    if link.end.done():  # a reply that arrives at the same time is kept for a repeated request
        raise ClientGoneError
    replies: list[ProgramReply] = entry.reply.result()
    choices = [
        make_choice(request, ReplyChoice(index, reply.text, reply.counts.finish, reply.calls))
        for index, reply in enumerate(replies)
    ]
    usage = UsedTokens(
        sum(reply.counts.prompt_tokens for reply in replies),
        sum(reply.counts.output_tokens for reply in replies),
    )
    writer = reply_writer(request, str(entry.number))  # a program may use the id
    if not request.stream:
        return json_reply(200, writer.whole(choices, usage))
    first = [*writer.start(), *(part for choice in choices for part in writer.parts(choice))]
    # In one piece: a client that has the finish reason has left nothing unread.
    last = [*(part for choice in choices for part in writer.finish(choice)), *writer.end(usage)]
    parts = unless_left(first, link)
    return HttpReply(200, b"".join(last), "text/event-stream", parts=parts)


async def unless_left(parts: Sequence[bytes], link: Link) -> AsyncIterator[bytes]:
    """The parts of a stream; a client that disconnects early does not get what follows them."""
    for part in parts:
        yield part
    for _ in range(_LOOKS):
        await asyncio.wait((link.end,), timeout=LAST_S)


_KEEP_ALIVE_S = 24 * 3600


def open_server(runs: Mapping[str, ProgramRun]) -> FrontServer:
    """The server of a door on the loopback interface; `runs` are by API key."""
    front, opened = DoorFront(runs), bind(HOST, 0)
    opened.listen()  # programs may connect before the thread serves
    return FrontServer(front, opened, keep_alive_s=_KEEP_ALIVE_S, connection=ProgramConnection)


class ProgramConnection(BoundedConnection):
    """A connection; the state of its requests has its `Link` as `link`."""

    def __init__(self, **parts: Any) -> None:
        super().__init__(**parts)
        self.link = Link()
        self.app_state = {"link": self.link}
        self._is_last = False  # its client closes it after this response

    def on_headers_complete(self) -> None:
        """Keep the connection open after the response, also if the client wants no further one."""
        super().on_headers_complete()
        self._is_last, self.cycle.keep_alive = not self.cycle.keep_alive, True

    def on_response_complete(self) -> None:
        """Note that the response was sent."""
        super().on_response_complete()
        if not self.transport.is_closing():  # else nothing was sent
            self.link.sent()
            if self._is_last:  # only for sending, to see how the client closes its side
                self.transport.write_eof()

    def connection_lost(self, exc: Exception | None) -> None:
        """Note how the connection ended."""
        # A kernel resets a connection that is closed before all was read. If the client closed it
        # before the reply arrived, the end is read first, and the reset is the socket's error.
        end: socket.socket = self.transport.get_extra_info("socket")
        error = exc or end.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        self.link.close(is_reset=bool(error))
        super().connection_lost(exc)
