"""The first signal of a run: it has some seconds to end its step, and makes a checkpoint."""

import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from flowzoo.errors import FlowzooError


class StepDroppedError(FlowzooError, RuntimeError):
    """A step was dropped, since the time that a signal left is over."""

    reported_elsewhere = True


class StopGrace:
    """Seconds between the first signal and the end; a second signal ends the run at once."""

    def __init__(self) -> None:
        self.seconds = 0.0
        """Seconds that a signal leaves; 0: none, as outside a run."""
        self.asked = False
        """True after the first signal."""
        self.over = False
        """True once the seconds are over, so that the step is dropped."""
        self._until = 0.0
        self._due = False
        self._number = 0
        self._timer: threading.Timer | None = None
        self._timing = threading.Lock()
        self._held = 0
        self._paused = False

    @contextmanager
    def grant(self, seconds: float, *, ranks: bool = False) -> Iterator[None]:
        """Leave `seconds` for signals that come in the block.

        With `ranks` their end raises only where `allow` lets it, since the other ranks go on.
        """
        self.seconds, self.asked, self.over = seconds, False, False
        self._held = int(ranks)
        try:
            yield
        finally:
            self.finish()
            self._held = 0

    @contextmanager
    def hold(self) -> Iterator[None]:
        """Let the end of the time raise nothing in the block, in which other ranks answer."""
        self._held += 1
        try:
            yield
        finally:
            self._held -= 1

    @contextmanager
    def allow(self) -> Iterator[None]:
        """Let the end of the time raise in the block, whose failure all ranks learn."""
        self._held -= 1
        try:
            yield
        finally:
            self._held += 1

    @contextmanager
    def pause(self) -> Iterator[None]:
        """Stop the clock in the block, which takes as long as it takes."""
        self._paused = True
        self._cancel()
        self.over = False
        try:
            yield
        finally:
            self._paused = False
            if self.asked and self.seconds:
                self._start()

    def interrupts(self, number: int) -> bool:
        """True if a signal that has come ends what is being done; called by its handler."""
        held = self._held > 0 or self._paused
        if self._due or (self.over and not held):
            self._due = False  # after the end of the step it says nothing
            return self.seconds > 0 and not held
        if self.asked or not self.seconds:
            self.over = False  # a second signal: nothing more is saved
            return True
        self.asked, self._number = True, number
        if not self._paused:
            self._start()
        return False

    def is_short(self, needed: float) -> bool:
        """True if a signal has come and less than `needed` seconds are left."""
        return self.asked and self._until - time.monotonic() < needed

    def finish(self) -> None:
        """Stop the clock: the step has ended, or was dropped."""
        self._cancel()
        self.seconds, self.over = 0.0, False

    def _start(self) -> None:
        self._until = time.monotonic() + self.seconds
        self._timer = threading.Timer(self.seconds, self._end)
        self._timer.daemon = True
        self._timer.start()

    def _cancel(self) -> None:
        with self._timing:  # an end under way comes before
            if self._timer is not None:
                self._timer.cancel()
            self._timer = None

    def _end(self) -> None:
        with self._timing:
            if threading.current_thread() is self._timer:
                self.over = self._due = True
                os.kill(os.getpid(), self._number)


GRACE = StopGrace()
"""Grace of this process."""
