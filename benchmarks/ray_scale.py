"""What the driver of a run with Ray costs: 64 engines that take their time, and 10^6 episodes.

    python benchmarks/ray_scale.py [engines] [episodes] [--json FILE]

`engines`: 64 rollout workers, each a process, play one step of `voting`. Their episodes are real
ones of a scripted policy, whose replies have as many tokens as a model's; each shard takes 4 to 12
seconds more, as an engine would. Efficiency is that time over 64 times the time on the clock, and
CPU of the driver is that of its whole process.

`episodes`: steps of 4,096 episodes until there were a million. Workers answer with one shard that
they have played before. New weights are published and proved before every step. Of the driver's
resident memory, what is Ray's object store, which is shared and of a fixed size, is told apart.

Both go through `RayRunBackend`, as a run does: plan, shards, pool, schedule, placement group,
versions; only the player in the workers is another.
"""

from __future__ import annotations

import argparse
import gc
import itertools
import json
import os
import statistics
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from harness.record import write_table
from ray_cluster import NODE, be_apart, cluster_of

from flowzoo.agents import PolicyMap
from flowzoo.agents.policy import Completion, Request
from flowzoo.agents.problems import ProblemStream
from flowzoo.agents.rollout.episodes import EpisodeJob, Rollout, RolloutBatch, concat_batches
from flowzoo.agents.scripted import ScriptedPolicy
from flowzoo.baselines.backends.backend import RolloutSpec, Shard, cut_shards, policies_of
from flowzoo.envs.api.registry import make_workflow
from flowzoo.seeding import key_rng

SHARD_JOBS = 16
SAMPLES = 16
TOKENS = 128
"""Of a reply."""
ENGINES = 64
SHARDS_EACH = 16
SECONDS = (4.0, 12.0)
"""That a shard takes an engine."""
WORKERS = 4
STEP = 4096
"""Episodes of a step where memory is looked at."""
MIB = 2**20
PARTS = ("engines", "episodes")


class TokenPolicy(ScriptedPolicy):
    """A scripted policy whose replies have tokens."""

    async def generate(self, requests: Sequence[Request]) -> list[Completion]:
        """See `Policy`."""
        return [
            replace(
                one,
                prompt_ids=list(range(1000, 1000 + TOKENS)),
                output_ids=list(range(2000, 2000 + TOKENS)),
                logps=[-0.1 - number / 997 for number in range(TOKENS)],
            )
            for one in await super().generate(requests)
        ]


def seconds_of(jobs: Sequence[EpisodeJob]) -> float:
    """How long an engine takes for a shard."""
    return key_rng("engine", jobs[0].key).uniform(*SECONDS)


class SimulatedPlayer:
    """Plays without a model; see `ShardPlayer`."""

    def __init__(self, waits: bool) -> None:
        """Take as long as an engine, or send the first shard again and again."""
        self._waits, self._kept = waits, dict[int, RolloutBatch]()
        self.workflow = make_workflow("voting")
        self.policy_map = PolicyMap(
            dict.fromkeys(self.workflow.roles, TokenPolicy(self.workflow, 0.7))
        )

    def play(self, plan: RolloutSpec, jobs: Sequence[EpisodeJob]) -> RolloutBatch:
        """See `ShardPlayer`."""
        if not self._waits and len(jobs) in self._kept:
            return self._kept[len(jobs)]
        if self._waits:
            time.sleep(seconds_of(jobs))
        self._kept[len(jobs)] = Rollout(self.workflow, self.policy_map, seed=plan.step).sample(jobs)
        return self._kept[len(jobs)]

    def load(self, policy: str, version: int, weights: bytes) -> Any:
        """See `ShardPlayer`."""
        from flowzoo.baselines.backends.ray.weights import digest, distinct, from_file
        from flowzoo.baselines.backends.ray.worker import Loaded

        return Loaded(digest(distinct(from_file(weights))), version)

    def lost(self) -> Sequence[str]:
        """See `ShardPlayer`."""
        return ()

    def probes(self) -> Mapping[str, Sequence[Any]]:
        """See `ShardPlayer`."""
        return {}

    def grading(self) -> Mapping[str, Any]:
        """See `ShardPlayer`."""
        return self.workflow.grading()


