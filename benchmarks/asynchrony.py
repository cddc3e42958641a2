"""Efficiency of rollout workers whose replies differ in length by 20 times: batches or episodes.

    python benchmarks/asynchrony.py [simulated] [measured] [--json FILE]

`simulated`: 2 to 64 workers in simulated time, with the schedule of runs with Ray
(`backends.ray.schedule`). A step has 4 episodes for each worker, every one a shard; the learner
takes half as long for a step as its workers. Efficiency is the time of all episodes over the number
of workers times the time on the clock. Batch after batch: a batch begins once the one before has
ended. By episode: it begins once its weights are there.

`measured`: a run of 2 real rollout workers, which wait before every episode as long as an engine
would take, with its last evaluation. Both ways must give equal metrics.
"""

from __future__ import annotations

import argparse
import heapq
import itertools
import json
import math
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

from flowzoo.baselines.backends.backend import RolloutSpec
from flowzoo.baselines.backends.ray.schedule import Schedule, ShardBatch, ShardKey
from flowzoo.baselines.workers.rollout import RunPlayer
from flowzoo.seeding import key_rng

SPREAD = 20.0
"""Longest over shortest time of an episode."""
EACH = 4
"""Episodes of a step for each worker."""
LEARNER = 0.5
"""Time of the learner over that of the workers, if they were never idle."""
STEPS = 60
FLEETS = (2, 4, 8, 16, 32, 64)
AHEAD = (0, 1, 2)
PARTS = ("simulated", "measured")
SHORTEST_S = 0.1
"""Shortest time of an episode of the measured run."""
MEASURED_STEPS = 16
SECONDS = "seconds.jsonl"
"""File of the measured run with the seconds of its episodes."""


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


def simulated() -> list[list[str]]:
    """Rows of efficiencies by number of workers."""
    ways = [(0, False), *itertools.product(AHEAD[1:], (False, True))]
    return [
        [f"{workers} simulated"]
        + [f"{Simulation(workers, ahead, by_episode=way).run():.2f}" for ahead, way in ways]
        for workers in FLEETS
    ]


class WaitingPlayer(RunPlayer):
    """A player that takes as long as an engine whose replies differ in length."""

    def play(self, plan: RolloutSpec, jobs: Any) -> Any:
        """Wait and play, and write down the seconds; evaluations do not wait."""
        if plan.mode == "eval":
            return super().play(plan, jobs)
        began = time.perf_counter()
        time.sleep(SHORTEST_S * length(plan.step, jobs[0].key))
        batch = super().play(plan, jobs)
        seconds = {"shard": [plan.step, jobs[0].key], "seconds": time.perf_counter() - began}
        with (self._config.directory / SECONDS).open("a", encoding="utf-8") as file:
            file.write(json.dumps(seconds) + "\n")
        return batch


def run(address: str, out: Path, ahead: int, *, by_episode: bool) -> tuple[float, list[Any]]:
    """Efficiency of a run of two workers, and its metrics."""
    from harness.runs import metrics

    from flowzoo.baselines.backends.ray import backend
    from flowzoo.baselines.settings.config import TrainConfig
    from flowzoo.baselines.training.build import start_run
    from flowzoo.baselines.training.trainer import Trainer

    config = TrainConfig(
        workflow="voting", model="pocket:xs", problems=4, samples=EACH * 2 // 4, shard_jobs=1,
        eval_problems=2, eval_every=100, checkpoint_every=100, threads=1,
        max_tokens=24, steps=MEASURED_STEPS, max_staleness=ahead, backend="ray",
        ray_address=address, rollout_workers=2, out=str(out),
    )  # fmt: skip
    player = f"{Path(__file__).stem}:{WaitingPlayer.__name__}"
    at_once = 1 + ahead if by_episode else 1
    times: dict[int, float] = {}

    def note(row: dict[str, Any]) -> None:
        times[row["step"]] = time.perf_counter()

    with (
        patch.object(backend, "ROLLOUT_WORKER", player),
        patch.object(TrainConfig, "batches_at_once", at_once),
    ):
        Trainer(start_run(config)).train(note)
    rows = map(json.loads, (out / SECONDS).read_text(encoding="utf-8").splitlines())
    useful = {tuple(row["shard"]): row["seconds"] for row in rows}  # of copies the last counts
    return sum(useful.values()) / (2 * (times[MEASURED_STEPS] - times[0])), metrics(out)


def measured() -> list[list[str]]:
    """Row of a real run of two workers."""
    from ray_cluster import NODE, cluster_of

    row = ["2 real"]
    with cluster_of({**NODE, "num_cpus": 2}) as cluster, tempfile.TemporaryDirectory() as folder:
        row.append(f"{run(cluster.address, Path(folder, '0'), 0, by_episode=False)[0]:.2f}")
        for ahead in AHEAD[1:]:
            ways = {
                way: run(cluster.address, Path(folder, f"{ahead}{way}"), ahead, by_episode=way)
                for way in (False, True)
            }
            if ways[False][1] != ways[True][1]:
                raise AssertionError("the order of episodes has changed a number")
            row += [f"{efficiency:.2f}" for efficiency, _ in ways.values()]
    return [row]


def main() -> None:
    """Measure, print and write."""
    options = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    options.add_argument("parts", nargs="*", metavar="PART", default=PARTS)
    options.add_argument("--json", type=Path)
    given = options.parse_args()
    if "measured" in given.parts:
        from ray_cluster import be_apart

        be_apart()
    rows = [row for part in PARTS if part in given.parts for row in globals()[part]()]
    for row in rows:
        print(" ".join(f"{value:>14s}" for value in row))
    if given.json:
        from harness.record import write_table

        columns = ["workers", "K = 0"] + [
            f"K = {ahead}, {way}" for ahead in AHEAD[1:] for way in ("by batch", "by episode")
        ]
        write_table(given.json, "python benchmarks/asynchrony.py", columns, rows)


if __name__ == "__main__":
    main()
