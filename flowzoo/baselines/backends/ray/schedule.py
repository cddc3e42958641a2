"""Assignment of shards to workers. No I/O and no clock: `pool` carries it out."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Generic, NamedTuple, TypeVar

W = TypeVar("W")
R = TypeVar("R")

DEPTH = 2  # shards of a worker: the one it plays, and the next
LONG = 2.0  # times the mean of the others, from which on a shard is played a second time


class Assignment(NamedTuple, Generic[W]):
    """A worker is to play the shard at a place."""

    worker: int
    index: int
    work: W


class Schedule(Generic[W, R]):
    """The state of playing `work`, results in its order. Times are seconds of any one clock."""

    # A worker has at most two shards, so that it need not wait for the driver between them. A
    # worker without shards takes one that waits behind another, or plays a copy of a slow one; a
    # shard is a function of its jobs and the weights, so copies are equal and change no number.

    def __init__(self, work: Iterable[W], workers: int) -> None:
        self._more: Iterator[tuple[int, W]] | None = enumerate(work)
        self._window = 2 * DEPTH * workers
        self._open: dict[int, W] = {}
        self._holders: dict[int, set[int]] = {}
        self._queues: list[list[int]] = [[] for _ in range(workers)]
        """Shards of every worker, in its order."""
        self._began = [0.0] * workers
        """When each began with the first of its queue."""
        self._resting: set[int] = set()
        self._done: dict[int, R] = {}
        self._next, self._count, self._seconds = 0, 0, 0.0

    @property
    def finished(self) -> bool:
        """True if every result has been handed out."""
        return self._more is None and not self._open and not self._done

    def assign(self, now: float) -> list[Assignment[W]]:
        """Assignments to start now; they count as started."""
        assignments: list[Assignment[W]] = []
        for depth in range(DEPTH):
            for worker, queue in enumerate(self._queues):
                if len(queue) != depth or worker in self._resting:
                    continue
                index = self._untaken()
                if index is None and depth == 0:
                    index = self._second(worker, now)
                if index is not None:
                    if not queue:
                        self._began[worker] = now
                    queue.append(index)
                    self._holders[index].add(worker)
                    assignments.append(Assignment(worker, index, self._open[index]))
        return assignments

    def finish(self, worker: int, index: int, result: R, now: float) -> set[int]:
        """Take the first answer for a shard; return the workers whose copy is redundant now."""
        if index not in self._open:
            self._drop(worker, index, now)
            return set()
        self._count, self._seconds = self._count + 1, self._seconds + now - self._began[worker]
        self._drop(worker, index, now)
        del self._open[index]
        self._done[index] = result
        return self._holders.pop(index)

    def give_back(self, worker: int, index: int, now: float) -> None:
        """Return an unplayed shard to the queue unless it is already done."""
        self._drop(worker, index, now)

    def rest(self, worker: int) -> None:
        """Give a worker nothing until `wake`."""
        self._resting.add(worker)

    def wake(self, worker: int) -> None:
        """A worker can be given shards again."""
        self._resting.discard(worker)

    def ready(self) -> Iterator[R]:
        """The results that are next in order; each once."""
        while self._next in self._done:
            self._next += 1
            yield self._done.pop(self._next - 1)

    def _untaken(self) -> int | None:
        # returned ones before new ones
        for index, holders in self._holders.items():
            if not holders:
                return index
        if self._more is None or len(self._open) + len(self._done) >= self._window:
            return None
        item = next(self._more, None)
        if item is None:
            self._more = None
            return None
        self._open[item[0]], self._holders[item[0]] = item[1], set()
        return item[0]

    def _second(self, worker: int, now: float) -> int | None:
        # A shard that one other worker has and has not begun with, or is slow with.
        slow = None
        for index, holders in self._holders.items():
            if len(holders) != 1 or worker in holders:
                continue
            (holder,) = holders
            if self._queues[holder][0] != index:
                return index
            long = self._count and now - self._began[holder] > LONG * self._seconds / self._count
            slow = index if slow is None and long else slow
        return slow

    def _drop(self, worker: int, index: int, now: float) -> None:
        queue = self._queues[worker]
        if index in queue:
            if queue[0] == index:
                self._began[worker] = now
            queue.remove(index)
        if index in self._holders:
            self._holders[index].discard(worker)
