"""Batches of steps: their problems, and rollouts up to `max_staleness` steps ahead of the learners.

With K the batch of step t is sampled from the weights after step t-1-K (the first K+1 batches from
the starting weights) while the learners take the steps before it, off-policy, as in section 4 of
arXiv 2410.18252. Rollout workers play several batches beside each other, each with its
weights: one that has nothing left to do of batch t begins with t+1, while the longest
episodes of t are still played. In runs that are not deterministic a split engine gets new weights
in the middle of a batch, between the turns of its episodes, and plays two batches beside each
other (AReaL, arXiv 2505.24298, interrupts replies, too). No reply is more than K steps old when it
is trained on.
"""

import json
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import replace
from functools import partial
from pathlib import Path
from threading import Event
from typing import NamedTuple

from flowzoo.agents.evaluation.evaluate import call_from_json, record_from_json
from flowzoo.agents.problems import ProblemStream
from flowzoo.agents.rollout.episodes import EpisodeJob, RolloutBatch, Sampler
from flowzoo.agents.vllm.backend import EngineDeadError
from flowzoo.aliases import DataRecord
from flowzoo.baselines.advantages.compute import RunningMean
from flowzoo.baselines.backends.backend import RolloutSpec, RunBackend, policies_of
from flowzoo.baselines.engines.hf import Engines
from flowzoo.baselines.training.advantage_computer import FilteredBatch, gather, informative_jobs
from flowzoo.baselines.training.evaluation import sample_jobs, sample_once, sample_shards
from flowzoo.baselines.training.factories import make_sampler
from flowzoo.baselines.training.plan import RunPlan
from flowzoo.envs import Call, Workflow
from flowzoo.seeding import key_int

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
    """Optimizer steps behind the oldest weights that sampled, by policy."""
    seconds: float
    """Seconds of sampling."""


class StepDraws:
    """Draws the problems of steps and plays them."""

    def __init__(
        self, plan: RunPlan, engines: Engines, stream: ProblemStream, failures: Path
    ) -> None:
        self._plan, self._engines, self._stream = plan, engines, stream
        self._failures = failures

    def draw(self, step: int, play: PlayStep, means: RunningMean) -> FilteredBatch:
        """Draw the problems of `step` and play them with `play`; `means` stay unchanged."""
        plan, config = self._plan, self._plan.config
        workflow = plan.curriculum.at(step)
        sampler = self.sampler(workflow, key_int("train", config.seed, step))
        spec = RolloutSpec("train", policies_of(sampler.policy_map), step)
        return gather(
            self._stream,
            workflow.task,
            lambda jobs: play(spec, sampler, jobs),
            refills=config.refill,
            problems=config.problems,
            samples=plan.samples,
            informative=lambda sampled: self.informative(sampled, means),
        )

    def informative(self, sampled: RolloutBatch, means: RunningMean) -> set[str]:
        """Keys of the jobs that some policy would learn from; `means` stay unchanged."""
        values = self._plan.compute_advantages(sampled, means.copy()).values
        return informative_jobs(sampled.rows, values, self._plan.learners)

    def sampler(self, workflow: Workflow, seed: int) -> Sampler:
        """Make the sampler of training episodes; `seed` is part of every request's key."""
        plan = self._plan
        policy_map = plan.make_policy_map(self._engines.train_policies, plan.budgets)
        return make_sampler(
            plan.config, plan.algorithm, workflow, policy_map, seed=seed, failures=self._failures,
        )  # fmt: skip


