"""One run of an agent program: its open requests and their grouping into phases.

All of it runs on the door's event loop, except the functions of programs: each has a thread.
"""

import asyncio
import secrets
from collections import Counter
from collections.abc import Callable, Sequence
from typing import NamedTuple

from flowzoo.envs.script import (
    AgentProgram,
    Exchange,
    ProgramEnd,
    ProgramReply,
    ProgramRequest,
    Progress,
)
from flowzoo.front.refusal import BodyRoom, RefusalError

TICK_S = 0.005
"""Seconds between two polls of the active runs."""
MOST_OPEN_CHARACTERS = 2**26
"""Most characters of a run's open requests."""
MOST_INCOMING = 2**26
"""Most bytes of request bodies of a run at the same time."""
MOST_REFUSED = 100
"""Number of refused requests that ends a run."""
_PATIENCE_S = 1.0
# Seconds without a request after which a replayed run with other requests counts as diverged.


class Link:
    """The connection of a client, from which follows whether it has read its reply."""

    def __init__(self) -> None:
        self.end: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.entry: OpenRequest | None = None  # its latest request
        self.is_reset = False  # it ended before the client had read everything

    def sent(self) -> None:
        """Handle that a response was sent."""
        if self.entry is not None and self.entry.link is self:
            self.entry.sent = True

    def close(self, is_reset: bool) -> None:
        """Handle the end of the connection."""
        self.is_reset = is_reset
        self.end.set_result(None)


class Sending(NamedTuple):
    """Connection, key and try of a request."""

    link: Link
    key: str = ""
    """Idempotency key; empty: none."""
    attempt: int = 0
    """Number of times that its client has sent it before, as far as it says so."""


class OpenRequest:
    """A request of a program, and its replies."""

    def __init__(
        self, request: ProgramRequest, number: int, samples: int, sending: Sending
    ) -> None:
        self.request, self.number, self.samples, self.key = request, number, samples, sending.key
        self.size = request_size(request)
        self.replies: list[ProgramReply] = []
        self.reply: asyncio.Future[list[ProgramReply]] = asyncio.get_running_loop().create_future()
        self.seen = False  # it is part of a `Progress` and therefore a turn
        self.attempt = sending.attempt
        self.serve(sending.link)

    @property
    def asks(self) -> list[ProgramRequest]:
        """The request, as often as a reply to it is missing."""
        return [] if self.reply.done() else [self.request] * (self.samples - len(self.replies))

    def give(self, reply: ProgramReply) -> None:
        """Take a reply."""
        self.replies.append(reply)
        if len(self.replies) == self.samples:
            self.reply.set_result(self.replies)

    def serve(self, link: Link) -> None:
        """Reply to the client at `link` from now on."""
        self.link, self.sent = link, False
        link.entry = self

    @property
    def is_read(self) -> bool:
        """True if its client has read the whole reply."""
        link = self.link
        return self.sent and not link.is_reset and (link.end.done() or link.entry is not self)

    @property
    def is_left(self) -> bool:
        """True if its client has disconnected without the whole reply."""
        return self.link.end.done() and not self.is_read

    @property
    def is_over(self) -> bool:
        """True if no client can send it again."""
        return self.is_read and not (self.key or self.link.end.done())

    def is_repeated(self, request: ProgramRequest, samples: int, sending: Sending) -> bool:
        """True if a request is this one, sent again.

        An idempotency key decides. Without one a client sends it again that has not read the
        replies and is no longer there.
        """
        if (request, samples) != (self.request, self.samples):
            return False
        if sending.key and self.key:
            return sending.key == self.key
        is_alone = self.link.end.done() or sending.link.end.done()
        return is_alone and not self.is_read

    def is_equal(self, request: ProgramRequest, samples: int, sending: Sending) -> bool:
        """True if only the number of a request's try tells whether it is this one."""
        is_keyed = sending.key and self.key
        return (request, samples) == (self.request, self.samples) and not is_keyed


