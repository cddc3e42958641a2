"""Calls of users' functions: their output goes to stderr, and one that runs long is named."""

from __future__ import annotations

import contextlib
import logging
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

LONG_S = 60.0
"""Seconds after which a call is named, and again after twice, four times... as many."""
_LOOK_S = 1.0
_log = logging.getLogger("flowzoo")


class WatchedCalls:
    """Names calls that run long, from a separate thread, which starts with the first call."""

    def __init__(self) -> None:
        self._open: dict[int, list[tuple[str, float]]] = {}  # by thread, the inner ones last
        self._thread: threading.Thread | None = None

    @contextmanager
    def call(self, name: str) -> Iterator[None]:
        """A call of `name`, until the block ends; what it prints goes to stderr."""
        if self._thread is None or not self._thread.is_alive():  # a fork has no threads
            self._thread = threading.Thread(target=self._watch, name="watched calls", daemon=True)
            self._thread.start()
        calls = self._open.setdefault(threading.get_ident(), [])
        calls.append((name, time.monotonic()))
        with contextlib.ExitStack() as stack:
            stack.callback(calls.pop)
            # In other threads a redirection could outlive the call.
            if threading.current_thread() is threading.main_thread():
                stack.enter_context(contextlib.redirect_stdout(sys.stderr))
            yield

    def _watch(self) -> None:
        due: dict[tuple[str, float], float] = {}
        while True:
            time.sleep(min(_LOOK_S, LONG_S / 4))
            now = time.monotonic()
            calls = [call for of_thread in [*self._open.values()] for call in of_thread[-1:]]
            due = {call: due.get(call, LONG_S) for call in calls}
            for name, start in calls:
                if now - start >= due[name, start]:
                    due[name, start] *= 2
                    _log.warning(
                        "%s has run for %.0f s: if it does not end, press Ctrl-C", name, now - start
                    )


WATCHED = WatchedCalls()
"""Calls of this process."""
