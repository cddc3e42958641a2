"""Assignment of shards to workers. No I/O and no clock: `pool` carries it out."""

from collections import Counter, deque
from collections.abc import Sequence
from typing import Any, Generic, NamedTuple, TypeVar

W = TypeVar("W")
R = TypeVar("R")


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
        self._longest: dict[int, float] = {}
        """Longest seconds of a shard, by worker."""

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
        self._longest[worker] = max(seconds, self._longest.get(worker, 0.0))

    def is_long(self, worker: int, seconds: float) -> bool:
        """True if a shard takes a worker longer than any shard took another worker."""
        # Not longer than the mean: where lengths spread, copies of long shards would be in the way.
        others = [most for other, most in self._longest.items() if other != worker]
        return bool(others) and seconds > max(others)


class ShardKey(NamedTuple):
    """A shard of a batch under way."""

    batch: ShardBatch[Any, Any]
    index: int


class Assignment(NamedTuple):
    """A worker is to play a shard."""

    worker: int
    shard: ShardKey


class Schedule(Generic[W, R]):
    """The state of playing batches beside each other. Times are seconds of any one clock."""

    # A worker has one shard at a time, so that none must be called off: an actor for which Ray
    # cancels a call before it was sent waits 30 seconds for it, and then drops all other calls.
    # The oldest batch comes first. An idle worker takes a shard of the next batch, and if there is
    # none, plays a copy of a slow one; a shard is a function of its jobs and the weights, so
    # neither order nor copies change a number.

    def __init__(self, workers: int) -> None:
        self._batches: list[ShardBatch[W, R]] = []
        self._began = [0.0] * workers
        """When each worker began with its last shard."""
        self._busy: set[int] = set()
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
        for worker in range(len(self._began)):
            if worker in self._busy or worker in self._resting:
                continue
            shard = self._choose(now)
            if shard is not None:
                self._busy.add(worker)
                self._began[worker] = now
                shard.batch.holders.setdefault(shard.index, set()).add(worker)
                assignments.append(Assignment(worker, shard))
        return assignments

    def finish(self, worker: int, shard: ShardKey, result: R, now: float) -> None:
        """Take an answer for a shard; the first one counts."""
        self._drop(worker, shard)
        batch, index = shard
        if not batch.holds(index):
            batch.put(index, result, worker, now - self._began[worker])
            batch.holders.pop(index, None)

    def give_back(self, worker: int, shard: ShardKey) -> None:
        """Return an unplayed shard to its batch unless another worker has it or it is done."""
        self._drop(worker, shard)
        batch, index = shard
        if index in batch.holders and not batch.holders[index]:
            del batch.holders[index]
            batch.untaken.appendleft(index)

    def is_busy(self, worker: int) -> bool:
        """True if a worker has a shard."""
        return worker in self._busy

    def rest(self, worker: int) -> None:
        """Give a worker nothing until `wake`."""
        self._resting.add(worker)

    def wake(self, worker: int) -> None:
        """A worker can be given shards again."""
        self._resting.discard(worker)

    def _choose(self, now: float) -> ShardKey | None:
        for batch in self._batches:
            if batch.untaken:
                return ShardKey(batch, batch.untaken.popleft())
        for batch in self._batches:
            for index, holders in batch.holders.items():
                if len(holders) == 1:
                    (holder,) = holders
                    if batch.is_long(holder, now - self._began[holder]):
                        return ShardKey(batch, index)
        return None

    def _drop(self, worker: int, shard: ShardKey) -> None:
        self._busy.discard(worker)
        shard.batch.holders.get(shard.index, set()).discard(worker)
