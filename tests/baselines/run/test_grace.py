"""Signals: the seconds after a first one, and what a live training process says and keeps."""

import os
import re
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from processes import is_running, wait_for

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


PATIENCE = 600.0
AFTER_S = 4.0
"""More than the run's seconds for a step."""


def wait_for_command(what: Callable[[], object], command: Any) -> None:
    """Until `what()` is true; the command must not end before."""
    deadline = time.monotonic() + PATIENCE
    while not what():
        assert command.process.is_alive(), command.err.read_text()
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.02)


def children(pid: int) -> list[int]:
    """Processes that descend from `pid`."""
    try:
        own = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:
        return []
    return [one for child in map(int, own) for one in (child, *children(child))]


def stopped(command: Any, number: int, *, again: bool = False) -> str:
    """What the command says in its last line when it gets the signal; its status is checked."""
    left = children(command.process.pid)
    os.kill(command.process.pid, number)
    if again:
        wait_for_command(lambda: "a second signal" in command.err.read_text(), command)
        time.sleep(AFTER_S)
        os.kill(command.process.pid, number)
    done = command.finish()
    assert done.returncode == 128 + number, done.stderr
    assert "Traceback" not in done.stderr
    assert "Exception ignored" not in done.stderr
    wait_for(lambda: not any(map(is_running, left)), PATIENCE)
    return done.stderr.splitlines()[-1]


@pytest.mark.full
def test_a_run_that_is_stopped_again_and_again_ends_with_the_same_numbers(
    tmp_path, warm, hold_before, small_runs, small_words, repeated_rows
):
    root = tmp_path / "run"
    words = ["flowzoo.cli", *small_words(root, stop_within=2)]

    def start(target):
        held = hold_before(root / target)
        held.unlink(missing_ok=True)
        command = warm(words)
        wait_for_command(held.exists, command)
        return command

    # While it is loading, before there is anything.
    said = stopped(start("run.json"), signal.SIGTERM)
    assert said == f"interrupted: before the first checkpoint; the same command restarts {root}"
    # In the middle of a checkpoint, which a first signal leaves alone.
    said = stopped(start("checkpoints/step-00000002"), signal.SIGINT, again=True)
    assert said == (
        f"interrupted: step 2 of 4 was done; {root} has a checkpoint of step 0, from which the "
        "same command resumes"
    )
    # When the replies of a step are sampled, and then of an evaluation.
    said = stopped(start("transcripts/train-000002.jsonl"), signal.SIGINT)
    assert "step 1 of 4 was done" in said
    said = stopped(start("transcripts/eval-000004.jsonl"), signal.SIGTERM)
    assert re.search(r"step 4 of 4 was done; .* of step 4, from which", said), "after its update"
    # And again, which adds nothing.
    said = stopped(start("transcripts/eval-000004.jsonl"), signal.SIGINT)
    assert re.search(r"step 4 of 4 was done; .* of step 4, from which", said)
    done = warm(words).finish()
    assert done.returncode == 0, done.stderr
    assert f"resuming {root} after step 3" in done.stdout
    assert repeated_rows(root) == repeated_rows(small_runs / "finished")
