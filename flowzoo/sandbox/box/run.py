"""One program in its boxes: jobs out, cases in."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from flowzoo.sandbox.backends import BoxError
from flowzoo.sandbox.box.box import Box, BoxSet
from flowzoo.sandbox.box.check import SLACK, CheckSession, job_head, outcome_of
from flowzoo.sandbox.box.job import MOST_SOURCE, ProgramJob, TestGroup, TestPlan, source_bytes
from flowzoo.sandbox.judge import (
    LIMIT_STATUS,
    CaseOutcome,
    is_clean_exit,
    judge_call,
    judge_stdin,
    own_failure,
)
from flowzoo.sandbox.program import Case, Limits
from flowzoo.sandbox.runner.wire import CASE, DELAYED, DONE, JOB, STOP

# Bytes of output from which on texts are compared in another thread than the boxes' own.
LARGE = 1 << 18


async def run_program(
    work: ProgramJob, stop: bool, boxes: BoxSet, checkers: BoxSet, ahead: bool = True,
    used: float = 0.0, believed: bool = False,
) -> list[Case]:  # fmt: skip
    """The cases of a program's tests, in order; under `stop` up to the first failing one."""
    # With `ahead` checks may look ahead: see `check`. `used` is the CPU time of tests before these.
    # `believed`: a signal that others send counts as the program's doing.
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
        # The box is to be thrown away, and some tests are left: they get another one.
        rest = replace(work, plan=_rest(plan, len(cases)))
        cases += await run_program(rest, stop, boxes, checkers, ahead, used, believed)
    return cases


async def _check(
    box: Box, checkers: BoxSet, work: ProgramJob, step: TestGroup, ahead: bool, believed: bool
) -> Case | None:
    """Case of a check; None where it has to be made again in another box, not looking ahead."""
    for looks in (True, False) if ahead else (False,):
        async with checkers.lease() as checker:
            session = CheckSession(box, checker, work.limits, looks, believed)
            case = await session.run(source_bytes(work.program), work.plan.entry, step)
        if case is not None or box.dirty:
            break
    if not session.blames_answers:
        return case
    async with checkers.lease() as checker:
        return await _own_failure(checker, work, believed, step) or case


async def _own_failure(
    checker: Box, work: ProgramJob, believed: bool, step: TestGroup
) -> Case | None:
    # The code runs with stand-ins for the results, and no assertion of it can fail. So a loop that
    # an answer keeps running is the program's doing, and one that nothing could end is the test's.
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
    """Run the tests of one step; under `stop` no test is started after one that failed, and none
    after `left` CPU seconds have been used.
    """
    job = box.next_id()
    patience = limits.session_patience if step.style == "alone" else limits.patience
    head = job_head(job, step.style, entry, len(step.tests), stop, limits)
    await box.send(JOB, head, [source, *(blobs[0] for blobs in step.blobs)])
    outcomes: list[CaseOutcome] = []
    stopped = False
    received = 0
    while True:
        _, frame = await box.receive(box.inbox, patience + SLACK)
        if frame.head.get("id") != job:
            raise BoxError("it sent a frame of another job")
        if frame.kind == DONE:
            break
        if frame.kind == DELAYED:
            continue
        if frame.kind != CASE or frame.head.get("index") != received:
            raise BoxError(f"it sent an unexpected frame: {frame!r:.200}")
        received += 1
        if stopped:  # cases that ended before the box read STOP
            continue
        outcomes.append(outcome_of(frame, believed))
        left -= outcomes[-1].cpu_s
        if len(outcomes) == len(step.tests):
            continue
        if left < 0 or (stop and not _accepted(outcomes[-1], step, len(outcomes) - 1)):
            stopped = True
            await box.send(STOP, {"id": job})
    box.dirty |= frame.head.get("clean") is not True
    if len(outcomes) < len(step.tests) and not stopped:
        raise BoxError(f"it ended a job after {len(outcomes)} of {len(step.tests)} cases")
    return outcomes


def _accepted(outcome: CaseOutcome, step: TestGroup, row: int) -> bool:
    test = step.tests[row]
    if step.style == "call":
        return judge_call(outcome, test).status == "AC"
    return is_clean_exit(outcome) and judge_stdin([outcome], [test])[0].status == "AC"


async def _judge(outcomes: Sequence[CaseOutcome], step: TestGroup) -> list[Case]:
    # Many bytes take a separate thread, so that the other boxes need not wait.
    judge = _judge_call if step.style == "call" else judge_stdin
    tests = step.tests[: len(outcomes)]
    if sum(len(outcome.output) for outcome in outcomes) < LARGE:
        return judge(outcomes, tests)
    return await asyncio.to_thread(judge, outcomes, tests)


def _judge_call(outcomes: Sequence[CaseOutcome], tests: Sequence[Any]) -> list[Case]:
    return [judge_call(outcome, test) for outcome, test in zip(outcomes, tests, strict=True)]


def _rest(plan: TestPlan, done: int) -> TestPlan:
    steps = list(plan.steps)
    while done:
        done -= len(steps.pop(0).tests)
    return TestPlan(tuple(steps), sum(len(step.tests) for step in steps), plan.entry)
