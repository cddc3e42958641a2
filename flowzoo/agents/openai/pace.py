"""Limits of requests and tokens per minute."""

from __future__ import annotations

from collections import deque

_SPAN = 60.0
"""Seconds."""


class Pace:
    """Requests and tokens of the last minute, and the time at which more may be sent.

    In no span of a minute are there more requests, or more tokens, than the limits. A request of
    more tokens than the limit is sent alone.
    """

    def __init__(self, requests: int, tokens: int) -> None:
        """Set the limits; 0: none."""
        self._most, self._most_tokens = requests, tokens
        self._sent: deque[list[float]] = deque()  # time and tokens of each request

    def delay(self, now: float, tokens: int) -> float:
        """Seconds until a request of `tokens` may be sent; 0: it may be sent `now`."""
        while self._sent and self._sent[0][0] <= now - _SPAN:
            self._sent.popleft()
        ends = float("-inf")
        if self._most and len(self._sent) >= self._most:
            ends = self._sent[-self._most][0]
        if self._most_tokens:
            total = tokens + sum(count for _, count in self._sent)
            for start, count in self._sent:
                if total <= self._most_tokens:
                    break
                total -= count
                ends = max(ends, start)
        return max(0.0, ends + _SPAN - now)

    def send(self, now: float, tokens: int) -> list[float]:
        """Count a request; its entry [time, tokens] takes the real number of tokens later."""
        entry = [now, float(tokens)]
        if self._most or self._most_tokens:
            self._sent.append(entry)
        return entry
