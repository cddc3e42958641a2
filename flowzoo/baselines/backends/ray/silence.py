"""Workers that neither answer nor die: stopped, swapped out, or with a disk that hangs."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from flowzoo.baselines.backends.ray.cluster import WorkerError, listed

NAMED_AFTER_S = 60.0
"""Least seconds of a shard after which its worker is named in a line."""
GIVEN_UP_AFTER_S = 3600.0
"""Least seconds of a shard after which the run ends."""
FIRST_GIVEN_UP_AFTER_S = 24 * 3600.0
"""The same before any shard was answered, whose length is unknown."""
_NAMED, _GIVEN_UP = 10, 100
"""The same as multiples of the longest shard so far."""
_log = logging.getLogger("flowzoo")


class SilentWorkers:
    """Compares how long workers play their shards with the longest one that was answered."""

    def __init__(self) -> None:
        self._longest = 0.0
        self._told: dict[int, float] = {}

    def take_answer(self, worker: int, seconds: float) -> None:
        """Take note of an answer."""
        self._longest = max(self._longest, seconds)
        self._told.pop(worker, None)

    def look(self, playing: Mapping[int, float]) -> None:
        """Name workers that are late in a line; `playing`: seconds by worker.

        Raises:
            WorkerError: no worker has answered for so long that the run is given up.
        """
        for worker in self._told.keys() - playing.keys():
            del self._told[worker]
        limit = max(GIVEN_UP_AFTER_S, _GIVEN_UP * self._longest)
        if not self._longest:
            limit = FIRST_GIVEN_UP_AFTER_S
        if playing and min(playing.values()) > limit:
            raise WorkerError(
                f"rollout workers {listed(list(playing))} have neither answered nor ended in "
                f"{limit:.0f} s; the last checkpoint is good, and the same command goes on from it"
            )
        first = max(NAMED_AFTER_S, _NAMED * self._longest)
        late = [
            worker for worker, spent in playing.items() if spent > self._told.get(worker, first)
        ]
        for worker in late:
            self._told[worker] = 2 * playing[worker]
        if late:
            longest = f"the longest shard took {self._longest:.0f} s"
            earlier = longest if self._longest else "no shard was answered yet"
            _log.warning(
                "rollout workers %s have not answered for %.0f s (%s): see whether they are "
                "stopped, swapped out or wait for a disk; after %.0f s without any answer the run "
                "ends",
                listed(late), max(playing[worker] for worker in late), earlier, limit,
            )  # fmt: skip
