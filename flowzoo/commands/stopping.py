"""Ctrl-C and SIGTERM: a command ends at once, and says what is kept."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from flowzoo.start import end_at_once

_AGAIN_S = 0.02
"""After how long an interruption comes again that nobody could be told of."""


class StopSignals:
    """While it is entered, both signals raise KeyboardInterrupt in the main thread.

    Also while asyncio runs, whose own handler would wait for a batch of replies to be finished.
    """

    def __init__(self) -> None:
        """Nothing is handled yet."""
        self.number = 0
        """The signal that came first; 0: none."""
        self.quiet = False
        """Whether another process says what is kept."""
        self._before: dict[signal.Signals, Any] = {}
        self._hook = sys.unraisablehook

    def __enter__(self) -> StopSignals:
        """Handle the signals that nobody else handles or has ignored (as `nohup` does)."""
        self.number, self._before = 0, {}
        self._hook = sys.unraisablehook
        if threading.current_thread() is not threading.main_thread():
            return self
        usual = {
            signal.SIGINT: (signal.default_int_handler, end_at_once),
            signal.SIGTERM: (signal.SIG_DFL,),
        }
        for number, handlers in usual.items():
            handler = signal.getsignal(number)
            if handler in handlers:
                # The command's own process does nothing after this but to end.
                self._before[number] = signal.SIG_DFL if handler is end_at_once else handler
                signal.signal(number, self._stop)
        sys.unraisablehook = self._unraisable
        return self

    def __exit__(self, *raised: object) -> None:
        """As it was before; after a signal, the next one ends the process without a word."""
        for number, handler in self._before.items():
            signal.signal(number, signal.SIG_DFL if self.number else handler)
        if self._before:
            sys.unraisablehook = self._hook

    def ignore(self) -> None:
        """Let nothing disturb what is said at the end."""
        for number in self._before:
            signal.signal(number, signal.SIG_IGN)

    @property
    def status(self) -> int:
        """The exit status of a command that was stopped, as shells count it."""
        return 128 + (self.number or signal.SIGINT)

    def _stop(self, number: int, frame: object) -> None:
        self.number = self.number or number
        raise KeyboardInterrupt

    def _unraisable(self, found: Any) -> None:
        """Where it came up in a finalizer, which cannot raise, let it come again a little later."""
        if self.number and issubclass(found.exc_type, KeyboardInterrupt):
            again = threading.Timer(_AGAIN_S, os.kill, (os.getpid(), self.number))
            again.daemon = True
            again.start()
        else:
            self._hook(found)


STOP = StopSignals()
"""Of the command that this process runs."""


@contextmanager
def interruptible(kept: Callable[[], str]) -> Iterator[None]:
    """Notes with an interruption what is kept, and how to go on."""
    try:
        yield
    except BaseException as error:
        # A library may have made another error of it.
        if STOP.number or isinstance(error, KeyboardInterrupt):
            error.add_note(kept())
        raise


def kept_by(error: BaseException | None) -> str:
    """What was noted of an interruption, or of the one that it interrupted."""
    notes: list[str] = []
    while error is not None:
        notes += [note for note in getattr(error, "__notes__", ()) if note not in notes]
        error = error.__context__
    return "; ".join(notes) or "nothing was saved"
