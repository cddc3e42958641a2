"""The seconds after a first signal: where they end a step, and where they do not count."""

import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from flowzoo.commands.progress.stopping import StopSignals
from flowzoo.grace import GRACE, StepDroppedError


@contextmanager
def signals() -> Iterator[StopSignals]:
    """The command's handlers, and then those from before."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        with StopSignals() as stop:
            yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def test_in_a_pause_the_first_signal_only_asks():
    with signals() as stop, GRACE.grant(0.1):
        with GRACE.pause():
            signal.raise_signal(signal.SIGTERM)
            time.sleep(0.5)
            assert GRACE.asked
            assert not GRACE.over
            assert not stop.raised
        with pytest.raises(KeyboardInterrupt):
            time.sleep(30)
        assert GRACE.over


def test_a_pause_stops_the_clock_and_a_second_signal_ends_it():
    with signals(), GRACE.grant(0.2):
        signal.raise_signal(signal.SIGINT)
        with GRACE.pause():
            time.sleep(0.6)
            with pytest.raises(KeyboardInterrupt):
                signal.raise_signal(signal.SIGINT)


def test_of_ranks_the_seconds_end_only_what_all_hear_of():
    with signals(), GRACE.grant(0.1, ranks=True):
        signal.raise_signal(signal.SIGINT)
        time.sleep(0.5)
        assert GRACE.over
    with signals(), GRACE.grant(0.1, ranks=True):
        signal.raise_signal(signal.SIGINT)
        with pytest.raises(KeyboardInterrupt), GRACE.allow():
            time.sleep(30)
        assert GRACE.over
    with signals(), GRACE.grant(0.1, ranks=True):
        for _ in range(2):  # the second one ends it although nothing is allowed
            late = GRACE.over
            with pytest.raises(KeyboardInterrupt) if late else GRACE.hold():
                signal.raise_signal(signal.SIGINT)
                time.sleep(0.5)
        assert not GRACE.over


def test_a_message_that_nobody_reads_stops_no_checkpoint(monkeypatch):
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w") as pipe:
        monkeypatch.setattr(sys, "stderr", pipe)
        with signals(), GRACE.grant(60):
            signal.raise_signal(signal.SIGINT)
            assert GRACE.asked


def test_only_what_comes_of_an_interruption_counts_as_one():
    stop = StopSignals()
    stop.number = signal.SIGINT
    assert not stop.has_ended(OSError("full"))
    assert stop.has_ended(KeyboardInterrupt())
    dropped = StepDroppedError()
    dropped.__context__ = KeyboardInterrupt()
    assert stop.has_ended(dropped)
