"""Assignment of shards to workers. No I/O and no clock: `pool` carries it out."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator, Sequence
from typing import Any, Generic, NamedTuple, TypeVar

W = TypeVar("W")
R = TypeVar("R")

DEPTH = 2  # shards of a worker: the one it plays, and the next


class ShardBatch(Generic[W, R]):
    """Shards that are played with the same weights, and their results."""

    def __init__(self, work: Sequence[W]) -> None:
        self.work = work
        self.untaken = deque(range(len(work)))
        """Shards that no worker has, in the order in which they are given out."""
        self.holders: dict[int, set[int]] = {}
        """Workers that have a shard without a result, by shard."""
        self.losses: Counter[int] = Counter()
        """Number of times that a shard was lost with its worker, by shard."""
        self.error: Exception | None = None
        """Error that ends the batch."""
        self._results: dict[int, R] = {}
        self._longest: list[tuple[float, int]] = []
        """Longest seconds of a shard of the two slowest workers, and these workers."""

    @property
    def finished(self) -> bool:
        """True if every shard has a result."""
        return len(self._results) == len(self.work)

    @property
    def results(self) -> list[R]:
        """Results in the order of the shards."""
        return [self._results[index] for index in range(len(self.work))]

    def holds(self, index: int) -> bool:
        """True if there is a result of the shard `index`."""
        return index in self._results

    def put(self, index: int, result: R, worker: int, seconds: float) -> None:
        """Take the result of a shard and the seconds that it took a worker."""
        self._results[index] = result
        longest = {other: most for most, other in self._longest}
        longest[worker] = max(seconds, longest.get(worker, 0.0))
        pairs = sorted(((most, other) for other, most in longest.items()), reverse=True)
        self._longest = pairs[:2]

    def is_long(self, worker: int, seconds: float) -> bool:
        """True if a shard takes a worker longer than any shard took another worker."""
        # Not longer than the mean: where lengths spread, copies of long shards would be in the way.
        others = [most for most, other in self._longest if other != worker]
        return bool(others) and seconds > others[0]


class ShardKey(NamedTuple):
    """A shard of a batch under way."""

    batch: ShardBatch[Any, Any]
    index: int


class Assignment(NamedTuple):
    """A worker is to play a shard, maybe in place of another that has not begun with it."""

    worker: int
    shard: ShardKey
    instead_of: int | None = None


class Schedule(Generic[W, R]):
    """The state of playing batches beside each other. Times are seconds of any one clock."""

    # A worker has at most two shards, so that it need not wait for the driver between them. The
    # oldest batch comes first. A worker without shards takes one that waits behind another, then
    # one of the next batch, and if there is none, plays a copy of a slow one; a shard is a function
    # of its jobs and the weights, so neither order nor copies change a number.

    def __init__(self, workers: int) -> None:
        self._batches: list[ShardBatch[W, R]] = []
        self._queues: list[list[ShardKey]] = [[] for _ in range(workers)]
        """Shards of every worker, in its order."""
        self._began = [0.0] * workers
        """When each began with the first of its queue."""
        self._resting: set[int] = set()

    def add(self, work: Sequence[W]) -> ShardBatch[W, R]:
        """Append a batch."""
        self._batches.append(ShardBatch(work))
        return self._batches[-1]

    def remove(self, batch: ShardBatch[W, R]) -> None:
        """Give out no more shards of `batch`."""
        self._batches.remove(batch)

    def assign(self, now: float) -> list[Assignment]:
        """Assignments to start now; they count as started."""
        assignments: list[Assignment] = []
        for depth in range(DEPTH):
            for worker, queue in enumerate(self._queues):
                if len(queue) != depth or worker in self._resting:
                    continue
                assignment = self._choose(worker, now)
                if assignment is not None:
                    if not queue:
                        self._began[worker] = now
                    queue.append(assignment.shard)
                    batch, index = assignment.shard
                    batch.holders.setdefault(index, set()).add(worker)
                    assignments.append(assignment)
        return assignments

    def finish(self, worker: int, shard: ShardKey, result: R, now: float) -> set[int]:
        """Take the first answer for a shard; return the workers whose copy is redundant now."""
        seconds = now - self._began[worker]
        self._drop(worker, shard, now)
        batch, index = shard
        if batch.holds(index):
            return set()
        batch.put(index, result, worker, seconds)
        return batch.holders.pop(index, set())

    def give_back(self, worker: int, shard: ShardKey, now: float) -> None:
        """Return an unplayed shard to its batch unless another worker has it or it is done."""
        self._drop(worker, shard, now)
        batch, index = shard
        if index in batch.holders and not batch.holders[index]:
            del batch.holders[index]
            batch.untaken.appendleft(index)

    def rest(self, worker: int) -> None:
        """Give a worker nothing until `wake`."""
        self._resting.add(worker)

    def wake(self, worker: int) -> None:
        """A worker can be given shards again."""
        self._resting.discard(worker)

    def _choose(self, worker: int, now: float) -> Assignment | None:
        idle = not self._queues[worker]
        for batch in self._batches:
            if batch.untaken:
                return Assignment(worker, ShardKey(batch, batch.untaken.popleft()))
            for shard, holder in self._single(worker, batch) if idle else ():
                if self._queues[holder][0] != shard:  # not begun
                    self._drop(holder, shard, now)
                    return Assignment(worker, shard, holder)
        for batch in self._batches if idle else ():
            for shard, holder in self._single(worker, batch):
                if batch.is_long(holder, now - self._began[holder]):
                    return Assignment(worker, shard)
        return None

    def _single(self, worker: int, batch: ShardBatch[W, R]) -> Iterator[tuple[ShardKey, int]]:
        """Shards that one other worker has, and that worker."""
        for index, holders in batch.holders.items():
            if len(holders) == 1 and worker not in holders:
                yield ShardKey(batch, index), next(iter(holders))

    def _drop(self, worker: int, shard: ShardKey, now: float) -> None:
        queue = self._queues[worker]
        if shard in queue:
            if queue[0] == shard:
                self._began[worker] = now
            queue.remove(shard)
            shard.batch.holders.get(shard.index, set()).discard(worker)
