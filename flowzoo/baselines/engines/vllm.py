"""vLLM engines around a run: one per full-weight policy, or one per base with an adapter each.

After every update the engines get the learners' weights and prove that they have them. An engine
that dies is started again, synced and proved before anything is sampled from it.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Mapping, Sequence
from typing import Protocol

import torch

from flowzoo.agents import Policy, Sampling
from flowzoo.agents.chat.thinking import read_thinking
from flowzoo.agents.vllm.backend import EngineDeadError, EngineOutOfMemoryError
from flowzoo.agents.vllm.engine import VLLMEngine
from flowzoo.agents.vllm.policy import VLLMPolicy
from flowzoo.agents.vllm.settings import EngineSettings
from flowzoo.baselines.backends.sync_proof import LogprobGap, check
from flowzoo.baselines.engines.bundle import share_of_bundle
from flowzoo.baselines.engines.hf import LoadedPolicy, MetricRow
from flowzoo.baselines.engines.sync import measure, probe_messages
from flowzoo.baselines.learner.update import Learner
from flowzoo.baselines.settings.config import TrainConfig
from flowzoo.baselines.settings.policy_map import per_policy
from flowzoo.baselines.settings.sequence import longest_sequence
from flowzoo.envs import Problem
from flowzoo.errors import UsageError

_log = logging.getLogger("flowzoo")


class EnginePolicy(Protocol):
    """What an engine has to know of a policy."""

    @property
    def path(self) -> str:
        """The model, or the base of its adapter."""
        ...

    @property
    def adapter(self) -> bool:
        """Whether it is an adapter."""
        ...

    @property
    def frozen(self) -> bool:
        """Whether it keeps its weights."""
        ...


def engine_settings(
    config: TrainConfig, engines: int, adapters: int, number: int = 0
) -> EngineSettings:
    """The settings of engine `number` of `engines`, which share the memory evenly."""
    devices, gpus, share = own_device(config), 1, EngineSettings().gpu_share / engines
    if config.backend == "ray":
        devices, gpus, share = share_of_bundle(config.rollout_gpus, engines, number)
    return EngineSettings(
        placement=config.placement,
        devices=devices,
        tensor_parallel=gpus,
        dtype=config.settled_dtype,
        kv_gib=config.engine_memory / engines,
        gpu_share=share,
        max_batch=config.max_batch,
        max_context=longest_sequence(config),
        adapters=adapters,
        adapter_rank=adapter_rank(config.lora_rank) if adapters else 1,
        sleep=config.engine_sleep,
        weight_transfer=config.weight_transfer,
        seed=config.seed,
    )


def own_device(config: TrainConfig) -> str:
    """The GPUs of this process's engines, as CUDA_VISIBLE_DEVICES writes them."""
    if config.backend == "local":
        return config.engine_devices
    place = int(os.environ.get("LOCAL_RANK", 0))
    if config.engine_devices:
        return config.engine_devices.split(",")[place]
    return str(place) if torch.cuda.is_available() else ""


def adapter_rank(rank: int) -> int:
    """The smallest rank that vLLM's adapter slots come in and that holds `rank`.

    Raises:
        UsageError: there is none.
    """
    for size in (1, 8, 16, 32, 64, 128, 256, 320, 512):
        if rank <= size:
            return size
    raise UsageError(f"vLLM takes LoRA adapters of rank 512 at most, got lora_rank={rank}.")


class PolicyEngines:
    """The vLLM engines of some policies, started, and who samples from them."""

    def __init__(
        self,
        config: TrainConfig,
        policies: Mapping[str, EnginePolicy],
        training: Sampling,
        evaluating: Sampling,
    ) -> None:
        """Start the engines.

        Raises:
            UsageError: an engine refuses its settings, or no endpoint for a policy.
            MissingExtraError: vLLM is not installed.
        """
        switches = read_thinking(config.thinking, policies)
        self._engines = open_engines(config, policies)
        self._of = {name: self._engines[key] for name, key in engine_keys(policies).items()}

        def make(sampling: Sampling) -> dict[str, VLLMPolicy]:
            return {
                name: VLLMPolicy(
                    self._of[name],
                    name=name,
                    sampling=sampling,
                    adapter=name if one.adapter else None,
                    thinking=switches[name],
                )
                for name, one in policies.items()
            }

        self._players, self._judges = make(training), make(evaluating)
        self.players: Mapping[str, Policy] = self._players
        self.judges: Mapping[str, Policy] = self._judges

    def before_rollout(self) -> None:
        """See `Engines`: what a prompt finds in the cache moves its floats."""
        for engine in self._engines.values():
            engine.backend.reset_cache()

    def close(self) -> None:
        """See `Engines`."""
        for engine in self._engines.values():
            engine.close()


