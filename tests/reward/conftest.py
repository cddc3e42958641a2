"""Fixtures shared by the tests of the rewards."""

import signal
from collections.abc import Iterator
from types import FrameType

import pytest

# Of CPU time. What takes less than one here would take minutes or for ever if it went wrong.
SECONDS = 30


@pytest.fixture
def little_work() -> Iterator[None]:
    """Ends and fails a test that computes for long; a machine that stalls does not count."""

    def stop(number: int, frame: FrameType | None) -> None:
        # Without a traceback: it may have come between two lines, of which pytest can show none.
        pytest.fail(f"still at work after {SECONDS} s of CPU time", pytrace=False)

    before = signal.signal(signal.SIGPROF, stop)
    signal.setitimer(signal.ITIMER_PROF, SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)
