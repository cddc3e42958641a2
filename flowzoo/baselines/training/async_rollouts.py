"""Rollouts up to `max_staleness` steps ahead of the learners.

With K the batch of step t is sampled from the weights after step t-1-K (the first K+1 batches from
the starting weights) while the learners take the steps before it, off-policy, as in section 4 of
arXiv 2410.18252.
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
from flowzoo.baselines.advantages.compute import RunningMean
from flowzoo.baselines.backends.backend import RunBackend
from flowzoo.baselines.backends.rollout_spec import RolloutSpec
from flowzoo.baselines.engines.hf import Engines
from flowzoo.baselines.training.evaluation import (
    sample_jobs,
    sample_once,
    sample_shards,
)
from flowzoo.baselines.training.filters import FilteredBatch

# Part of a checkpoint, so that a continued run trains on the same rows.
FILE = "ahead.json"
"""File of a checkpoint with the batches that were sampled ahead."""

PlayStep = Callable[[RolloutSpec, Sampler, Sequence[EpisodeJob]], RolloutBatch]
"""Plays jobs of a step with a sampler, which the plan describes to other processes."""

Draw = Callable[[int, PlayStep, RunningMean], FilteredBatch]
"""Draws the problems of a step and plays them with the given function; the running means are from
before the step that is being trained, and stay unchanged."""


class SampledStep(NamedTuple):
    """Batch of a step."""

    step: int
    gathered: FilteredBatch
    versions: Mapping[str, int]
    """Optimizer steps behind the weights that sampled, by policy."""
    seconds: float
    """Seconds of sampling."""


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
        self._draw, self._engines = draw, engines
        self._shards = partial(sample_shards, backend, shard_jobs)
        self._stream, self._means, self._versions = stream, means, versions
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="flowzoo-ahead")
        self._under_way: deque[Future[SampledStep]] = deque()
        self._cursor = 0
        """Cursor of the stream before the batch that is being sampled."""
        self.ready: deque[SampledStep] = deque()
        """Finished batches of the next steps."""

    def take(self, step: int) -> SampledStep:
        """Return the batch of `step`: the one that was sampled ahead, or a new one."""
        self.wait()
        if self.ready:
            return self.ready.popleft()
        return self._sample(step, sample_jobs, self._versions(), self._means)

    def run_ahead(self, step: int, last: int) -> None:
        """Start the batches after `step`, up to `last`, unless already started."""
        # The present weights are the newest that these may have. The pacing alone decides which
        # weights sample which step, not the speed of either side, so runs repeat.
        for later in range(step + 1 + len(self.ready) + len(self._under_way), last + 1):
            self.start(later)

    def start(self, step: int) -> None:
        """Queue the batch of `step`, with the present weights."""
        # A dead engine is raised here: the thread must not restart engines beside the learner.
        given = sample_once, self._versions(), self._means.copy()
        self._under_way.append(self._thread.submit(self._sample, step, *given))

    def wait(self) -> None:
        """Wait for the next step's batch, if it was started."""
        # One batch at most is under way for engines that idle between two steps.
        while self._under_way and not self.ready:
            self._collect()

    def settle(self) -> None:
        """Wait for all batches that were started; raises what `wait` does."""
        while self._under_way:
            self._collect()

    def close(self) -> None:
        """End the thread; close the engines first, so that it does not wait for them."""
        self._thread.shutdown(cancel_futures=True)

    def _collect(self) -> None:
        try:
            self.ready.append(self._under_way.popleft().result())
        # Dropped, and sampled when its step comes, from the weights of that time.
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

        def play(plan: RolloutSpec, sampler: Sampler, jobs: Sequence[EpisodeJob]) -> RolloutBatch:
            versioned = replace(plan, versions=versions)
            return self._shards(partial(play_with, self._engines), versioned, sampler, jobs)

        gathered = self._draw(step, play, means)
        return SampledStep(step, gathered, versions, time.perf_counter() - began)


def to_text(batches: Iterable[SampledStep]) -> str:
    """Encode batches as JSON, without rounding."""
    return json.dumps([_to_json(batch) for batch in batches])


def read(folder: Path) -> list[SampledStep]:
    """Read the batches of the checkpoint in `folder`, in the order of their steps."""
    file = folder / FILE
    if not file.is_file():
        return []
    return [_from_json(row) for row in json.loads(file.read_text(encoding="utf-8"))]


def _to_json(sampled: SampledStep) -> dict[str, Any]:
    batch = sampled.gathered.sampled
    places = {
        id(call): [number, index]
        for number, record in enumerate(batch.records)
        for index, call in enumerate(record.calls)
    }
    return {
        "step": sampled.step,
        "versions": dict(sampled.versions),
        "seconds": sampled.seconds,
        "kept": sorted(sampled.gathered.trained_jobs),
        "counts": sampled.gathered.counts,
        "records": [record.to_json() for record in batch.records],
        # Most rows are calls of the records; a tree's other candidates are not.
        "rows": [places.get(id(call)) or call.to_json() for call in batch.rows],
        "value_calls": batch.value_calls,
        "value_tokens": batch.value_tokens,
    }


def _from_json(data: Mapping[str, Any]) -> SampledStep:
    records = [record_from_json(row) for row in data["records"]]
    rows = [
        records[row[0]].calls[row[1]] if isinstance(row, list) else call_from_json(row)
        for row in data["rows"]
    ]
    batch = RolloutBatch(records, rows, data["value_calls"], data["value_tokens"])
    gathered = FilteredBatch(batch, frozenset(data["kept"]), data["counts"])
    return SampledStep(data["step"], gathered, data["versions"], data["seconds"])
