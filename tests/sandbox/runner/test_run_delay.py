"""Time that programs and their monitor wait for a processor, read from a made-up /proc."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from flowzoo.sandbox.runner.delays import RunDelay

Wait = Callable[[str, float], None]


@pytest.fixture
def proc(tmp_path: Path) -> Iterator[int]:
    descriptor = os.open(tmp_path, os.O_RDONLY | os.O_DIRECTORY)
    yield descriptor
    os.close(descriptor)


@pytest.fixture
def wait(tmp_path: Path) -> Wait:
    """`wait(thread, seconds)`: a thread has waited so long since its start."""

    def write(thread: str, seconds: float) -> None:
        folder = tmp_path / thread
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "schedstat").write_text(f"7 {round(seconds * 1e9)} 3\n")

    return write


def test_what_the_monitor_waited_before_a_program_does_not_count(proc, wait):
    wait("self", 100.0)
    wait("5/task/5", 0.0)
    delay = RunDelay(proc)
    delay.follow(5)
    assert delay.seconds() == 0.0
    wait("self", 100.25)
    wait("5/task/5", 2.0)
    assert delay.seconds() == pytest.approx(2.25)


def test_it_is_counted_anew_after_a_reset(proc, wait):
    wait("self", 1.0)
    delay = RunDelay(proc)
    delay.follow(5)
    wait("self", 3.0)
    wait("5/task/5", 4.0)
    delay.reset()
    assert delay.seconds() == 0.0
    wait("self", 3.5)
    wait("5/task/5", 5.0)
    assert delay.seconds() == pytest.approx(1.5)


def test_of_many_threads_the_one_that_waited_longest_counts(proc, wait):
    wait("self", 0.0)
    delay = RunDelay(proc)
    delay.follow(5)
    for thread in range(8):
        wait(f"5/task/{thread}", thread / 4)
    assert delay.seconds() == pytest.approx(1.75)


def test_it_is_none_without_statistics(proc, wait):
    nothing = RunDelay(None)
    nothing.follow(5)
    nothing.reset()
    unknown = RunDelay(proc)
    wait("self", 1.0)
    unknown.follow(0)
    ended = RunDelay(proc)
    ended.follow(5)
    assert [delay.seconds() for delay in (nothing, unknown, ended)] == [0.0, 0.0, 0.0]
