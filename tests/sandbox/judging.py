"""Verdicts on single programs, for the tests of the sandbox."""

from collections.abc import Sequence

from flowzoo.sandbox import Limits, Program, Sandbox, StdinTest, Test, Verdict

# For programs that end by themselves, however the machine stalls.
PATIENT = Limits(cpu_s=60.0, wall_s=300.0)


def judge(
    sandbox: Sandbox, source: str, tests: Test | Sequence[Test], limits: Limits = PATIENT,
    stop: bool = False, entry: str = "f",
) -> Verdict:  # fmt: skip
    """Verdict on a program; `entry` is what tests call that do call something."""
    listed = tests if isinstance(tests, Sequence) else [tests]
    program = Program(source, None if isinstance(listed[0], StdinTest) else entry)
    return sandbox.run_sync([program], [listed], limits, stop, on_error="verdict")[0]
