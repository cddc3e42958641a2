"""The driver of a run whose rollouts are played by workers of a Ray cluster."""

import os
import secrets
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import numpy as np
import ray
from ray.util.placement_group import PlacementGroup, remove_placement_group

from flowzoo.agents.identity import ModelIdentity
from flowzoo.agents.rollout.episodes import RolloutBatch
from flowzoo.aliases import MetricRow, T
from flowzoo.baselines.backends.backend import LearnerProtocol, RolloutSpec, RunBackend, Shard
from flowzoo.baselines.backends.ray.cluster import connect, start_actors
from flowzoo.baselines.backends.ray.graders import Graders, start_graders
from flowzoo.baselines.backends.ray.learners import RemoteLearner, RemoteLearnerGroups, WeightsFile
from flowzoo.baselines.backends.ray.pool import RolloutPool
from flowzoo.baselines.backends.ray.weights import ReplicaProof, weights_file
from flowzoo.baselines.backends.ray.worker import (
    GRADING_WORKER,
    LEARNER_WORKER,
    ROLLOUT_WORKER,
    OpenPlayer,
    RolloutWorker,
    check_grading,
    check_nodes,
    check_vllm,
)
from flowzoo.baselines.learner.update import Learner
from flowzoo.baselines.settings.config import TrainConfig
from flowzoo.baselines.settings.policies import LearnerGroupPlan

_OF_A_NODE = ("VLLM_HOST_IP", "VLLM_PORT", "VLLM_CACHE_ROOT", "VLLM_CONFIG_ROOT")
"""Variables of vLLM that say where, and not how."""


def start_workers(
    count: int, open_player: OpenPlayer, cores: int, gpus: float
) -> tuple[list[Any], PlacementGroup]:
    """Actors that play, one to a bundle of a placement group."""
    variables = {
        name: value
        for name, value in os.environ.items()
        if name.startswith("VLLM_") and name not in _OF_A_NODE
    }
    given = (open_player, os.getcwd(), cores, variables)
    numbered = [(number, *given) for number in range(count)]
    return start_actors("rollout", RolloutWorker, numbered, cores=cores, gpus=gpus)


