"""The first signal of a run: it has some seconds to end its step, and makes a checkpoint."""

from __future__ import annotations

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
        self._timer: threading.Timer | None = None
        self._held = 0

    @contextmanager
    def grant(self, seconds: float) -> Iterator[None]:
        """Leave `seconds` for signals that come in the block."""
        self.seconds, self.asked, self.over = seconds, False, False
        try:
            yield
        finally:
            self.finish()

    @contextmanager
    def hold(self) -> Iterator[None]:
        """Let the end of the time raise nothing in the block, in which other ranks answer."""
        self._held += 1
        try:
            yield
        finally:
            self._held -= 1

    def interrupts(self, number: int) -> bool:
        """True if a signal that has come ends what is being done; called by its handler."""
        if self._due or self.over:
            self._due = False  # after the end of the step it says nothing
            return not self._held and self.seconds > 0
        if self.asked or not self.seconds:
            self.over = False  # a second signal: nothing more is saved
            return True
        self.asked, self._until = True, time.monotonic() + self.seconds
        self._timer = threading.Timer(self.seconds, self._end, (number,))
        self._timer.daemon = True
        self._timer.start()
        return False

    def is_short(self, needed: float) -> bool:
        """True if a signal has come and less than `needed` seconds are left."""
        return self.asked and self._until - time.monotonic() < needed

    def finish(self) -> None:
        """Stop the clock: the step has ended, or was dropped."""
        if self._timer is not None:
            self._timer.cancel()
        self.seconds, self.over = 0.0, False

    def _end(self, number: int) -> None:
        self.over = self._due = True
        os.kill(os.getpid(), number)


GRACE = StopGrace()
"""Grace of this process."""
