"""A check: the program serves calls in one box, the code of its test makes them in another."""

from __future__ import annotations

import asyncio
import signal
from typing import Any

from flowzoo.sandbox.backends import BoxError, KilledError
from flowzoo.sandbox.box.box import AHEAD, Box, Inbox
from flowzoo.sandbox.box.job import TestGroup, limits_head
from flowzoo.sandbox.judge import (
    LIMIT_STATUS,
    CaseOutcome,
    judge_checker,
    judge_server,
    read_outcome,
)
from flowzoo.sandbox.program import Case, Limits
from flowzoo.sandbox.runner import codec, wire

# Seconds on top of the program's own clock before its box counts as hung: a box on a machine full
# of work is late, not broken.
SLACK = 10.0
# Signals that others send: the machine that has no memory left, an operator, a scheduler.
FROM_OUTSIDE = frozenset((signal.SIGHUP, signal.SIGINT, signal.SIGKILL, signal.SIGTERM))
MOST_CALLS = 100_000  # calls that the code of one check may make
MOST_MESSAGE = 1 << 25  # bytes of one call or result between the halves of a check


class CheckSession:
    """One check."""

    # Round trips between boxes cost milliseconds, so the test's half looks ahead
    # (`runner.foresee`): its first call goes alone, then those it is going to make are predicted
    # and sent many at a time, as are their answers. The test makes each call as if nothing had been
    # predicted and sees results in its own order only. Where it makes another call than the
    # predicted one, the check is thrown away and made again call by call. What it expects stays in
    # its box.

    def __init__(self, box: Box, checker: Box, limits: Limits, ahead: bool, believed: bool) -> None:
        self.box, self.checker = box, checker
        self.limits = limits
        self.ahead, self.believed = ahead, believed
        self.ids = {box: box.next_id(), checker: checker.next_id()}
        self.outcomes: dict[Box, CaseOutcome] = {}  # results of the halves that ended by themselves
        self.running = {box, checker}
        self.raised: set[str] = set()  # names of the exceptions that calls of the program raised
        self.calls, self.answers = 0, 0
        self.departed = False  # the test made another call than the one that was foreseen
        self.blames_answers = False  # the test's code met a limit after it had got an answer
        self.ended: Case | None = None  # event in a half that ends the check

    async def run(self, source: bytes, entry: str | None, step: TestGroup) -> Case | None:
        """The case of the check; None where it has to be made again without looking ahead."""
        inboxes = self.box.inbox, self.checker.inbox
        shared: Inbox = asyncio.Queue(2 * AHEAD)
        self.box.inbox = self.checker.inbox = shared
        await self._start(self.box, "serve", entry, [source])
        style = "check" if self.ahead else "lockstep"
        await self._start(self.checker, style, entry, list(step.blobs[0]))
        while self.running:
            await self._take(shared)
        self.box.inbox, self.checker.inbox = inboxes
        if not shared.empty():
            raise BoxError("frames came after the end of their job")
        return None if self.departed else self._case()

    def _case(self) -> Case:
        server, checker = self.outcomes.get(self.box), self.outcomes.get(self.checker)
        if self.ended is not None:
            return self.ended
        if server is not None and (checker is None or checker.name == "exited" or not self.answers):
            return judge_server(server)  # it ended, instead of serving until it is stopped
        if checker is None:
            raise BoxError("no half of a check ended")
        self.blames_answers = checker.name in LIMIT_STATUS and bool(self.answers)
        return judge_checker(checker, self.raised, bool(self.answers))

    async def _start(self, box: Box, style: str, entry: str | None, blobs: list[bytes]) -> None:
        head = job_head(self.ids[box], style, entry, 1, False, self.limits)
        await box.send(wire.JOB, head, blobs)

    async def _take(self, shared: Inbox) -> None:
        patience = self.limits.session_patience + SLACK
        sender, frame = await self.box.receive(shared, patience)
        other = self.checker if sender is self.box else self.box
        if frame.head.get("id") != self.ids[sender] or sender not in self.running:
            raise BoxError("it sent a frame of another job")
        if frame.kind == wire.DATA and len(frame.blobs) == 1:
            await self._forward(sender, other, frame.blobs[0])
        elif frame.kind == wire.CASE and sender not in self.outcomes:
            self.outcomes[sender] = outcome_of(frame, self.believed)
            if other in self.running and other not in self.outcomes:
                await self._tell_end(sender, other)
        elif frame.kind == wire.DONE:
            self.running.discard(sender)
            sender.dirty |= frame.head.get("clean") is not True
        elif frame.kind != wire.DELAYED:
            raise BoxError(f"it sent an unexpected frame: {frame!r:.200}")

    async def _tell_end(self, sender: Box, other: Box) -> None:
        # The program is stopped; the test may have what was answered.
        if sender is self.box and self.answers:
            await other.send(
                wire.DATA, self._data_head(other, 1), [wire.pack_messages([wire.NO_MORE])]
            )
        else:
            await other.send(wire.STOP, {"id": self.ids[other]})

    def _data_head(self, box: Box, count: int) -> dict[str, Any]:
        return {"id": self.ids[box], "count": count}

    async def _forward(self, sender: Box, other: Box, data: bytes) -> None:
        if self.ended is not None or self.departed or self.checker in self.outcomes:
            return  # on its way before its sender was told to stop
        places = wire.find_messages(data, len(data))
        if not places or places[-1][1] != len(data):
            raise BoxError("it sent what are no messages")
        messages = [data[start:end] for start, end in places]
        if sender is self.checker:
            self._look_at_calls(messages)
        else:
            self._look_at_answers(messages)
        if self.ended is not None or self.departed:
            for box in self.running:
                await box.send(wire.STOP, {"id": self.ids[box]})
            return
        if other in self.running and other not in self.outcomes:
            await other.send(wire.DATA, self._data_head(other, len(places)), [data])

    def _look_at_calls(self, messages: list[bytes]) -> None:
        self.calls += len(messages)
        largest = max(map(len, messages))
        if messages[-1] == wire.DEPARTED and self.ahead:
            self.departed = True
        elif not {message[:1] for message in messages} <= {wire.CALL, wire.EFFECT}:
            self.ended = UNREADABLE_CASE
        elif largest > MOST_MESSAGE:
            self.ended = Case("OLE", f"a call of {largest} bytes")
        elif self.calls > MOST_CALLS:
            self.ended = Case("OLE", f"more than {MOST_CALLS} calls")

    def _look_at_answers(self, messages: list[bytes]) -> None:
        self.answers += len(messages)
        largest = max(map(len, messages))
        kinds = {message[:1] for message in messages}
        if wire.CHANGED in kinds:
            messages = [wire.split_changes(message)[1] for message in messages]
            kinds = {message[:1] for message in messages}
        if largest > MOST_MESSAGE:
            self.ended = Case("OLE", f"a result of {largest} bytes")
        elif self.answers > self.calls:
            self.ended = Case("RE", "it answered a call that was not made")
        elif not kinds <= {wire.RETURNED, wire.UNPLAIN, wire.RAISED}:
            self.ended = UNREADABLE_CASE
        elif wire.RAISED in kinds:
            for message in messages:
                if message[:1] == wire.RAISED:
                    self._note_raised(message[1:])

    def _note_raised(self, content: bytes) -> None:
        try:
            value = codec.decode(content)
        except ValueError:
            value = None
        if type(value) is tuple and len(value) == 2 and type(value[0]) is str:
            self.raised.add(value[0])
        else:
            self.ended = UNREADABLE_CASE


UNREADABLE_CASE = Case("RE", "it answered a call with what cannot be read")


def job_head(
    job: int, style: str, entry: str | None, tests: int, stop: bool, limits: Limits
) -> dict[str, Any]:
    """The head of a JOB frame."""
    return {
        "id": job,
        "style": style,
        "entry": entry,
        "tests": tests,
        "stop": stop,
        "limits": limits_head(limits, style),
    }


def outcome_of(frame: wire.Frame, believed: bool) -> CaseOutcome:
    """As `read_outcome`; what the box broke, or could not set up, is its failure."""
    try:
        outcome = read_outcome(frame)
    except wire.FrameError as error:
        raise BoxError(f"it broke the protocol: {error}") from error
    if outcome.name == "shot":
        raise BoxError(
            "the machine ran out of memory and killed the program: ask for fewer workers"
        )
    if outcome.name == "setup":
        raise BoxError(f"it could not start the program: {outcome.detail}")
    if outcome.name == "signaled" and outcome.signal in FROM_OUTSIDE and not believed:
        raise KilledError(f"signal {outcome.signal} ended a process")
    return outcome
