"""Reports of scripts that run long without a yield."""

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from flowzoo.envs.episode.episode import Episode
from flowzoo.envs.workflow import Workflow
from flowzoo.garbage import pause_collection

LONG_S = 10.0  # CPU seconds between two yields after which a script is reported
_LOOK_S = 1.0  # seconds between two samples of the main thread


def running_script(frame: FrameType | None) -> tuple[FrameType, str] | None:
    """The script that runs in a thread whose newest frame is `frame`, or None.

    The first value is the frame that runs the script to its next yield: the same object later means
    no yield in between. The second is the script with its line.
    """
    inner: FrameType | None = None
    while frame is not None:
        if frame.f_code is Episode._advance.__code__:
            if inner is None:
                return None
            code = inner.f_code
            return frame, f"{code.co_qualname}() ({code.co_filename}, line {inner.f_lineno})"
        if frame.f_code is not Workflow.script.__code__:
            inner = frame
        frame = frame.f_back
    return None


def newest_frame(thread: int) -> FrameType | None:
    """The newest frame of a thread; None if it has ended."""
    # Python holds its thread lock in this call. A garbage collection would run callbacks, and a
    # callback that another thread interrupts to start a thread would wait for that lock forever
    # (github.com/python/cpython/issues/106883).
    with pause_collection():
        return sys._current_frames().get(thread)


@contextmanager
def watch(tell: Callable[[str], None], long_s: float = LONG_S) -> Iterator[None]:
    """Report every script that the main thread runs for `long_s` CPU seconds without a yield."""
    # It only reports, since nothing can end such a script safely: another thread cannot stop it,
    # and an exception from a signal could interrupt its `except` clauses and locks. No-op on
    # systems without a clock of a thread's CPU time (macOS, Windows).
    main = threading.main_thread()
    if not hasattr(time, "pthread_getcpuclockid") or threading.current_thread() is not main:
        yield
        return
    over = threading.Event()
    args = (over, tell, long_s, main.ident)
    watcher = threading.Thread(target=_watch, args=args, name="script watchdog", daemon=True)
    watcher.start()
    try:
        yield
    finally:
        over.set()
        watcher.join()


def _watch(over: threading.Event, tell: Callable[[str], None], long_s: float, thread: int) -> None:
    clock = time.pthread_getcpuclockid(thread)
    since, seen, reported = 0.0, None, None
    while not over.wait(min(_LOOK_S, long_s / 4)):
        advance, script = running_script(newest_frame(thread)) or (None, "")
        now = time.clock_gettime(clock)
        if advance is None or advance is not seen:
            since, seen = now, advance
        elif now - since >= long_s and reported is not seen:
            reported = seen
            tell(
                f"note: {script} has run for {now - since:.0f} s without a yield: if its loop is "
                "endless, press Ctrl-C"
            )
