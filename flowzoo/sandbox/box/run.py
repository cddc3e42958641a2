"""Run of one program in its boxes."""

import asyncio
import math
import signal
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from flowzoo.sandbox.backends import BoxError, KilledError
from flowzoo.sandbox.box.box import AHEAD, Box, BoxSet, Inbox
from flowzoo.sandbox.box.job import (
    MOST_SOURCE,
    ProgramJob,
    TestGroup,
    TestPlan,
    limits_head,
    source_bytes,
)
from flowzoo.sandbox.judge import (
    LIMIT_STATUS,
    CaseOutcome,
    judge_call,
    judge_checker,
    judge_server,
    judge_stdin,
    own_failure,
    read_outcome,
    read_seconds,
)
from flowzoo.sandbox.program import CallTest, Case, Limits, StdinTest
from flowzoo.sandbox.runner import codec, wire

# Bytes of output from which texts are compared in a separate thread.
LARGE = 1 << 18
# Seconds beyond the program's time limit after which its box counts as hung; boxes on a busy
# machine are slow.
SLACK = 10.0
# Signals that the kernel (out of memory), an operator or a scheduler may send.
FROM_OUTSIDE = frozenset((signal.SIGHUP, signal.SIGINT, signal.SIGKILL, signal.SIGTERM))
MOST_CALLS = 100_000  # most calls of one check
MOST_MESSAGE = 1 << 25  # most bytes of a call or result between the halves of a check


class CheckSession:
    """A check: the program serves calls in one box, and the test's code makes them in another."""

    # Round trips cost milliseconds, so calls are predicted (`runner.foresee`) and sent together.
    # After a wrong prediction the check is repeated call by call. Expected values stay in the
    # test's box.

    def __init__(self, box: Box, checker: Box, limits: Limits, ahead: bool, believed: bool) -> None:
        self.box, self.checker = box, checker
        self.limits = limits
        self.ahead, self.believed = ahead, believed
        self.ids = {box: box.next_id(), checker: checker.next_id()}
        self.outcomes: dict[Box, CaseOutcome] = {}  # results of halves that ended by themselves
        self.running = {box, checker}
        self.raised: set[str] = set()  # names of the exceptions that calls of the program raised
        self.calls, self.answers = 0, 0
        self.cpu_s = 0.0  # CPU seconds of the program
        self.departed = False  # True if the test made a call other than the predicted one
        self.blames_answers = False  # True if the test's code reached a limit after an answer
        self.ended: Case | None = None  # event in a half that ends the check

    async def run(self, source: bytes, entry: str | None, step: TestGroup) -> Case | None:
        """The case of the check; None if it must be repeated without prediction."""
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
            return judge_server(server)  # it ended before it was stopped
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
            if sender is self.box:
                self._read_clock(frame)
            self.running.discard(sender)
            sender.dirty |= frame.head.get("clean") is not True
        elif frame.kind != wire.DELAYED:
            raise BoxError(f"it sent an unexpected frame: {frame!r:.200}")

    def _read_clock(self, frame: wire.Frame) -> None:
        try:
            self.cpu_s = read_seconds(frame.head, "cpu_s")
        except wire.FrameError as error:
            raise BoxError(f"it broke the protocol: {error}") from error

    async def _tell_end(self, sender: Box, other: Box) -> None:
        # The program is stopped; earlier answers are still sent to the test.
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
            return  # sent before its sender received the stop
        places = wire.find_messages(data, len(data))
        if not places or places[-1][1] != len(data):
            raise BoxError("it sent invalid messages")
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
        elif not kinds <= {wire.RETURNED, wire.RAISED}:
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


UNREADABLE_CASE = Case("RE", "its answer to a call cannot be read")


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
    """Like `read_outcome`, but raise for a broken protocol or a failed setup."""
    try:
        outcome = read_outcome(frame)
    except wire.FrameError as error:
        raise BoxError(f"it broke the protocol: {error}") from error
    if outcome.name == "oom":
        raise BoxError("the machine ran out of memory and killed the program: use fewer workers")
    if outcome.name == "setup":
        raise BoxError(f"it could not start the program: {outcome.detail}")
    if outcome.name == "signaled" and outcome.signal in FROM_OUTSIDE and not believed:
        raise KilledError(f"signal {outcome.signal} ended a process")
    return outcome


