"""Clock for extra checkpoints, so that a crash loses minutes at most.

Saving draws no random number, so its time does not change results.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

SAVE_S = 120.0
"""Seconds after a checkpoint at which the next is due."""
SAVE_SHARE = 0.1
"""Largest share of a run's time for such checkpoints, a limit for large models."""


class SaveClock:
    """The time since the last checkpoint."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        """Start now; `clock` gives seconds."""
        self._clock = clock
        self._saved, self._cost = clock(), 0.0

    @property
    def due(self) -> bool:
        """True if a checkpoint is due."""
        return self._clock() - self._saved >= max(SAVE_S, self._cost / SAVE_SHARE)

    @contextmanager
    def saving(self) -> Iterator[None]:
        """Write a checkpoint within it."""
        began = self._clock()
        yield
        self._saved = self._clock()
        self._cost = self._saved - began
