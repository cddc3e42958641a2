"""A bounded waiting line, which knows how long the next would wait."""

import asyncio
import math
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from time import monotonic

from flowzoo.front.refusal import ClientGoneError, RefusalError

_LONGEST_RETRY_S = 600
_WEIGHT = 0.1  # of the latest duration in the mean


class WaitingLine:
    """Slots of work, and the requests that wait for them, in their order."""

    def __init__(self, slots: int, most: int) -> None:
        """Make a line of at most `most` requests that wait for `slots`."""
        self.slots, self.most, self.used = slots, most, 0
        self.waiting: deque[tuple[int, asyncio.Future[None]]] = deque()
        self._mean_s: float | None = None  # of a slot's use

    @property
    def retry_s(self) -> int:
        """Seconds after which a request that is refused now may find a slot, as measured."""
        ahead = self.used + sum(count for count, _ in self.waiting)
        wait = (self._mean_s or 0.0) * ahead / self.slots
        return min(max(1, math.ceil(wait)), _LONGEST_RETRY_S)

    def refusal(self, status: int = 429) -> RefusalError:
        """The error for a request that finds no slot."""
        message = f"{self.used} answers are under way and {len(self.waiting)} requests wait"
        headers = {"Retry-After": str(self.retry_s)}
        return RefusalError(status, "too_many_requests", f"{message}: try again.", headers=headers)

    async def enter(self, count: int, departure: asyncio.Future[None], seconds: float) -> None:
        """Wait for slots, which `leave` gives back.

        Raises:
            RefusalError: the line is full, or no slot came within the time.
            ClientGoneError: `departure` was done before.
        """
        if not self.waiting and self.used + count <= self.slots:
            self.used += count
            return
        if len(self.waiting) >= self.most:
            raise self.refusal()
        entry = count, asyncio.get_running_loop().create_future()
        self.waiting.append(entry)
        try:
            await asyncio.wait(
                (entry[1], departure), timeout=seconds, return_when=asyncio.FIRST_COMPLETED
            )
            if departure.done():
                raise ClientGoneError
            if not entry[1].done():
                raise self.refusal(503)
            entry[1].result()
        except BaseException:
            if entry in self.waiting:
                self.waiting.remove(entry)
            elif not entry[1].cancelled() and entry[1].exception() is None:
                self.used -= count
            self._move()
            raise

    def leave(self, count: int, seconds: float) -> None:
        """Give slots back after `seconds`."""
        self.used -= count
        mean = self._mean_s
        self._mean_s = seconds if mean is None else mean + _WEIGHT * (seconds - mean)
        self._move()

    @asynccontextmanager
    async def slot(self, departure: asyncio.Future[None], seconds: float) -> AsyncIterator[None]:
        """Hold a slot."""
        await self.enter(1, departure, seconds)
        start = monotonic()
        try:
            yield
        finally:
            self.leave(1, monotonic() - start)

    def close(self, error: Exception) -> None:
        """End all waiting with an error."""
        while self.waiting:
            self.waiting.popleft()[1].set_exception(error)

    def _move(self) -> None:
        while self.waiting and self.used + self.waiting[0][0] <= self.slots:
            count, future = self.waiting.popleft()
            self.used += count
            future.set_result(None)