@contextmanager
def _token_in(folder: Path) -> Iterator[Path]:
    missing = [parent for parent in (folder, *folder.parents) if not parent.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    token = folder / f".seen-by-all-{secrets.token_hex(8)}"
    try:
        token.touch()
        yield token
    finally:
        token.unlink(missing_ok=True)
        for parent in missing:
            parent.rmdir()


class RayRunBackend(RunBackend):
    """A driver, which writes files; workers play, and learner workers learn, if there are any."""

    def __init__(
        self,
        config: TrainConfig,
        open_player: OpenPlayer,
        open_learners: OpenPlayer | None = None,
        open_grader: OpenPlayer | None = None,
        learner_groups: Sequence[LearnerGroupPlan] = (),
    ) -> None:
        count, cores, gpus = config.rollout_workers, config.threads or 1, config.rollout_gpus
        learning = sum(group.workers for group in learner_groups)
        connect(config.ray_address, {
            "CPU": float((count + learning + config.graders) * cores),
            "GPU": count * gpus + learning * config.learner_gpus,
        })  # fmt: skip
        self.count, self._closed, self._shard = count, False, config.shard
        self._versions: dict[str, int] = {}
        self._due_later = config.max_staleness > 0
        """True if batches are played while weights are published."""
        self._groups: list[PlacementGroup] = []
        self.learner_groups: RemoteLearnerGroups | None = None
        self._graders: Graders | None = None
        folder = config.directory.absolute()
        try:
            if learner_groups and open_learners is not None:
                self.learner_groups = RemoteLearnerGroups(
                    learner_groups, open_learners, cores, config.learner_gpus
                )
            if config.graders and open_grader is not None:
                with _token_in(folder) as token:
                    self._graders, group = start_graders(
                        config.graders, open_grader, cores, str(token), str(config.directory)
                    )
                self._groups.append(group)
                open_player = open_player._replace(given=(*open_player.given, self._graders))
            workers, group = start_workers(count, open_player, cores, gpus)
            self._groups.append(group)
            self._proof = ReplicaProof(
                exact=config.resolved_dtype == config.compute == "float32",
                tolerance=config.sync_tolerance,
            )
            self._pool = RolloutPool(workers, config.max_staleness, self._proof)
            with _token_in(folder) as token:
                facts = self._pool.ask(lambda worker: worker.facts.remote(str(token)))
                if self.learner_groups is not None:
                    facts += self.learner_groups.facts(str(token))
            check_nodes(facts, os.getcwd(), str(config.directory))
            if "vllm" in config.engine_traits.modules:
                check_vllm(facts[:count])
            self._opening = [worker.open.remote() for worker in workers]
        except BaseException:
            ray.shutdown()
            raise

    @classmethod
    def open(
        cls,
        config: TrainConfig,
        learner_groups: Sequence[LearnerGroupPlan],
        began: Mapping[str, ModelIdentity],
    ) -> "RayRunBackend":
        """Start the workers of a run in the cluster."""
        player, learners = (
            OpenPlayer(name, (config, began)) for name in (ROLLOUT_WORKER, LEARNER_WORKER)
        )
        grader = OpenPlayer(GRADING_WORKER, (config,))
        return cls(config, player, learners, grader, learner_groups)

    def play(
        self, plan: RolloutSpec, shards: Sequence[Shard], play: Callable[[Shard], RolloutBatch]
    ) -> list[RolloutBatch]:
        """Play on the workers, with the versions of the plan."""
        return self._pool.play(plan, [shard.jobs for shard in shards])

    def join(self, make: Callable[[], Mapping[str, Learner]]) -> Mapping[str, LearnerProtocol]:
        """Proxies of the learner groups' learners, if there are learner groups."""
        if self.learner_groups is None:
            return make()
        try:
            return self.learner_groups.join(self._shard)
        except BaseException:
            self.close()
            raise

    def together(self, works: Mapping[str, Callable[[], T]]) -> dict[str, T]:
        """Run the works of several learner groups at the same time."""
        return (
            super().together(works)
            if self.learner_groups is None
            else self.learner_groups.together(works)
        )

    def grading(self, here: Callable[[], Mapping[str, object]]) -> Mapping[str, object]:
        """Settings of the graders, which are equal, if there are graders."""
        return here() if self._graders is None else self._graders.grading

    def publish(self, learners: Mapping[str, LearnerProtocol]) -> MetricRow:
        """Send one file per changed policy, once per node, and check the loads."""
        # With `max_staleness` workers are busy from the first step on: each is sent these weights,
        # and proves them, before the first shard that is played with them.
        began, later = time.perf_counter(), self._due_later and not self._opening
        if self._opening:
            self._opening = []
            opened = self._pool.ask(lambda worker: worker.open.remote())
            check_grading([learner.grading for learner in opened])
            self._proof.probes = opened[0].probes
        changed = [
            name for name, learner in learners.items() if self._versions.get(name) != learner.steps
        ]
        sent = 0
        for name in changed:
            self._proof.remember(name, learners[name])
            file = self._file(learners[name])
            self._pool.publish(name, learners[name].steps, file.file, file.digest)
            self._versions[name] = learners[name].steps
            sent += file.size
        ready = self._pool.present if later or not changed else self._pool.prove()
        return {
            "time/publish": time.perf_counter() - began,
            "perf/published_mib": sent / 2**20,
            "perf/workers": ready,
            **self._proof.metrics(),
        }

    def stop(self) -> None:
        """Stop the pool of rollout workers."""
        self._pool.stop()

    def close(self) -> None:
        """End all actors, and a cluster that was started for this run."""
        if not self._closed:
            self._closed = True
            if self.learner_groups is not None:
                self.learner_groups.end()
            for group in (
                *self._groups,
                *(self.learner_groups.groups if self.learner_groups else ()),
            ):
                remove_placement_group(group)
            ray.shutdown()

    def _file(self, learner: LearnerProtocol) -> WeightsFile:
        if isinstance(learner, RemoteLearner):
            return learner.file()
        file, digest = weights_file(cast("Learner", learner))
        return WeightsFile(ray.put(np.frombuffer(file, np.uint8)), digest, len(file))