async def run_program(
    work: ProgramJob, stop: bool, boxes: BoxSet, checkers: BoxSet, ahead: bool = True,
    used: float = 0.0, believed: bool = False,
) -> list[Case]:  # fmt: skip
    """Run a program's tests and return the cases in order; under `stop` up to the first failure."""
    # With `ahead`, checks may predict calls; `used` is the CPU time of earlier tests; if
    # `believed`, a signal from outside counts as caused by the program.
    plan, limits, source = work.plan, work.limits, source_bytes(work.program)
    if len(source) > MOST_SOURCE:
        detail = f"a source of {len(source)} bytes; at most {MOST_SOURCE} are allowed"
        return [Case("CE", detail)] * (1 if stop else plan.total)
    cases: list[Case] = []
    async with boxes.lease() as box:
        for step in plan.steps:
            if step.style == "check":
                case = await _check(box, checkers, work, step, ahead, believed)
                if case is None:
                    ahead = False
                    break
                cases.append(case)
            else:
                left = math.inf if limits.total_s is None else limits.total_s - used
                outcomes = await run_job(
                    box, source, plan.entry, step, limits, stop, left, believed
                )
                cases += await _judge(outcomes, step)
            used += sum(case.cpu_s for case in cases[-len(step.tests) :])
            if len(cases) < plan.total and limits.total_s is not None and used > limits.total_s:
                detail = f"total: {used:.1f} CPU seconds for {len(cases)} of {plan.total} tests"
                return cases + [Case("TLE", detail)] * (1 if stop else plan.total - len(cases))
            if box.dirty or (stop and cases[-1].status != "AC"):
                break
    if len(cases) < plan.total and not (stop and any(case.status != "AC" for case in cases)):
        # The box must be discarded; the remaining tests get another one.
        rest = replace(work, plan=_rest(plan, len(cases)))
        cases += await run_program(rest, stop, boxes, checkers, ahead, used, believed)
    return cases


async def _check(
    box: Box, checkers: BoxSet, work: ProgramJob, step: TestGroup, ahead: bool, believed: bool
) -> Case | None:
    """Case of a check; None if it must be repeated in another box without prediction."""
    for looks in (True, False) if ahead else (False,):
        async with checkers.lease() as checker:
            session = CheckSession(box, checker, work.limits, looks, believed)
            case = await session.run(source_bytes(work.program), work.plan.entry, step)
        if case is not None or box.dirty:
            break
    # `total_s` bounds the program's time, not the time of the test's code.
    case = case and replace(case, cpu_s=session.cpu_s)
    if not session.blames_answers:
        return case
    async with checkers.lease() as checker:
        return await _own_failure(checker, work, believed, step) or case


async def _own_failure(
    checker: Box, work: ProgramJob, believed: bool, step: TestGroup
) -> Case | None:
    # The code runs with stand-ins for the results, and its assertions cannot fail. A loop that ends
    # with stand-ins is the program's fault, an endless one is the test's.
    setup, *rest = step.blobs[0]
    alone = TestGroup("alone", step.tests, tuple((blob,) for blob in rest))
    [outcome] = await run_job(
        checker, setup, work.plan.entry, alone, work.limits, True, believed=believed
    )
    return own_failure(outcome, "") if outcome.name in LIMIT_STATUS else None


async def run_job(
    box: Box, source: bytes, entry: str | None, step: TestGroup, limits: Limits, stop: bool,
    left: float = math.inf, believed: bool = False,
) -> list[CaseOutcome]:  # fmt: skip
    """Run the tests of one step.

    It starts no test after a failed one under `stop`, or after `left` CPU seconds are used.
    """
    job = box.next_id()
    patience = limits.session_patience if step.style == "alone" else limits.patience
    head = job_head(job, step.style, entry, len(step.tests), stop, limits)
    await box.send(wire.JOB, head, [source, *(blobs[0] for blobs in step.blobs)])
    outcomes: list[CaseOutcome] = []
    stopped = False
    received = 0
    while True:
        _, frame = await box.receive(box.inbox, patience + SLACK)
        if frame.head.get("id") != job:
            raise BoxError("it sent a frame of another job")
        if frame.kind == wire.DONE:
            break
        if frame.kind == wire.DELAYED:
            continue
        index = frame.head.get("index")
        if frame.kind != wire.CASE or index != received or received == len(step.tests):
            raise BoxError(f"it sent an unexpected frame: {frame!r:.200}")
        received += 1
        if stopped:  # cases that ended before the box read wire.STOP
            continue
        outcomes.append(outcome_of(frame, believed))
        left -= outcomes[-1].cpu_s
        if len(outcomes) == len(step.tests):
            continue
        last = step.tests[len(outcomes) - 1]
        if left < 0 or (stop and _judge_each(outcomes[-1:], [last])[0].status != "AC"):
            stopped = True
            await box.send(wire.STOP, {"id": job})
    box.dirty |= frame.head.get("clean") is not True
    if len(outcomes) < len(step.tests) and not stopped:
        raise BoxError(f"it ended a job after {len(outcomes)} of {len(step.tests)} cases")
    return outcomes


def _judge_each(
    outcomes: Sequence[CaseOutcome], tests: Sequence[CallTest | StdinTest]
) -> list[Case]:
    return [
        judge_call(outcome, test) if isinstance(test, CallTest) else judge_stdin(outcome, test)
        for outcome, test in zip(outcomes, tests, strict=True)
    ]


async def _judge(outcomes: Sequence[CaseOutcome], step: TestGroup) -> list[Case]:
    # Many bytes are compared in a separate thread, so other boxes do not wait.
    tests = step.tests[: len(outcomes)]
    if sum(len(outcome.output) for outcome in outcomes) < LARGE:
        return _judge_each(outcomes, tests)
    return await asyncio.to_thread(_judge_each, outcomes, tests)


def _rest(plan: TestPlan, done: int) -> TestPlan:
    steps = list(plan.steps)
    while done:
        done -= len(steps.pop(0).tests)
    return TestPlan(tuple(steps), sum(len(step.tests) for step in steps), plan.entry)
