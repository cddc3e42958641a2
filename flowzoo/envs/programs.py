"""Programs that scripts ask to be run, many episodes' at a time, in one batch of the sandbox."""

from __future__ import annotations

from collections.abc import Sequence

from flowzoo.envs.script import Ran, RanCase, Run
from flowzoo.reward.code.score import code_sandbox, judge_again
from flowzoo.sandbox.program import Limits, Program, StdinTest, Test, Verdict
from flowzoo.sandbox.tier import SandboxName

SHOWN = 4096
"""Characters of an output that are kept in the log of an episode."""


def job_of(run: Run) -> tuple[Program, tuple[Test, ...]]:
    """The program and tests of a run; without tests, one that lets it run to its end."""
    if run.tests:
        return Program(run.source, run.entry), run.tests
    return Program(run.source), (StdinTest(run.stdin, ""),)


def outcome_of(run: Run, verdict: Verdict) -> Ran:
    """A verdict without its measurements, which differ from run to run."""
    # Without tests there is nothing that an output could be wrong by.
    cases = tuple(
        RanCase(
            "AC" if case.status == "WA" and not run.tests else case.status,
            case.stdout[:SHOWN],
            case.detail[:SHOWN],
        )
        for case in verdict.cases
    )
    status = next((case.status for case in cases if case.status != "AC"), "AC")
    return Ran(status if cases else verdict.status, cases)


def run_programs(
    runs: Sequence[Run],
    sandbox: SandboxName = "auto",
    limits: Limits | None = None,
    packages: str = "",
) -> list[Ran]:
    """Run programs and say what each came to; SE where the sandbox failed, again and again.

    Args:
        runs: the programs with their tests.
        sandbox: which isolation they run under.
        limits: for runs that do not bring their own.
        packages: that they may import.

    Raises:
        UsageError: this machine does not offer that isolation.
    """
    if not runs:
        return []
    common = limits or Limits()
    programs, tests = zip(*map(job_of, runs), strict=True)
    each = [run.limits or common for run in runs]
    verdicts = judge_again(code_sandbox(sandbox, packages), programs, tests, each)
    return [outcome_of(run, verdict) for run, verdict in zip(runs, verdicts, strict=True)]
