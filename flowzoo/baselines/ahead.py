"""The batches of a run, sampled when their step comes or while the step before it learns.

With `max_staleness` 1 the batch of step t+1 is sampled from the weights after step t-1 while the
learners take step t (one-step off-policy, as in section 4 of arXiv 2410.18252): an engine in
processes of its own works beside them. Which weights play which step follows from the pacing and
not from who is faster, so runs repeat; no batch mixes weights, since an engine gets new ones
between two batches only. What was sampled ahead is part of a checkpoint: a run that goes on trains
on the very same rows.

A batch whose engine dies meanwhile is dropped. It is sampled when its step comes, from the weights
of then: that step has a staleness of 0 and other numbers than it would have had.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from flowzoo.agents.evaluation.evaluate import call_from_json, record_from_json
from flowzoo.agents.problems import ProblemStream
from flowzoo.agents.rollout.episodes import EpisodeJob, RolloutBatch, Sampler
from flowzoo.agents.vllm.backend import EngineDeadError
from flowzoo.baselines.backends.backend import RunBackend
from flowzoo.baselines.backends.plays import PlayPlan
from flowzoo.baselines.engines.evaluation import (
    sample_jobs,
    sample_once,
    sample_shards,
)
from flowzoo.baselines.engines.hf import Engines
from flowzoo.baselines.problems.filters import FilteredBatch

FILE = "ahead.json"
"""Of a checkpoint: the batch of the next step, where it was sampled ahead."""

PlayStep = Callable[[PlayPlan, Sampler, Sequence[EpisodeJob]], RolloutBatch]
"""Plays jobs of a step with a sampler, which the plan says to other processes."""

Draw = Callable[[int, PlayStep], FilteredBatch]
"""Draws the problems of a step and plays them with what it is given."""


class SampledStep(NamedTuple):
    """What a step is trained on."""

    step: int
    gathered: FilteredBatch
    versions: Mapping[str, int]
    """Policy -> optimiser steps behind the weights that sampled."""
    seconds: float
    """That sampling took."""


class StepSampler:
    """Samples a step's batch when it is asked for, or one step ahead in a thread."""

    def __init__(
        self,
        draw: Draw,
        engines: Engines,
        stream: ProblemStream,
        versions: Callable[[], dict[str, int]],
        backend: RunBackend,
        shard_jobs: int,
    ) -> None:
        """Sample nothing yet.

        Args:
            draw: draws and plays a step; its problems come from `stream`.
            engines: what samples.
            stream: whose cursor goes back where a batch is dropped.
            versions: policy -> optimiser steps so far.
            backend: where shards are played.
            shard_jobs: episodes of a shard; 0: all.
        """
        self._draw, self._engines = draw, engines
        self._shards = partial(sample_shards, backend, shard_jobs)
        self._stream, self._versions = stream, versions
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="flowzoo-ahead")
        self._under_way: Future[SampledStep] | None = None
        self._cursor = 0
        self.ready: SampledStep | None = None
        """The next step's batch, where it was sampled ahead."""

    def take(self, step: int) -> SampledStep:
        """The batch of `step`: the one that was sampled ahead, or a new one.

        An engine that dies meanwhile is started again and the batch repeated.
        """
        ready, self.ready = self.ready, None
        if ready is not None:
            return ready
        play = partial(self._shards, partial(sample_jobs, self._engines))
        return self._sample(step, play, self._versions())

    def start(self, step: int) -> None:
        """Begin to sample `step` with the weights that the engines have; `wait` must follow."""
        self._cursor = self._stream.cursor
        play, versions = (
            partial(self._shards, partial(sample_once, self._engines)), self._versions()
        )  # fmt: skip
        self._under_way = self._thread.submit(self._sample, step, play, versions)

    def wait(self) -> None:
        """Wait until the engines are idle, and keep what was sampled ahead.

        Raises:
            EngineDeadError: an engine died and cannot be started again.
            Exception: whatever else sampling raised.
        """
        under_way, self._under_way = self._under_way, None
        if under_way is None:
            return
        try:
            self.ready = under_way.result()
        except EngineDeadError as error:
            self._stream.cursor = self._cursor
            self._engines.recover(error)

    def close(self) -> None:
        """End the thread; close the engines before, so that it has nothing to wait for."""
        self._thread.shutdown(cancel_futures=True)

    def _sample(self, step: int, play: PlayStep, versions: Mapping[str, int]) -> SampledStep:
        began = time.perf_counter()
        gathered = self._draw(step, play)
        return SampledStep(step, gathered, versions, time.perf_counter() - began)


def to_text(sampled: SampledStep) -> str:
    """A batch as JSON, numbers exactly as they are."""
    batch = sampled.gathered.sampled
    places = {
        id(call): [number, place]
        for number, record in enumerate(batch.records)
        for place, call in enumerate(record.calls)
    }
    return json.dumps(
        {
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
    )


def read(folder: Path) -> SampledStep | None:
    """The batch that the checkpoint in `folder` was saved with, if any."""
    file = folder / FILE
    if not file.is_file():
        return None
    found: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    records = [record_from_json(row) for row in found["records"]]
    rows = [
        records[row[0]].calls[row[1]] if isinstance(row, list) else call_from_json(row)
        for row in found["rows"]
    ]
    batch = RolloutBatch(records, rows, found["value_calls"], found["value_tokens"])
    gathered = FilteredBatch(batch, frozenset(found["kept"]), found["counts"])
    return SampledStep(found["step"], gathered, found["versions"], found["seconds"])