class ProgramRun:
    """A running program."""

    def __init__(self, program: AgentProgram, question: str) -> None:
        self.program, self.question = program, question
        self.key = f"flowzoo-{secrets.token_hex(16)}"
        self.requests: list[OpenRequest] = []  # those whose reply may be unread, or that have a key
        self.end: ProgramEnd | None = None
        self.stop: Callable[[], object] = lambda: None  # stops the program; set at its start
        self.begin: Callable[[], object] = lambda: None  # called at the first request
        self.calls = self.refused = self.repeated = 0
        self.refusal = ""
        self.quiet_s = 0.0  # time without a new request
        self.used_s = 0.0  # running time without waits for replies
        self.wake = asyncio.Event()
        self.room = BodyRoom(MOST_INCOMING)
        self.incoming: set[asyncio.Timeout] = set()  # bytes of bodies that are being read

    # -- requests ------------------------------------------------------------------------------

    @property
    def open(self) -> list[OpenRequest]:
        """Requests without all their replies."""
        return [entry for entry in self.requests if not entry.reply.done()]

    @property
    def asks(self) -> list[ProgramRequest]:
        """Requests, as often as replies to them are missing."""
        return [request for entry in self.open for request in entry.asks]

    async def ask(self, request: ProgramRequest, sending: Sending, samples: int = 1) -> OpenRequest:
        """Open a request, or return the one that its client repeats.

        Raises:
            RefusalError: the run has ended or exceeds its calls or open requests.
        """
        link = sending.link
        link.entry = None  # its client has read the reply to its previous request
        self.requests = [entry for entry in self.requests if not entry.is_over]
        if any(entry.request == request for entry in self.requests):
            await ends_noticed()
        if self.end is not None:
            raise over()
        earlier = [entry for entry in self.requests if entry.is_repeated(request, samples, sending)]
        if not earlier and sending.attempt:
            # The first try may never have arrived, and an equal entry be another turn's.
            equal = [entry for entry in self.requests if entry.is_equal(request, samples, sending)]
            if len(equal) == 1 and equal[0].attempt == sending.attempt - 1:
                earlier = equal
        if not earlier:
            return self._open(request, samples, sending)
        entry = min(earlier, key=lambda entry: not entry.is_left)
        entry.attempt = max(entry.attempt, sending.attempt)
        self.repeated += 1
        if entry.reply.done():  # the program goes on
            self.quiet_s = 0.0
        if not link.end.done():
            entry.serve(link)
        return entry

    def _open(self, request: ProgramRequest, samples: int, sending: Sending) -> OpenRequest:
        if self.calls + samples > self.program.calls:
            self.finish("calls", f"it made {self.calls:,} calls and did not end")
            raise over()
        size = request_size(request) + sum(entry.size for entry in self.requests if not entry.sent)
        if size > MOST_OPEN_CHARACTERS:
            message = f"Open requests have more than {MOST_OPEN_CHARACTERS:,} characters together."
            raise RefusalError(413, "open_requests_too_large", message)
        if not self.calls:
            self.begin()
        entry = OpenRequest(request, self.calls + 1, samples, sending)
        self.calls += samples
        self.requests.append(entry)
        self.quiet_s = 0.0
        self.wake.set()
        return entry

    def refuse(self, refusal: RefusalError) -> None:
        """Count a refused request."""
        self.refused += 1
        self.refusal = refusal.code
        if self.refused == MOST_REFUSED:
            self.finish("refusals", f"{self.refused:,} of its requests were refused")

    def answer(self, exchange: Exchange) -> None:
        """Reply to open requests."""
        for request, reply in zip(exchange.requests, exchange.replies, strict=True):
            for entry in self.open:
                if entry.request == request:
                    entry.give(reply)
                    break
        for entry in self.open:
            entry.seen = False  # deferred, not a turn yet
        self.quiet_s = 0.0

    # -- time ----------------------------------------------------------------------------------

    def tick(self) -> None:
        """Let `TICK_S` pass."""
        # On a busy machine ticks are delayed like the programs, so load does not cause timeouts.
        self.quiet_s += TICK_S
        self.used_s += TICK_S
        if self.used_s >= self.program.seconds:
            self.finish("timeout", f"it ran for {self.program.seconds:g} s")
        elif self.quiet_s >= self.program.settle:
            self.wake.set()

    async def pause(self) -> Progress:
        """Wait for a phase, or the end."""
        await self._wait(
            lambda: (
                len(self.asks) >= self.program.at_once
                or (bool(self.open) and self.quiet_s >= self.program.settle)
            )
        )
        if self.end is not None:
            return Progress((), self.end)
        order = self.program.models.index
        requests = sorted(
            self.asks,
            key=lambda item: (order(item.model), item.messages, item.stop, repr(item.tools)),
        )
        return Progress(tuple(requests))

    async def reach(self, requests: Sequence[ProgramRequest]) -> bool:
        """Wait until `requests` are open, as in an earlier run; False if that cannot happen."""
        expected = Counter(requests)

        def is_there() -> bool:
            return expected <= Counter(self.asks)

        await self._wait(lambda: is_there() or (bool(self.open) and self.quiet_s >= _PATIENCE_S))
        return self.end is None and is_there()

    async def _wait(self, ready: Callable[[], bool]) -> None:
        while self.end is None and not ready():
            self.wake.clear()
            await self.wake.wait()
        if self.end is None:
            for entry in self.open:
                entry.seen = True

    # -- the end -------------------------------------------------------------------------------

    def finish(self, status: str, reason: str = "", answer: str | None = None) -> None:
        """End the run: refuse its open requests and stop the program."""
        if self.end is not None:
            return
        unread = sum(entry.seen and (entry.is_left or not entry.sent) for entry in self.requests)
        facts = self.refused, self.refusal, unread, self.repeated
        self.end = ProgramEnd(answer, status, reason, *facts)
        for entry in self.open:
            entry.reply.set_exception(over())
            entry.reply.exception()  # retrieve the exception: the client may have disconnected
        for limit in self.incoming:
            limit.reschedule(asyncio.get_running_loop().time())
        self.stop()
        self.wake.set()


async def ends_noticed() -> None:
    """Wait until the event loop has noticed which connections have ended by now."""
    for _ in range(3):  # the end is read, the transport closed, and the protocol told
        await asyncio.sleep(0)


def request_size(request: ProgramRequest) -> int:
    """Characters of the messages of a request."""
    return sum(len(text) for _, *texts in request.messages for text in texts)


def over() -> RefusalError:
    """Make the error for a request of a run that has ended."""
    return RefusalError(403, "episode_ended", "The episode of this key has ended.")
