"""One program in its boxes: jobs out, cases in, and the talk between the halves of a check."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from flowzoo.sandbox.backends import BoxError
from flowzoo.sandbox.box.box import AHEAD, Box, BoxSet, Inbox
from flowzoo.sandbox.box.job import (
    MOST_SOURCE,
    TestGroup,
    TestPlan,
    limits_head,
    source_bytes,
)
from flowzoo.sandbox.judge import (
    CaseOutcome,
    is_clean_exit,
    judge_call,
    judge_checker,
    judge_server,
    judge_stdin,
    read_outcome,
)
from flowzoo.sandbox.program import Case, Limits, Program
from flowzoo.sandbox.runner import codec
from flowzoo.sandbox.runner.wire import CASE, DATA, DONE, JOB, STOP, FrameError

SLACK = 10.0
"""Seconds on top of the program's own clock before its box counts as hung: a box on a machine
full of work is late, not broken."""
LARGE = 1 << 18
"""Bytes of output from which on texts are compared in another thread than the boxes' own."""
MOST_CALLS = 100_000
"""Calls that the code of one check may make."""
RAISED = codec.encode(("raised", "", ""))[:-10]
"""How a result begins that tells of an exception: all but the two texts."""
MOST_MESSAGE = 1 << 24
"""Bytes of one call or result between the halves of a check."""


async def run_program(
    program: Program, plan: TestPlan, limits: Limits, stop: bool, boxes: BoxSet, checkers: BoxSet
) -> list[Case]:
    """The cases of a program's tests, in order; under `stop` up to the first failing one.

    Raises:
        BoxError: a box could not be started, or failed on the way; nothing is known then.
    """
    source = source_bytes(program)
    if len(source) > MOST_SOURCE:
        detail = f"a source of {len(source)} bytes; at most {MOST_SOURCE} are allowed"
        return [Case("CE", detail)] * (1 if stop else plan.total)
    cases: list[Case] = []
    async with boxes.lease() as box:
        for step in plan.steps:
            if step.style == "check":
                async with checkers.lease() as checker:
                    cases.append(
                        await _CheckSession(box, checker, limits).run(source, plan.entry, step)
                    )
            else:
                outcomes = await run_job(box, source, plan.entry, step, limits, stop)
                cases += await _judge(outcomes, step)
            if box.dirty or (stop and cases[-1].status != "AC"):
                break
    if len(cases) < plan.total and not (stop and any(case.status != "AC" for case in cases)):
        # The box is to be thrown away, and some tests are left: they get another one.
        rest = await run_program(program, _rest(plan, len(cases)), limits, stop, boxes, checkers)
        cases += rest
    return cases


async def run_job(
    box: Box, source: bytes, entry: str | None, step: TestGroup, limits: Limits, stop: bool
) -> list[CaseOutcome]:
    """Run the tests of one step; under `stop` no test is started after one that failed.

    Raises:
        BoxError: the box failed or does not keep to the protocol.
    """
    job = box.next_id()
    head = _head(job, step.style, entry, len(step.tests), stop, limits)
    await box.send(JOB, head, [source, *(blobs[0] for blobs in step.blobs)])
    outcomes: list[CaseOutcome] = []
    stopped = False
    received = 0
    while True:
        _, frame = await box.receive(box.inbox, limits.wall + SLACK)
        if frame.head.get("id") != job:
            raise BoxError("it sent a frame of another job")
        if frame.kind == DONE:
            break
        if frame.kind != CASE or frame.head.get("index") != received:
            raise BoxError(f"it sent an unexpected frame: {frame!r:.200}")
        received += 1
        if stopped:  # cases that ended before the box read STOP
            continue
        outcomes.append(_outcome(frame))
        left = len(step.tests) - len(outcomes)
        if stop and left and not _accepted(outcomes[-1], step, len(outcomes) - 1):
            stopped = True
            await box.send(STOP, {"id": job})
    box.dirty |= frame.head.get("clean") is not True
    if len(outcomes) < len(step.tests) and not stopped:
        raise BoxError(f"it ended a job after {len(outcomes)} of {len(step.tests)} cases")
    return outcomes


