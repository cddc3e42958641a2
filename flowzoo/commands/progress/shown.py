"""Progress on stderr: a bar on a terminal, occasional plain lines in a pipe or file."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from flowzoo.agents.evaluation.summary import measure_name

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress

    from flowzoo.envs import EpisodeRecord

STEP_S = 10.0
"""Least seconds between two progress lines."""
QUIET_S = 30.0
"""Seconds without a line after which one is printed without progress."""
FIRST_SHARE = 0.05
"""Fraction of the work after which lines include the estimated time left."""
_LOOK_S = 1.0
"""Seconds between two clock checks; work in the first interval counts as done before."""


def to_stderr(text: str) -> None:
    """Print a line to stderr immediately."""
    print(text, file=sys.stderr, flush=True)


class PlainProgress:
    """Lines of text."""

    def __init__(
        self,
        label: str,
        total: int,
        done: int = 0,
        note: str = "",
        *,
        write: Callable[[str], None] = to_stderr,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._label, self._total, self._done, self._note = label, total, done, note
        self._write, self._clock = write, clock
        self._began = self._last = self._since = self._changed = clock()
        self._first = done
        self._lock = threading.Lock()

    def show(self, done: int, note: str = "") -> None:
        """Set the finished amount."""
        with self._lock:
            now = self._clock()
            if done <= self._first or now - self._began < _LOOK_S:
                self._first, self._since = done, now
            self._done, self._note, self._changed = done, note, now
            if now - self._last >= STEP_S:
                self._print(self._line(now))

    def say(self, text: str) -> None:
        """Print a line."""
        with self._lock:
            self._print(text)

    def beat(self) -> None:
        """Print the progress after a long silence."""
        with self._lock:
            now = self._clock()
            if now - self._last >= QUIET_S:
                waited = f"; the next has taken {as_minutes(now - self._changed)}"
                self._print(self._line(now) + (waited if self._changed > self._began else ""))

    def _line(self, now: float) -> str:
        done, finished = self._done, self._done - self._first
        # Episodes of a batch end together, so the first ones are not representative.
        is_steady = finished > 0 and done >= FIRST_SHARE * self._total
        left = (now - self._since) / finished * (self._total - done) if is_steady else None
        times = times_note(now - self._began, left)
        return ", ".join(filter(None, (f"{self._label} {done}/{self._total}", self._note, times)))

    def _print(self, text: str) -> None:
        self._last = self._clock()
        self._write(text)


class BarProgress:
    """A bar below permanent lines."""

    def __init__(self, progress: Progress, label: str, total: int, done: int, note: str) -> None:
        self._progress = progress
        self._bar = progress.add_task(label, total=total, completed=done, note=note)

    def show(self, done: int, note: str = "") -> None:
        """Set the finished amount."""
        self._progress.update(self._bar, completed=done, note=note)

    def say(self, text: str) -> None:
        """Print a line above the bar."""
        self._progress.console.print(text, soft_wrap=True, markup=False, highlight=False)


@contextmanager
def shown_progress(
    label: str, total: int, done: int = 0, note: str = ""
) -> Iterator[PlainProgress | BarProgress]:
    """Show the progress of a command; see `PlainProgress`. Hanging scripts are also reported."""
    from rich.console import Console

    from flowzoo.envs.episode.watchdog import watch

    console = Console(stderr=True)
    if console.is_terminal and not console.is_dumb_terminal:
        with _bar(console) as progress:
            bar = BarProgress(progress, label, total, done, note)
            with watch(bar.say):
                yield bar
        return
    plain, over = PlainProgress(label, total, done, note), threading.Event()

    def look() -> None:
        while not over.wait(_LOOK_S):
            plain.beat()

    thread = threading.Thread(target=look, name="flowzoo-progress", daemon=True)
    thread.start()
    try:
        with watch(plain.say):
            yield plain
    finally:
        over.set()
        thread.join()


@contextmanager
def episode_progress(total: int, label: str) -> Iterator[Callable[[EpisodeRecord], None]]:
    """Show progress in episodes; yields a callback for finished episodes."""
    score = count = 0.0
    with shown_progress(label, total) as progress:

        def advance(record: EpisodeRecord) -> None:
            nonlocal score, count
            score, count = score + record.score, count + 1
            progress.show(int(count), f"{measure_name(record.pay)} {100 * score / count:.1f} %")

        yield advance


@contextmanager
def step_progress(
    steps: int,
    done: int,
    note_of: Callable[[Mapping[str, Any]], str],
    line_of: Callable[[Mapping[str, Any]], str],
) -> Iterator[Callable[[Mapping[str, Any]], None]]:
    """Show progress in steps; yields a callback for the metrics of each step.

    `done` is the last finished step; -1: before the initial evaluation. `note_of` describes the
    latest step, `line_of` returns a permanent line or an empty string.
    """
    note = "initial evaluation" if done < 0 else ""
    before: float | None = None
    with shown_progress("step", steps, max(0, done), note) as progress:

        def on_step(row: Mapping[str, Any]) -> None:
            nonlocal before
            took = "" if before is None else f"{row['time/total'] - before:.1f} s"
            before = row["time/total"]
            progress.show(row["step"], ", ".join(filter(None, (took, note_of(row)))))
            if line := line_of(row):
                progress.say(line)

        yield on_step


def as_minutes(seconds: float) -> str:
    """Minutes and seconds."""
    minutes, rest = divmod(int(seconds), 60)
    return f"{minutes}:{rest:02d}"


def times_note(elapsed: float | None, left: float | None) -> str:
    """Minutes and seconds of both times, if known and not over."""
    text = as_minutes(elapsed or 0)
    return f"{text}, {as_minutes(left)} left" if left else text


def _bar(console: Console) -> Progress:
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, TextColumn
    from rich.text import Text

    class Times(ProgressColumn):
        """Elapsed time and, before the end, estimated time left."""

        max_refresh = 0.5

        def render(self, task: Any) -> Text:
            return Text(times_note(task.finished_time or task.elapsed, task.time_remaining))

    columns = (
        TextColumn("{task.description}", markup=False),
        MofNCompleteColumn(),
        BarColumn(bar_width=20),
        TextColumn("{task.fields[note]}", markup=False),
        Times(),
    )
    return Progress(*columns, console=console, transient=True)