def open_backend(address: str, workers: int, waits: bool, out: str) -> Any:
    """The backend of a run whose workers have this player."""
    from flowzoo.baselines.backends.ray.backend import RayRunBackend
    from flowzoo.baselines.backends.ray.worker import OpenPlayer
    from flowzoo.baselines.settings.config import TrainConfig

    config = TrainConfig(
        workflow="voting", backend="ray", ray_address=address, rollout_workers=workers, threads=1,
        shard_jobs=SHARD_JOBS, engine_dtype="float32", out=out,
    )  # fmt: skip
    return RayRunBackend(config, OpenPlayer(f"{Path(__file__).stem}:SimulatedPlayer", (waits,)))


def steps_of(size: int) -> Iterator[tuple[RolloutSpec, list[Shard]]]:
    """One step after another."""
    workflow = make_workflow("voting")
    players = policies_of(PolicyMap(dict.fromkeys(workflow.roles, TokenPolicy(workflow))))
    stream = ProblemStream("train", 0)
    for step in itertools.count(1):
        problems = stream.take(workflow.task, size // SAMPLES)
        jobs = [EpisodeJob(problem, sample) for problem in problems for sample in range(SAMPLES)]
        yield RolloutSpec("train", players, step), cut_shards(jobs, SHARD_JOBS)


def not_here(shard: Shard) -> RolloutBatch:
    """What a backend without workers would be given."""
    raise AssertionError(f"shard {shard.number} is to be played by a worker")


def engines(address: str, out: str) -> list[list[str]]:
    """Rows about one step of many engines."""
    backend = open_backend(address, ENGINES, True, out)
    try:
        backend.publish({})
        plan, shards = next(steps_of(ENGINES * SHARDS_EACH * SHARD_JOBS))
        useful = sum(seconds_of(shard.jobs) for shard in shards)
        cpu, began = time.process_time(), time.perf_counter()
        found = concat_batches(backend.play(plan, shards, not_here))
        wall, cpu = time.perf_counter() - began, time.process_time() - cpu
    finally:
        backend.close()
    if [record.episode for record in found.records] != [
        job.key for shard in shards for job in shard.jobs
    ]:
        raise AssertionError("episodes are missing, or not in their order")
    replies = len(found.rows)
    efficiency = useful / (ENGINES * wall)
    return [
        ["simulated engines, each a rollout worker", f"{ENGINES}"],
        ["episodes, replies of a step", f"{len(found.records):,}, {replies:,}"],
        ["a shard takes an engine", f"{SECONDS[0]:g} to {SECONDS[1]:g} s"],
        ["the step, on the clock", f"{wall:.1f} s"],
        ["efficiency", f"{efficiency:.3f}"],
        ["CPU of the driver per reply", f"{cpu / replies * 1e6:.0f} µs"],
    ]


def resident() -> tuple[float, float]:
    """Memory of this process, and how much of it is shared, in MiB."""
    said = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return tuple(int(said[name].split()[0]) / 1024 for name in ("VmRSS", "RssShmem"))  # type: ignore[return-value]  # two names


def learner_of_tiny() -> Any:
    """A learner of 1 MiB of weights."""
    from transformers import Qwen3Config, Qwen3ForCausalLM

    from flowzoo.baselines.learner.config import LearnerConfig
    from flowzoo.baselines.learner.update import Learner
    from flowzoo.baselines.learner.weights import Weights

    config = Qwen3Config(
        vocab_size=512, hidden_size=128, num_hidden_layers=1, num_attention_heads=2,
        num_key_value_heads=1, head_dim=32, intermediate_size=256, tie_word_embeddings=True,
    )  # fmt: skip
    return Learner(Weights(Qwen3ForCausalLM(config).eval()), LearnerConfig())


def episodes(address: str, out: str, most: int, minutes: float) -> list[list[str]]:
    """Rows about memory."""
    backend, learner = open_backend(address, WORKERS, False, out), learner_of_tiny()
    points: list[tuple[int, float, float]] = []
    played, replies, sent = 0, 0, 0.0
    cpu, began = time.process_time(), time.perf_counter()
    try:
        for plan, shards in steps_of(STEP):
            learner.steps = plan.step
            sent += backend.publish({"policy": learner})["perf/published_mib"]
            found = concat_batches(backend.play(plan, shards, not_here))
            played, replies = played + len(found.records), replies + len(found.rows)
            del found
            if plan.step == 3 or played >= len(points) * most / 10:
                gc.collect()
                rss, shared = resident()
                points.append((played, rss - shared, shared))
                print(f"{played:9,d} episodes: {rss - shared:6.1f} MiB, object store {shared:.1f}")
            if played >= most or time.perf_counter() - began > 60 * minutes:
                break
    finally:
        wall, cpu = time.perf_counter() - began, time.process_time() - cpu
        backend.close()
    own = [mib for _, mib, _ in points]
    late = own[len(own) // 2 :]
    return [
        ["episodes, replies in steps of 4,096", f"{played:,}, {replies:,}"],
        ["took, with 4 workers", f"{wall / 60:.1f} minutes"],
        ["weights published in the course of it", f"{sent:,.0f} MiB"],
        ["CPU of the driver per reply, with publishing", f"{cpu / replies * 1e6:.0f} µs"],
        [
            "driver's memory after 1, 3 and all steps",
            f"{own[0]:.0f}, {own[1]:.0f}, {own[-1]:.0f} MiB",
        ],
        ["growth from step 3 to the end", f"{own[-1] - own[1]:+.1f} MiB"],
        ["spread in the second half", f"{max(late) - min(late):.1f} MiB"],
        ["of the object store, mapped at the end", f"{points[-1][2]:.0f} MiB"],
        ["median of all points", f"{statistics.median(own):.0f} MiB"],
    ]


def write(path: Path, parts: dict[str, list[list[str]]]) -> None:
    """Put what was measured into a file of `docs/data`; its other part stays as it is."""
    old = json.loads(path.read_text("utf-8"))["parts"] if path.exists() else {}
    both = {name: (old | parts)[name] for name in PARTS if name in old or name in parts}
    rows = [row for rows in both.values() for row in rows]
    write_table(path, "python benchmarks/ray_scale.py", ("", ""), rows, parts=both)


def main() -> None:
    """Measure, print and write."""
    options = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    options.add_argument("parts", nargs="*", metavar="PART", default=PARTS)
    options.add_argument("--episodes", type=int, default=10**6)
    options.add_argument("--minutes", type=float, default=20.0, help="after which part 2 ends")
    options.add_argument("--json", type=Path)
    given = options.parse_args()
    be_apart()
    os.environ["RAY_worker_register_timeout_seconds"] = "300"  # noqa: SIM112  # Ray's spelling
    node = {**NODE, "num_cpus": ENGINES, "object_store_memory": 300 * MIB}
    found: dict[str, list[list[str]]] = {}
    with cluster_of(node) as cluster, tempfile.TemporaryDirectory(prefix="scale-") as out:
        if "engines" in given.parts:
            found["engines"] = engines(cluster.address, f"{out}/engines")
        if "episodes" in given.parts:
            found["episodes"] = episodes(
                cluster.address, f"{out}/episodes", given.episodes, given.minutes
            )
    for name, value in (row for rows in found.values() for row in rows):
        print(f"{name:46s} {value}")
    if given.json:
        write(given.json, found)


if __name__ == "__main__":
    main()