class _CheckSession:
    """A check: the program serves calls in one box, the test's code makes them in another.

    Args:
        box: for the program.
        checker: for the test's code.
        limits: of each of the two; the clock on the wall is one for both.
    """

    def __init__(self, box: Box, checker: Box, limits: Limits) -> None:
        self.box, self.checker = box, checker
        self.limits = limits
        self.ids = {box: box.next_id(), checker: checker.next_id()}
        self.outcomes: dict[Box, CaseOutcome] = {}
        """Of the halves that ended by themselves."""
        self.running = {box, checker}
        self.raised: set[str] = set()
        """Names of the exceptions that calls of the program raised."""
        self.messages = 0
        self.asked = 0
        """Calls without an answer yet."""
        self.ended: Case | None = None
        """What a half did that ends the check."""

    async def run(self, source: bytes, entry: str | None, step: TestGroup) -> Case:
        """The case of the check.

        Raises:
            BoxError: one of the boxes failed.
        """
        inboxes = self.box.inbox, self.checker.inbox
        shared: Inbox = asyncio.Queue(2 * AHEAD)
        self.box.inbox = self.checker.inbox = shared
        await self._start(self.box, "serve", entry, [source])
        await self._start(self.checker, "check", entry, list(step.blobs[0]))
        end = asyncio.get_running_loop().time() + self.limits.wall + SLACK
        while self.running:
            left = max(0.0, end - asyncio.get_running_loop().time())
            await self._take(shared, left)
        self.box.inbox, self.checker.inbox = inboxes
        if not shared.empty():
            raise BoxError("frames came after the end of their job")
        if self.ended is not None:
            return self.ended
        if self.box in self.outcomes:  # a program that serves does not end by itself
            return judge_server(self.outcomes[self.box])
        if self.checker not in self.outcomes:
            raise BoxError("neither half of a check came to an end")
        return judge_checker(self.outcomes[self.checker], self.raised)

    async def _start(self, box: Box, style: str, entry: str | None, blobs: list[bytes]) -> None:
        head = _head(self.ids[box], style, entry, 1, False, self.limits)
        await box.send(JOB, head, blobs)

    async def _take(self, shared: Inbox, seconds: float) -> None:
        """Act on the next frame of either half."""
        sender, frame = await self.box.receive(shared, seconds)
        other = self.checker if sender is self.box else self.box
        if frame.head.get("id") != self.ids[sender] or sender not in self.running:
            raise BoxError("it sent a frame of another job")
        if frame.kind == DATA and len(frame.blobs) == 1:
            await self._forward(sender, other, frame.blobs[0])
        elif frame.kind == CASE and sender not in self.outcomes:
            self.outcomes[sender] = _outcome(frame)
            if other in self.running and other not in self.outcomes:
                await other.send(STOP, {"id": self.ids[other]})
        elif frame.kind == DONE:
            self.running.discard(sender)
            sender.dirty |= frame.head.get("clean") is not True
        else:
            raise BoxError(f"it sent an unexpected frame: {frame!r:.200}")

    async def _forward(self, sender: Box, other: Box, message: bytes) -> None:
        """Pass a call on to the program, or its result to the test's code."""
        if self.ended is not None or self.outcomes:
            return  # on its way before its sender was told to stop
        self.messages += 1
        self.asked += 1 if sender is self.checker else -1
        if len(message) > MOST_MESSAGE:
            self.ended = Case("OLE", f"a call or a result of {len(message)} bytes")
        elif self.messages > 2 * MOST_CALLS:
            self.ended = Case("OLE", f"more than {MOST_CALLS} calls")
        elif self.asked < 0:
            self.ended = Case("RE", "it answered a call that nobody had made")
        if self.ended is not None:
            for box in self.running:
                await box.send(STOP, {"id": self.ids[box]})
            return
        if sender is self.box:
            self.raised |= _raised(message)
        if other in self.running and other not in self.outcomes:
            await other.send(DATA, {"id": self.ids[other]}, [message])


def _raised(message: bytes) -> set[str]:
    """Name of the exception in the result of a call; none where it returned."""
    if not message.startswith(RAISED):
        return set()
    try:
        _, name, _ = codec.decode(message)
    except ValueError:
        return set()
    return {name} if type(name) is str else set()


def _head(
    job: int, style: str, entry: str | None, tests: int, stop: bool, limits: Limits
) -> dict[str, Any]:
    return {
        "id": job,
        "style": style,
        "entry": entry,
        "tests": tests,
        "stop": stop,
        "limits": limits_head(limits),
    }


def _outcome(frame: Any) -> CaseOutcome:
    """As `read_outcome`; what the box broke, or could not set up, is its failure."""
    try:
        outcome = read_outcome(frame)
    except FrameError as error:
        raise BoxError(f"it broke the protocol: {error}") from error
    if outcome.name == "setup":
        raise BoxError(f"it could not start the program: {outcome.detail}")
    return outcome


def _accepted(outcome: CaseOutcome, step: TestGroup, row: int) -> bool:
    test = step.tests[row]
    if step.style == "call":
        return judge_call(outcome, test).status == "AC"
    return is_clean_exit(outcome) and judge_stdin([outcome], [test])[0].status == "AC"


async def _judge(outcomes: Sequence[CaseOutcome], step: TestGroup) -> list[Case]:
    """Compare; many bytes in a thread of their own, so that the other boxes need not wait."""
    judge = _judge_call if step.style == "call" else judge_stdin
    tests = step.tests[: len(outcomes)]
    if sum(len(outcome.output) for outcome in outcomes) < LARGE:
        return judge(outcomes, tests)
    return await asyncio.to_thread(judge, outcomes, tests)


def _judge_call(outcomes: Sequence[CaseOutcome], tests: Sequence[Any]) -> list[Case]:
    return [judge_call(outcome, test) for outcome, test in zip(outcomes, tests, strict=True)]


def _rest(plan: TestPlan, done: int) -> TestPlan:
    """The steps after the first `done` tests."""
    steps = list(plan.steps)
    while done:
        done -= len(steps.pop(0).tests)
    return TestPlan(tuple(steps), sum(len(step.tests) for step in steps), plan.entry)
