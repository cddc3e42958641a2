"""A limit on the CPU time of somebody's function, which then ends and is named."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

_LOOK_S = 0.1


class _OverLimitError(BaseException):
    """Raised into the function; no `except Exception` of its own keeps it."""


@contextmanager
def time_limit(subject: str, seconds: float) -> Iterator[None]:
    """Interrupt the block when the main thread has spent `seconds` of CPU time in it.

    The clock is the thread's own, so neither a busy machine nor other threads bring the end nearer.
    Regular expressions are interrupted, too: Python's `re` looks for signals while it matches.
    There is no limit outside the main thread and where there are no such timers (Windows).

    Args:
        subject: what runs, for the message.
        seconds: the limit.

    Raises:
        AssertionError: it was over the limit.
    """
    main = threading.current_thread() is threading.main_thread()
    if not main or not hasattr(signal, "setitimer"):
        yield
        return
    start, over = time.thread_time(), False

    def look(number: int, frame: object) -> None:
        nonlocal over
        if time.thread_time() - start > seconds:
            over = True
            raise _OverLimitError

    before = signal.signal(signal.SIGVTALRM, look)
    signal.setitimer(signal.ITIMER_VIRTUAL, _LOOK_S, _LOOK_S)
    try:
        yield
    except _OverLimitError:
        pass
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)
    if over:
        raise AssertionError(f"{subject} takes more than {seconds:g} s of CPU time")
