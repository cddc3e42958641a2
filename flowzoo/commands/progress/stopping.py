"""Ctrl-C and SIGTERM: end a command, a run after a checkpoint, and print what is saved."""

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from flowzoo.grace import GRACE
from flowzoo.start import end_at_once

_AGAIN_S = 0.02
"""Seconds until an interruption that a finalizer suppressed is raised again."""


class StopSignals:
    """Context manager in which both signals raise KeyboardInterrupt in the main thread.

    In a run the first one leaves it some seconds; see `flowzoo.grace`.
    """

    # Also while asyncio runs, whose handler would wait for a batch of replies.

    def __init__(self) -> None:
        self.number = 0
        """First signal that was received; 0: none."""
        self.raised = False
        """True once a signal has raised an interruption."""
        self.quiet = False
        """True if another process prints what is saved."""
        self._before: dict[signal.Signals, Any] = {}
        self._hook = sys.unraisablehook

    def __enter__(self) -> "StopSignals":
        self.number, self.raised, self._before = 0, False, {}
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
                # The command's process only ends after this.
                self._before[number] = signal.SIG_DFL if handler is end_at_once else handler
                signal.signal(number, self._stop)
        sys.unraisablehook = self._unraisable
        return self

    def __exit__(self, *raised: object) -> None:
        # After a signal, the next one ends the process silently.
        for number, handler in self._before.items():
            signal.signal(number, signal.SIG_DFL if self.number else handler)
        if self._before:
            sys.unraisablehook = self._hook

    def ignore(self) -> None:
        """Ignore signals while the last message is printed."""
        for number in self._before:
            signal.signal(number, signal.SIG_IGN)

    def has_ended(self, error: BaseException | None) -> bool:
        """True if `error` is an interruption, or comes of one."""
        while error is not None and not self.raised:
            if isinstance(error, KeyboardInterrupt):
                return True
            error = error.__context__
        return self.raised

    @property
    def status(self) -> int:
        """Exit status of a stopped command by shell conventions."""
        return 128 + (self.number or signal.SIGINT)

    def _stop(self, number: int, frame: object) -> None:
        first, self.number = not self.number, self.number or number
        if GRACE.interrupts(number):
            self.raised = True
            raise KeyboardInterrupt
        if first and not self.quiet:  # not through Python's stream, which may be in use
            with suppress(OSError):  # a pipe whose reader got the signal, too
                os.write(sys.stderr.fileno(), _asked_line(number).encode())

    def _unraisable(self, unraisable: Any) -> None:
        # A finalizer cannot raise, so its interruption is raised a little later.
        if self.number and issubclass(unraisable.exc_type, KeyboardInterrupt):
            again = threading.Timer(_AGAIN_S, os.kill, (os.getpid(), self.number))
            again.daemon = True
            again.start()
        else:
            self._hook(unraisable)


def _asked_line(number: int) -> str:
    return (
        f"\n{signal.Signals(number).name}: the run ends with a checkpoint, after this step or in "
        f"{GRACE.seconds:g} s (--stop-within); a second signal ends it at once\n"
    )


STOP = StopSignals()
"""Signal handler of this process's command."""


@contextmanager
def interruptible(note: Callable[[], str], *errors: type[BaseException]) -> Iterator[None]:
    """Add a note on saved files and resuming to an interruption or one of `errors`."""
    try:
        yield
    except BaseException as error:
        # A library may have replaced the interruption by another error.
        if STOP.number or isinstance(error, (KeyboardInterrupt, *errors)):
            error.add_note(note())
        raise


def kept_by(error: BaseException | None) -> str:
    """Notes of an interruption and of errors that it interrupted."""
    notes: list[str] = []
    while error is not None:
        notes += [note for note in getattr(error, "__notes__", ()) if note not in notes]
        error = error.__context__
    return "; ".join(notes) or "nothing was saved"