class StepSampler:
    """Samples a step's batch when it is asked for, or some steps ahead in threads."""

    def __init__(
        self,
        draw: Draw,
        engines: Engines,
        stream: ProblemStream,
        means: RunningMean,
        versions: Callable[[], dict[str, int]],
        backend: RunBackend,
        shard_jobs: int,
        *,
        at_once: int = 1,
        in_flight: bool = False,
    ) -> None:
        """Make a sampler that plays up to `at_once` batches beside each other.

        With `in_flight` the weights may change while batches are under way.
        """
        self._draw, self._engines, self._in_flight = draw, engines, in_flight
        self.lone = at_once == 1
        """True if batches are played one after another."""
        self.independent = at_once > 1 and not in_flight
        """True if batches are played beside each other, each with its weights."""
        self._shards = partial(sample_shards, backend, shard_jobs)
        self._stream, self._means, self._versions = stream, means, versions
        self._threads = ThreadPoolExecutor(at_once, thread_name_prefix="flowzoo-ahead")
        self._under_way: deque[Future[SampledStep]] = deque()
        self._drawn = Event()
        """Set once the batch that was started last has drawn its first problems."""
        self._drawn.set()
        self._begun: dict[int, int] = {}
        """Cursor of the stream before a batch that is not collected yet, by step."""
        self.ready: deque[SampledStep] = deque()
        """Finished batches of the next steps."""

    def take(self, step: int) -> SampledStep:
        """Return the batch of `step`: the one that was sampled ahead, or a new one."""
        self.wait()
        if self.ready:
            return self.ready.popleft()
        batch = self._sample(step, sample_jobs, self._versions(), self._means, self._drawn, Event())
        del self._begun[step]
        return batch

    def run_ahead(self, step: int, last: int) -> None:
        """Start the batches after `step`, the last that was trained, up to `last`."""
        # Called after every step, so the pacing alone decides which weights sample which step, not
        # the speed of either side, and runs repeat.
        for later in range(step + 1 + len(self.ready) + len(self._under_way), last + 1):
            self.start(later)

    def start(self, step: int) -> None:
        """Queue the batch of `step`, with the present weights."""
        # A dead engine is raised there: threads must not restart engines beside the learner.
        before, self._drawn = self._drawn, Event()
        given = sample_once, self._versions(), self._means.copy(), before, self._drawn
        batch = self._threads.submit(self._sample, step, *given)
        # Also when it fails or is cancelled, so that none waits for it forever.
        batch.add_done_callback(lambda _, drawn=self._drawn: drawn.set())
        self._under_way.append(batch)

    def wait(self) -> None:
        """Wait for the next step's batch, if it was started."""
        while self._under_way and not self.ready:
            self._collect()

    def settle(self) -> None:
        """Wait for all batches that were started; raises what `wait` does."""
        while self._under_way:
            self._collect()

    def close(self) -> None:
        """End the threads; close the engines first, so that they do not wait for them."""
        self._threads.shutdown(cancel_futures=True)

    def _collect(self) -> None:
        try:
            batch = self._under_way.popleft().result()
        except EngineDeadError as error:
            self._drop()
            self._engines.recover(error)
        else:
            del self._begun[batch.step]
            self.ready.append(batch)

    def _drop(self) -> None:
        # What is under way is sampled when its step comes, from the weights of that time: the
        # stream goes back, so the batches after a lost one are dropped with it.
        for batch in self._under_way:
            batch.cancel()
        wait(self._under_way)
        self._under_way.clear()
        self._stream.cursor = min(self._begun.values())
        self._begun.clear()

    def _sample(
        self,
        step: int,
        play_with: Callable[[Engines, Sampler, Sequence[EpisodeJob]], RolloutBatch],
        versions: Mapping[str, int],
        means: RunningMean,
        before: Event,
        drawn: Event,
    ) -> SampledStep:
        before.wait()  # steps draw their problems in order
        began, self._begun[step] = time.perf_counter(), self._stream.cursor

        def play(plan: RolloutSpec, sampler: Sampler, jobs: Sequence[EpisodeJob]) -> RolloutBatch:
            drawn.set()
            versioned = replace(plan, versions=versions)
            return self._shards(partial(play_with, self._engines), versioned, sampler, jobs)

        gathered = self._draw(step, play, means)
        if self._in_flight:
            versions = oldest(gathered.sampled.rows, versions)
        return SampledStep(step, gathered, versions, time.perf_counter() - began)


def oldest(rows: Iterable[Call], otherwise: Mapping[str, int]) -> dict[str, int]:
    """Optimizer steps behind the oldest weights of `rows`, by policy of `otherwise`."""
    versions: dict[str, list[int]] = {}
    for row in rows:
        if row.version is not None:
            versions.setdefault(row.policy, []).append(row.version)
    return {name: min(versions.get(name, [steps])) for name, steps in otherwise.items()}


def to_text(batches: Iterable[SampledStep]) -> str:
    """Encode batches as JSON, without rounding."""
    return json.dumps([_to_json(batch) for batch in batches])


def read(folder: Path) -> list[SampledStep]:
    """Read the batches of the checkpoint in `folder`, in the order of their steps."""
    file = folder / FILE
    if not file.is_file():
        return []
    return [_from_json(row) for row in json.loads(file.read_text(encoding="utf-8"))]


def _to_json(sampled: SampledStep) -> dict[str, object]:
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
        "failed": batch.failed,
    }


def _from_json(data: DataRecord) -> SampledStep:
    records = [record_from_json(row) for row in data["records"]]
    rows = [
        records[row[0]].calls[row[1]] if isinstance(row, list) else call_from_json(row)
        for row in data["rows"]
    ]
    counts = (data[name] for name in ("value_calls", "value_tokens", "failed"))
    batch = RolloutBatch(records, rows, *counts)
    gathered = FilteredBatch(batch, frozenset(data["kept"]), data["counts"])
    return SampledStep(data["step"], gathered, data["versions"], data["seconds"])
