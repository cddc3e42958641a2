"""The batches of a run, sampled when their step comes or up to K steps before it.

With `max_staleness` K the batch of step t is sampled from the weights after step t-1-K (the first
K+1 batches from those of the start) while the learners take the steps before it (off-policy, as in
section 4 of arXiv 2410.18252): engines in processes of their own work beside them. A batch is begun
when the weights that it needs are there, and batches are sampled one after another, each with one
version of the weights. So which weights play which step follows from the pacing and not from who is
faster, and runs repeat. With K = 1 sampling and learning wait for one another at every step; with
more a slow step of the one is made up for by quick ones of the other. What was sampled ahead is
part of a checkpoint: a run that goes on trains on the very same rows.

A batch whose engine dies meanwhile is dropped. It is sampled when its step comes, from the weights
of then: that step has a staleness of 0 and other numbers than it would have had. Rollout workers do
not come to that: what one loses is played again, with the same weights.
"""

from __future__ import annotations

import json
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from flowzoo.agents.evaluation.evaluate import call_from_json, record_from_json
from flowzoo.agents.problems import ProblemStream
from flowzoo.agents.rollout.episodes import EpisodeJob, RolloutBatch, Sampler
from flowzoo.agents.vllm.backend import EngineDeadError
from flowzoo.baselines.advantages.running import RunningMean
from flowzoo.baselines.backends.backend import RunBackend
from flowzoo.baselines.backends.plays import PlayPlan
from flowzoo.baselines.engines.hf import Engines
from flowzoo.baselines.training.evaluation import (
    sample_jobs,
    sample_once,
    sample_shards,
)
from flowzoo.baselines.training.filters import FilteredBatch

FILE = "ahead.json"
"""Of a checkpoint: the batches of the next steps, where some were sampled ahead."""

PlayStep = Callable[[PlayPlan, Sampler, Sequence[EpisodeJob]], RolloutBatch]
"""Plays jobs of a step with a sampler, which the plan says to other processes."""

Draw = Callable[[int, PlayStep, RunningMean], FilteredBatch]
"""Draws the problems of a step and plays them with what it is given; the running means are those
from before the step that is being learnt, and stay as they are."""


class SampledStep(NamedTuple):
    """What a step is trained on."""

    step: int
    gathered: FilteredBatch
    versions: Mapping[str, int]
    """Policy -> optimiser steps behind the weights that sampled."""
    seconds: float
    """That sampling took."""