class VLLMEngines(PolicyEngines):
    """vLLM engines of this machine or of servers; see `flowzoo.baselines.engines.hf.Engines`."""

    def __init__(
        self,
        config: TrainConfig,
        trained: Mapping[str, LoadedPolicy],
        learners: Mapping[str, Learner],
        training: Sampling,
        evaluating: Sampling,
        problems: Sequence[Problem],
    ) -> None:
        """Start the engines; see `PolicyEngines`. `problems` are what the probes are made of."""
        super().__init__(config, trained, training, evaluating)
        self._config, self._learners = config, learners
        self._probes = probe_messages(problems)
        self._restarts = config.engine_restarts
        self._asleep = False
        self._rows_prove = config.probe_distance > 1
        self._unproved = set(learners)
        """Policies whose engines nothing has been asked of since their last sync."""
        # Their weights come back with no sync, so they stay in RAM while the engine sleeps.
        self._keeps = {self._of[name] for name, one in trained.items() if one.frozen}

    def before_learning(self) -> None:
        """See `Engines`."""
        self._restarts = self._config.engine_restarts
        if self._config.engine_sleep:
            for engine in self._engines.values():
                engine.backend.sleep(1 if engine.adapters or engine in self._keeps else 2)
            self._asleep = True

    def sync(self, probe: bool = True) -> MetricRow:
        """See `Engines`; policies that the last step had no rows of are probed."""
        try:
            return self._sync(probe or bool(self._unproved))
        except EngineDeadError as error:
            return self._restart(error)

    def prove(self) -> MetricRow:
        """See `Engines`."""
        if not self._unproved:
            return {}
        try:
            return self._prove()
        except EngineDeadError as error:
            return self._restart(error)

    def compare(self, gaps: Mapping[str, LogprobGap]) -> None:
        """See `Engines`.

        Raises:
            SyncError: the rows were sampled from other weights.
        """
        if self._rows_prove:
            for name, gap in gaps.items():
                self._check(name, gap, "tokens trained on")
                self._unproved.discard(name)

    def recover(self, error: EngineDeadError) -> None:
        """See `Engines`."""
        self._restart(error)

    def _sync(self, probe: bool = True) -> MetricRow:
        started = time.perf_counter()
        if self._asleep:
            for engine in self._engines.values():
                engine.backend.wake(("weights",))
        for name, learner in self._learners.items():
            if learner.weights.is_adapter:
                self._of[name].load_adapter(name, learner.weights.save)
            else:
                self._of[name].load_weights(learner.weights.state())
            self._players[name].version = self._judges[name].version = learner.steps
        if self._asleep:  # caches come last, when nothing of what was sent is held any more
            for engine in self._engines.values():
                engine.backend.wake(("kv_cache",))
            self._asleep = False
        self._unproved = set(self._learners)
        row: MetricRow = {
            f"perf/cache_hits/{name}": self._players[name].stats.cache_hits
            for name in self._learners
        }
        row["time/sync"] = time.perf_counter() - started
        return row | (self._prove() if probe else {"time/sync_check": 0.0})

    def _prove(self) -> MetricRow:
        began = time.perf_counter()
        row: MetricRow = {}
        for name, learner in self._learners.items():
            proof = measure(self._players[name], learner, self._probes)
            self._check(name, proof, "probe tokens")
            row[f"sync/gap_max/{name}"] = proof.largest
            row[f"sync/gap_mean/{name}"] = proof.mean
        self._unproved.clear()
        row["time/sync_check"] = time.perf_counter() - began
        return row

    def _check(self, policy: str, gap: LogprobGap, tokens: str) -> None:
        compute = self._learners[policy].config.compute
        check(
            gap,
            f"the engine of policy {policy!r}",
            exact=self._config.settled_dtype == compute == "float32",
            tolerance=self._config.sync_tolerance,
            tokens=tokens,
        )

    def _restart(self, error: EngineDeadError) -> MetricRow:
        """Start dead engines again and sync, as often as the settings allow."""
        while True:
            if isinstance(error, EngineOutOfMemoryError):
                raise error
            if self._config.shard == "full":  # no rank has all weights, and others do other things
                error.add_note(
                    "its weights are spread over the ranks, who all end: the same command goes on "
                    "from the last checkpoint"
                )
                raise error
            if self._restarts == 0:
                error.add_note("it was started again as often as engine_restarts allows")
                raise error
            self._restarts -= 1
            _log.warning("%s; it is started again and the step repeated", error)
            try:
                for engine in self._engines.values():
                    if not engine.backend.alive:
                        engine.restart()
                return self._sync()
            except EngineDeadError as again:
                error = again


def engine_keys(policies: Mapping[str, EnginePolicy]) -> dict[str, str]:
    """Which engine each policy samples from, named by a policy or by the path of a base.

    Adapters share the engine of their base; frozen policies too, with one another if need be.
    """
    return {name: one.path if one.adapter or one.frozen else name for name, one in policies.items()}


def open_engines(
    config: TrainConfig, policies: Mapping[str, EnginePolicy]
) -> dict[str, VLLMEngine]:
    """Engines by the names that `engine_keys` gives them."""
    bases: dict[str, list[str]] = {}
    for name, key in engine_keys(policies).items():
        bases.setdefault(key, []).append(name)
    if config.engine == "openai":
        from flowzoo.agents.vllm.remote import connect

        urls = endpoints(config.endpoint, list(bases))
        return {key: connect(policies[names[0]].path, urls[key]) for key, names in bases.items()}
    engines: dict[str, VLLMEngine] = {}
    try:
        for number, (key, names) in enumerate(bases.items()):
            adapters = sum(policies[name].adapter for name in names)
            settings = engine_settings(config, len(bases), adapters, number)
            engines[key] = VLLMEngine.local(policies[names[0]].path, settings)
    except BaseException:
        for engine in engines.values():
            engine.close()
        raise
    return engines


def endpoints(words: Sequence[str], keys: Sequence[str]) -> dict[str, str]:
    """The server of every engine: one URL alone, or POLICY=URL for each.

    Raises:
        UsageError: an engine without a server of its own.
    """
    if len(words) == len(keys) == 1 and "=" not in words[0].split("//")[0]:
        return {keys[0]: words[0]}
    found = per_policy(words, keys, "endpoint")
    missing = sorted(set(keys) - set(found))
    if missing:
        raise UsageError(
            f"each of {', '.join(keys)} needs a server of its own: add "
            f"{' '.join(f'{name}=URL' for name in missing)} to `endpoint`."
        )
    return found
