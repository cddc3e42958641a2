"""One run of an agent program: its open requests and their grouping into phases.

All of it runs on the door's event loop, except the functions of programs: each has a thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import signal
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from flowzoo.envs.door.refusal import BodyRoom, RefusalError
from flowzoo.envs.door.wire import ChatCall
from flowzoo.envs.script import (
    AgentProgram,
    Exchange,
    ProgramEnd,
    ProgramReply,
    ProgramRequest,
    Progress,
)

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


class OpenRequest:
    """A request of a program, and its reply."""

    __slots__ = ("abandoned", "number", "reply", "request", "seen", "size")

    def __init__(self, request: ProgramRequest, number: int) -> None:
        self.request, self.number = request, number
        self.size = request_size(request)
        self.reply: asyncio.Future[ProgramReply] = asyncio.get_running_loop().create_future()
        self.seen = False  # it is part of a `Progress` and therefore a turn
        self.abandoned = False  # its client disconnected before it had the whole reply


class ProgramRun:
    """A running program."""

    def __init__(self, program: AgentProgram, question: str) -> None:
        self.program, self.question = program, question
        self.key = f"flowzoo-{secrets.token_hex(16)}"
        self.requests: list[OpenRequest] = []  # requests without a reply, or with an unread reply
        self.end: ProgramEnd | None = None
        self.stop: Callable[[], None] = lambda: None  # stops the program; set at its start
        self.calls = self.refused = 0
        self.refusal = ""
        self.quiet_s = 0.0  # time without a new request
        self.used_s = 0.0  # running time without waits for replies
        self.wake = asyncio.Event()
        self.room = BodyRoom(MOST_INCOMING)
        self.incoming: set[asyncio.Timeout] = set()  # bytes of bodies that are being read

    # -- requests ------------------------------------------------------------------------------

    @property
    def open(self) -> list[OpenRequest]:
        """Requests without a reply."""
        return [entry for entry in self.requests if not entry.reply.done()]

    def ask(self, call: ChatCall) -> OpenRequest:
        """Open a request, or resume an abandoned one that its client repeats.

        Raises:
            RefusalError: the run has ended or exceeds its calls or open requests.
        """
        if self.end is None:
            for entry in self.requests:
                if entry.abandoned and entry.request == call.request:
                    entry.abandoned = False
                    return entry
            if self.calls < self.program.calls:
                self._check_size(call.request)
                self.calls += 1
                entry = OpenRequest(call.request, self.calls)
                self.requests.append(entry)
                self.quiet_s = 0.0
                self.wake.set()
                return entry
            self.finish("calls", f"it made {self.calls:,} calls and did not end")
        raise over()

    def _check_size(self, request: ProgramRequest) -> None:
        size = request_size(request) + sum(entry.size for entry in self.requests)
        if size > MOST_OPEN_CHARACTERS:
            message = f"Open requests have more than {MOST_OPEN_CHARACTERS:,} characters together."
            raise RefusalError(413, "open_requests_too_large", message)

    def leave(self, entry: OpenRequest) -> None:
        """Handle a disconnected client: its request is kept if it is a turn, else forgotten."""
        if entry not in self.requests:
            return
        entry.abandoned = entry.seen
        if not entry.seen:
            self.requests.remove(entry)
            self.calls -= 1

    def delivered(self, entry: OpenRequest) -> None:
        """Forget a request whose reply was sent."""
        if entry in self.requests:
            self.requests.remove(entry)

    def refuse(self, refusal: RefusalError) -> None:
        """Count a refused request."""
        self.refused += 1
        self.refusal = refusal.code
        if self.refused == MOST_REFUSED:
            self.finish("refusals", f"{self.refused:,} of its requests were refused")

    def answer(self, exchange: Exchange) -> None:
        """Reply to open requests."""
        for request, reply in zip(exchange.requests, exchange.replies, strict=True):
            for entry in self.requests:
                if not entry.reply.done() and entry.request == request:
                    entry.reply.set_result(reply)
                    break
        # The other requests were deferred: not turns yet, and dropped if the client has left.
        for entry in self.open:
            entry.seen = False
            if entry.abandoned:
                self.leave(entry)
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

        def is_phase() -> bool:
            count = len(self.open)
            return count >= self.program.at_once or (
                count > 0 and self.quiet_s >= self.program.settle
            )

        await self._wait(is_phase)
        if self.end is not None:
            return Progress((), self.end)
        for entry in self.open:
            entry.seen = True
        return Progress(tuple(self._sorted(entry.request for entry in self.open)))

    def _sorted(self, requests: Any) -> list[ProgramRequest]:
        order = {name: number for number, name in enumerate(self.program.models)}
        return sorted(
            requests,
            key=lambda item: (order[item.model], item.messages, item.stop, repr(item.tools)),
        )

    async def reach(self, requests: Sequence[ProgramRequest]) -> bool:
        """Wait until `requests` are open, as in an earlier run; False if that cannot happen."""
        expected = Counter(requests)

        def is_there() -> bool:
            return expected <= Counter(entry.request for entry in self.open)

        def is_decided() -> bool:
            return is_there() or (bool(self.open) and self.quiet_s >= _PATIENCE_S)

        await self._wait(is_decided)
        for entry in self.open:
            entry.seen = True
        return self.end is None and is_there()

    async def _wait(self, ready: Callable[[], bool]) -> None:
        while self.end is None and not ready():
            self.wake.clear()
            await self.wake.wait()

    # -- the end -------------------------------------------------------------------------------

    def finish(self, status: str, reason: str = "", answer: str | None = None) -> None:
        """End the run: refuse its open requests and stop the program."""
        if self.end is not None:
            return
        unread = sum(entry.seen for entry in self.requests)
        self.end = ProgramEnd(answer, status, reason, self.refused, self.refusal, unread)
        for entry in self.open:
            entry.reply.set_exception(over())
            entry.reply.exception()  # retrieve the exception: the client may have disconnected
        for limit in self.incoming:
            limit.reschedule(asyncio.get_running_loop().time())
        self.stop()
        self.wake.set()


def request_size(request: ProgramRequest) -> int:
    """Characters of the messages of a request."""
    return sum(len(text) for _, *texts in request.messages for text in texts)


def over() -> RefusalError:
    """Make the error for a request of a run that has ended."""
    return RefusalError(403, "episode_ended", "The episode of this key has ended.")


def kill_group(process: int) -> None:
    """Kill a process and its group."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process, signal.SIGKILL)