class StepSampler:
    """Samples a step's batch when it is asked for, or some steps ahead in a thread."""

    def __init__(
        self,
        draw: Draw,
        engines: Engines,
        stream: ProblemStream,
        means: RunningMean,
        versions: Callable[[], dict[str, int]],
        backend: RunBackend,
        shard_jobs: int,
    ) -> None:
        """Sample nothing yet.

        Args:
            draw: draws and plays a step; its problems come from `stream`.
            engines: what samples.
            stream: whose cursor goes back where a batch is dropped.
            means: what `draw` may judge a batch by, as they are when the batch is begun.
            versions: policy -> optimiser steps so far.
            backend: where shards are played.
            shard_jobs: episodes of a shard; 0: all.
        """
        self._draw, self._engines = draw, engines
        self._shards = partial(sample_shards, backend, shard_jobs)
        self._stream, self._means, self._versions = stream, means, versions
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="flowzoo-ahead")
        self._under_way: deque[Future[SampledStep]] = deque()
        self._cursor = 0
        """Where the stream was before the batch that is being sampled."""
        self.ready: deque[SampledStep] = deque()
        """The next steps' batches, of those that were sampled ahead."""

    def take(self, step: int) -> SampledStep:
        """The batch of `step`: the one that was sampled ahead, or a new one.

        An engine that dies meanwhile is started again and the batch repeated.
        """
        self.wait()
        if self.ready:
            return self.ready.popleft()
        return self._sample(step, sample_jobs, self._versions(), self._means)

    def run_ahead(self, step: int, last: int) -> None:
        """Begin the batches after that of `step`, up to that of `last`, as far as they are not.

        With the weights that there are now, which are the newest that they may have.
        """
        for later in range(step + 1 + len(self.ready) + len(self._under_way), last + 1):
            self.start(later)

    def start(self, step: int) -> None:
        """Begin to sample `step` with the weights that there are now, after what was begun."""
        given = sample_once, self._versions(), self._means.copy()
        self._under_way.append(self._thread.submit(self._sample, step, *given))

    def wait(self) -> None:
        """Wait until the next step's batch is there, if it was begun.

        Where engines are idle between two steps only one is begun at a time, and they are then.

        Raises:
            EngineDeadError: an engine died and cannot be started again.
            Exception: whatever else sampling raised.
        """
        while self._under_way and not self.ready:
            self._collect()

    def settle(self) -> None:
        """Wait until all that was begun is there; raises what `wait` does."""
        while self._under_way:
            self._collect()

    def close(self) -> None:
        """End the thread; close the engines before, so that it has nothing to wait for."""
        self._thread.shutdown(cancel_futures=True)

    def _collect(self) -> None:
        """Wait for the first batch that is under way, and keep it."""
        try:
            self.ready.append(self._under_way.popleft().result())
        except EngineDeadError as error:
            self._stream.cursor = self._cursor
            self._engines.recover(error)

    def _sample(
        self,
        step: int,
        play_with: Callable[[Engines, Sampler, Sequence[EpisodeJob]], RolloutBatch],
        versions: Mapping[str, int],
        means: RunningMean,
    ) -> SampledStep:
        began, self._cursor = time.perf_counter(), self._stream.cursor

        def play(plan: PlayPlan, sampler: Sampler, jobs: Sequence[EpisodeJob]) -> RolloutBatch:
            exactly = replace(plan, versions=versions)
            return self._shards(partial(play_with, self._engines), exactly, sampler, jobs)

        gathered = self._draw(step, play, means)
        return SampledStep(step, gathered, versions, time.perf_counter() - began)


def to_text(batches: Iterable[SampledStep]) -> str:
    """Batches as JSON, numbers exactly as they are."""
    return json.dumps([_to_json(one) for one in batches])


def read(folder: Path) -> list[SampledStep]:
    """The batches that the checkpoint in `folder` was saved with, in the order of their steps."""
    file = folder / FILE
    if not file.is_file():
        return []
    return [_from_json(row) for row in json.loads(file.read_text(encoding="utf-8"))]


def _to_json(sampled: SampledStep) -> dict[str, Any]:
    batch = sampled.gathered.sampled
    places = {
        id(call): [number, place]
        for number, record in enumerate(batch.records)
        for place, call in enumerate(record.calls)
    }
    return {
        "step": sampled.step,
        "versions": dict(sampled.versions),
        "seconds": sampled.seconds,
        "kept": sorted(sampled.gathered.kept),
        "counts": sampled.gathered.counts,
        "records": [record.to_json() for record in batch.records],
        # Most rows are calls of the records; a tree's other candidates are not.
        "rows": [places.get(id(call)) or call.to_json() for call in batch.rows],
        "value_calls": batch.value_calls,
        "value_tokens": batch.value_tokens,
    }


def _from_json(found: Mapping[str, Any]) -> SampledStep:
    records = [record_from_json(row) for row in found["records"]]
    rows = [
        records[row[0]].calls[row[1]] if isinstance(row, list) else call_from_json(row)
        for row in found["rows"]
    ]
    batch = RolloutBatch(records, rows, found["value_calls"], found["value_tokens"])
    gathered = FilteredBatch(batch, frozenset(found["kept"]), found["counts"])
    return SampledStep(found["step"], gathered, found["versions"], found["seconds"])
