"""Waiting for several processes at once: lines of work in threads, and the first error of any."""

import signal
import sys
import threading
import time
from typing import Any

import pytest

from flowzoo.baselines.backends.backend import LearnersLostError
from flowzoo.baselines.backends.ray.learners import run_concurrently
from flowzoo.errors import UsageError

SOON = 20.0
"""Seconds within which everything here happens, or a test fails."""


def unused() -> None:
    raise AssertionError("nothing has to be stopped")


def test_lines_work_at_the_same_time_and_each_in_order():
    meeting, seen = threading.Barrier(2), []

    def meet(name):
        def work():
            meeting.wait(SOON)
            seen.append(name)
            return name.upper()

        return work

    def last():
        seen.append("b2")
        return "B2"

    found = run_concurrently([{"b": meet("b"), "b2": last}, {"a": meet("a")}], unused)
    assert list(found.items()) == [("b", "B"), ("b2", "B2"), ("a", "A")]
    assert seen.index("b") < seen.index("b2")


def test_the_first_error_ends_all_and_is_the_one_that_is_raised():
    begun, stopped, raised = threading.Event(), threading.Event(), []

    def fails():
        assert begun.wait(SOON)
        raise UsageError("the cause")

    def waits():
        begun.set()
        assert stopped.wait(SOON), "nobody has stopped it"
        raised.append(True)
        raise LearnersLostError("what came of it")

    with pytest.raises(UsageError, match="the cause"):
        run_concurrently([{"a": waits, "a2": unused}, {"b": fails, "b2": unused}], stopped.set)
    assert raised, "all have ended before the error is seen"


def test_whoever_is_interrupted_stops_the_others():
    stopped, seen = threading.Event(), []

    main = threading.main_thread().ident or 0

    def main_waits():
        frame: Any = sys._current_frames()[main]
        while frame and frame.f_code.co_name != "result":
            frame = frame.f_back
        return frame is not None

    def waits():
        deadline = time.monotonic() + SOON
        while not main_waits() and time.monotonic() < deadline:
            time.sleep(0.01)
        signal.pthread_kill(main, signal.SIGINT)
        seen.append(stopped.wait(SOON))

    # Where a shell has started the tests in the background, the signal is ignored.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            run_concurrently([{"a": waits}, {"b": lambda: None}], stopped.set)
    finally:
        signal.signal(signal.SIGINT, before)
    assert seen == [True]


def test_one_line_needs_no_thread():
    here = threading.current_thread()
    found = run_concurrently(
        [{"a": threading.current_thread, "b": threading.current_thread}], unused
    )
    assert found == {"a": here, "b": here}
    assert run_concurrently([], unused) == {}

    def fails():
        raise UsageError("no others")

    with pytest.raises(UsageError, match="no others"):
        run_concurrently([{"a": fails, "b": unused}], unused)
