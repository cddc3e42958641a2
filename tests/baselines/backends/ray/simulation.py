"""A run with Ray in simulated time: episodes whose lengths differ by 20 times.

A step has 4 episodes for each worker, every one a shard; the learner takes half as long for a step
as its workers. Efficiency is the time of all episodes over the number of workers times the time on
the clock. Batch after batch: a batch begins once the one before has ended. By episode: it begins
once its weights are there.
"""

import heapq
import itertools
import math
from collections.abc import Callable
from functools import partial

from flowzoo.baselines.backends.ray.schedule import Schedule, ShardBatch, ShardKey
from flowzoo.seeding import key_rng

SPREAD = 20.0
"""Longest over shortest time of an episode."""
EACH = 4
"""Episodes of a step for each worker."""
LEARNER = 0.5
"""Time of the learner over that of the workers, if they were never idle."""
STEPS = 60


def length(*key: int | str) -> float:
    """Length of an episode, 1 to `SPREAD`; its logarithm is uniform."""
    return SPREAD ** key_rng("length", *key).random()


class Simulation:
    """A run whose workers and learner take simulated time."""

    def __init__(self, workers: int, ahead: int, *, by_episode: bool) -> None:
        self.workers, self.ahead, self.by_episode = workers, ahead, by_episode
        self.schedule: Schedule[float, None] = Schedule(workers)
        self.batches: dict[int, ShardBatch[float, None]] = {}
        self.events: list[tuple[float, int, Callable[[], None]]] = []
        self.order = itertools.count()
        self.now, self.trained, self.learning = 0.0, 0, False
        mean = (SPREAD - 1) / math.log(SPREAD)
        self.learner_seconds = LEARNER * EACH * mean

    def run(self) -> float:
        """Return the efficiency of all steps."""
        self.advance()
        while self.events:
            self.now, _, happen = heapq.heappop(self.events)
            happen()
            self.advance()
        useful = sum(sum(batch.work) for batch in self.batches.values())
        return useful / (self.workers * self.now)

    def after(self, seconds: float, happen: Callable[[], None]) -> None:
        """Let something happen later."""
        heapq.heappush(self.events, (self.now + seconds, next(self.order), happen))

    def advance(self) -> None:
        """Start the batches, the optimizer steps and the episodes that can start now."""
        while len(self.batches) < min(self.trained + 1 + self.ahead, STEPS) and (
            self.by_episode or all(batch.finished for batch in self.batches.values())
        ):
            step = len(self.batches) + 1
            work = [length(step, number) for number in range(EACH * self.workers)]
            self.batches[step] = self.schedule.add(work)
        batch = self.batches.get(self.trained + 1)
        if batch is not None and batch.finished and not self.learning:
            self.schedule.remove(batch)
            self.learning = True
            self.after(self.learner_seconds, self.learned)
        for worker, shard in self.schedule.assign(self.now):
            self.after(shard.batch.work[shard.index], partial(self.end, worker, shard))

    def learned(self) -> None:
        """End an optimizer step."""
        self.learning = False
        self.trained += 1

    def end(self, worker: int, shard: ShardKey) -> None:
        """End an episode."""
        self.schedule.finish(worker, shard, None, self.now)
