"""Progress without a terminal: which lines are printed when, on a clock of the tests' own."""

import re
from collections.abc import Callable

import pytest

from flowzoo.cli import main
from flowzoo.commands.progress import shown
from flowzoo.commands.progress.shown import QUIET_S, PlainProgress, times_note


class Clock:
    """Seconds that pass when they are told to."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def lines() -> list[str]:
    return []


@pytest.fixture
def plain(clock: Clock, lines: list[str]) -> Callable[..., PlainProgress]:
    """`plain(total, done, note)`: progress in steps that writes into `lines`."""

    def make(total: int, done: int = 0, note: str = "") -> PlainProgress:
        return PlainProgress("step", total, done, note, write=lines.append, clock=clock)

    return make


def test_long_steps_have_a_line_each_and_short_ones_no_flood(clock, lines, plain):
    slow = plain(4)
    for step in range(1, 5):
        clock.now += 72
        slow.show(step, "reward 0.33, 18 tok/s")
    assert lines == [
        "step 1/4, reward 0.33, 18 tok/s, 1:12, 3:36 left",
        "step 2/4, reward 0.33, 18 tok/s, 2:24, 2:24 left",
        "step 3/4, reward 0.33, 18 tok/s, 3:36, 1:12 left",
        "step 4/4, reward 0.33, 18 tok/s, 4:48",
    ]
    lines.clear()
    quick = plain(1000)
    for step in range(1, 1001):
        clock.now += 0.1
        quick.show(step)
    assert len(lines) in (9, 10)


def test_a_long_silence_is_broken(clock, lines, plain):
    progress = plain(10, note="initial evaluation")
    for _ in range(65):
        clock.now += 1
        progress.beat()
    assert lines == [f"step 0/10, initial evaluation, 0:{int(QUIET_S)}",
                     "step 0/10, initial evaluation, 1:00"]  # fmt: skip
    progress.show(0)
    progress.say("step    0  held-out accuracy 4.0 %")
    clock.now += QUIET_S
    progress.beat()
    assert lines[2:] == [
        "step    0  held-out accuracy 4.0 %", "step 0/10, 1:35; the next has taken 0:30"
    ]  # fmt: skip


def test_what_is_left_does_not_count_what_was_there_before(clock, lines, plain):
    # A resumed evaluation is told of its finished episodes at once.
    progress = plain(100)
    for done in range(1, 91):
        progress.show(done)
    clock.now += 60
    progress.show(91)
    assert lines == ["step 91/100, 1:00, 9:00 left"]
    # Nor does the evaluation of the start: a run that begins, and one that goes on at step 40.
    lines.clear()
    for first in (0, 40):
        run = plain(first + 10, first)
        clock.now += 600 * (first == 0)
        run.show(first)
        clock.now += 20
        run.show(first + 1)
    assert [line.split(", ")[-1] for line in lines if "left" in line] == ["3:00 left"] * 2


def test_times():
    assert [times_note(*both) for both in ((0, None), (61.9, 0), (5, 3600.0))] == [
        "0:00", "1:01", "0:05, 60:00 left"
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("args", "line"),
    [
        ("eval single --policy scripted:0.5 --n 6",
         r"evaluating 6/6, accuracy \d+\.\d %, 0:\d\d"),
        ("train single --steps 2 --problems 2 --eval-problems 2",
         r"step 2/2, \d+\.\d s, reward \d\.\d\d, [\d,]+ tok/s, 0:\d\d"),
        ("sft single --n 8 --epochs 1 --batch 4 --eval-problems 2",
         r"step 2/2, \d+\.\d s, loss \d+\.\d{3}, 0:\d\d"),
    ],
)  # fmt: skip
def test_commands_print_lines_where_stderr_is_no_terminal(
    args, line, tmp_path, monkeypatch, capsys
):
    if not args.startswith("eval"):
        pytest.importorskip("torch", reason="the trainer needs flowzoo[train]")
    monkeypatch.setattr(shown, "STEP_S", 0.0)
    assert main([*args.split(), "--out", str(tmp_path)]) == 0
    printed = capsys.readouterr().err.splitlines()
    assert any(re.fullmatch(line, item) for item in printed), printed
