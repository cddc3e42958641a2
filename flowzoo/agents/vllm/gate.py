"""A gate that keeps requests and changes of an engine's weights apart."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import Future
from contextlib import asynccontextmanager, contextmanager


class WeightsGate:
    """Admits requests of any event loop while open; closed, it waits until none is under way.

    Requests that come while it is closed wait until it opens, so that every reply has one version
    of the weights, and the next turn of the same episode may have a newer one.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._closed = False
        self._under_way = 0
        self._waiting: list[Future[None]] = []

    @asynccontextmanager
    async def request(self) -> AsyncIterator[None]:
        """Hold off changes of the weights inside; entering waits for one that goes on."""
        while (opening := self._enter()) is not None:
            await asyncio.wrap_future(opening)
        try:
            yield
        finally:
            with self._changed:
                self._under_way -= 1
                self._changed.notify_all()

    @contextmanager
    def closed(self, within_s: float) -> Iterator[bool]:
        """Let no request begin inside; true if none is under way after `within_s` seconds."""
        with self._changed:
            self._closed = True
            done = self._changed.wait_for(lambda: not self._under_way, within_s)
        try:
            yield done
        finally:
            with self._changed:
                self._closed = False
                waiting, self._waiting = self._waiting, []
            for opening in waiting:
                # A cancelled request does not wait any more.
                if opening.set_running_or_notify_cancel():
                    opening.set_result(None)

    def _enter(self) -> Future[None] | None:
        with self._changed:
            if not self._closed:
                self._under_way += 1
                return None
            opening: Future[None] = Future()
            self._waiting.append(opening)
            return opening
