"""Engines with vLLM: sampling from copies of the learners' weights."""

import logging
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial

import torch

from flowzoo.agents import Policy, Sampling
from flowzoo.agents.chat.template import read_thinking
from flowzoo.agents.vllm.backend import (
    CHANGED_WITHIN_S,
    EngineDeadError,
    EngineOutOfMemoryError,
)
from flowzoo.agents.vllm.engine import VLLMEngine
from flowzoo.agents.vllm.policy import VLLMPolicy
from flowzoo.agents.vllm.remote import connect
from flowzoo.agents.vllm.settings import EngineSettings
from flowzoo.aliases import MetricRow
from flowzoo.baselines.backends.sync_check import LogprobGap, check, measure, probe_messages
from flowzoo.baselines.engines.hf import Engines, LoadedPolicy, PolicyModel
from flowzoo.baselines.learner.update import Learner
from flowzoo.baselines.settings.config import TrainConfig
from flowzoo.baselines.settings.policies import of_policy
from flowzoo.envs import Problem
from flowzoo.envs.settings import read_named
from flowzoo.errors import UsageError

_SHARE = 0.8
"""Share of a GPU without a learner; the rest is left to graphs, buffers and the allocator."""

EnginePolicies = Mapping[str, LoadedPolicy] | Mapping[str, PolicyModel]
"""Policies by name, loaded or not: engines need their path, adapter and whether they are frozen."""


def share_of_bundle(gpus: float, engines: int, number: int) -> tuple[str, int, float]:
    """Share of engine `number` of `engines` in the `gpus` GPUs that Ray has chosen.

    Returns:
        Its GPUs as CUDA_VISIBLE_DEVICES has them (empty: all that the worker sees), their number,
        and the share of the memory of each.
    """
    # One GPU, or a part of one, is shared by all engines; of more, each gets an equal number.
    if gpus <= 1:
        return "", 1, _SHARE * (gpus or 1) / engines
    each = int(gpus) // engines
    chosen = os.environ["CUDA_VISIBLE_DEVICES"].split(",")
    return ",".join(chosen[number * each : (number + 1) * each]), each, _SHARE


_log = logging.getLogger("flowzoo")


def engine_settings(
    config: TrainConfig, engines: int, ranks: Sequence[int], number: int = 0
) -> EngineSettings:
    """The settings of engine `number` of `engines`, which share the memory evenly.

    `ranks` has the rank of every adapter in it.
    """
    devices, gpus, share = _own_device(config), 1, EngineSettings().gpu_share / engines
    if config.backend == "ray":
        devices, gpus, share = share_of_bundle(config.rollout_gpus, engines, number)
    return EngineSettings(
        placement=config.placement,
        devices=devices,
        tensor_parallel=gpus,
        dtype=config.resolved_dtype,
        kv_gib=config.engine_memory / engines,
        gpu_share=share,
        max_batch=config.max_batch,
        max_context=config.longest_sequence,
        adapters=len(ranks),
        adapter_rank=adapter_rank(max(ranks, default=1)),
        sleep=config.engine_sleep,
        weight_transfer=config.weight_transfer,
        seed=config.seed,
    )


def _own_device(config: TrainConfig) -> str:
    if config.backend == "local":
        return config.engine_devices
    index = int(os.environ.get("LOCAL_RANK", 0))
    if config.engine_devices:
        return config.engine_devices.split(",")[index]
    return str(index) if torch.cuda.is_available() else ""


def adapter_rank(rank: int) -> int:
    """The smallest rank of vLLM's adapter slots that holds `rank`."""
    for size in (1, 8, 16, 32, 64, 128, 256, 320, 512):
        if rank <= size:
            return size
    raise UsageError(f"vLLM takes LoRA adapters of rank 512 at most, got lora_rank={rank}.")


class PolicyEngines(Engines):
    """The vLLM engines of some policies, started, and who samples from them."""

    def __init__(
        self,
        config: TrainConfig,
        policies: EnginePolicies,
        training: Mapping[str, Sampling],
        evaluating: Mapping[str, Sampling],
    ) -> None:
        switches = read_thinking(config.thinking, policies)
        self._deterministic, self._restarts = config.deterministic, config.engine_restarts
        self._engines = open_engines(config, policies)
        self.by_policy = {name: self._engines[key] for name, key in engine_keys(policies).items()}

        def make(samplings: Mapping[str, Sampling]) -> dict[str, VLLMPolicy]:
            return {
                name: VLLMPolicy(
                    self.by_policy[name],
                    name=name,
                    sampling=samplings[name],
                    adapter=name if model.adapter else None,
                    thinking=switches[name],
                )
                for name, model in policies.items()
            }

        self._train_policies, self._eval_policies = make(training), make(evaluating)
        self.train_policies: Mapping[str, Policy] = self._train_policies
        self.eval_policies: Mapping[str, Policy] = self._eval_policies

    def before_rollout(self) -> None:
        """Clear the prefix caches in deterministic runs: cached prompts change floats."""
        if self._deterministic:
            for engine in self._engines.values():
                engine.backend.reset_cache()

    def count_restart(self, error: EngineDeadError) -> None:
        """Count a restart of an engine, or raise `error` if none would help or none is left."""
        if isinstance(error, EngineOutOfMemoryError):
            raise error
        if self._restarts == 0:
            error.add_note("it was started again as often as engine_restarts allows")
            raise error
        self._restarts -= 1

    def close(self) -> None:
        """Close every engine."""
        for engine in self._engines.values():
            engine.close()


class VLLMEngines(PolicyEngines):
    """vLLM engines of this machine or of servers."""

    def __init__(
        self,
        config: TrainConfig,
        trained: Mapping[str, LoadedPolicy],
        training: Mapping[str, Sampling],
        evaluating: Mapping[str, Sampling],
        problems: Sequence[Problem],
        learners: Mapping[str, Learner],
    ) -> None:
        super().__init__(config, trained, training, evaluating)
        self._config, self._learners = config, learners
        self._probes = probe_messages(problems)
        self._asleep = False
        self._restarted = False
        """True if the last restart was a sync's: batches that it cut off report the same death."""
        self._rows_prove = config.probe_distance > 1
        self._unproved = set(learners)
        """Policies whose engines nothing has been asked of since their last sync."""
        # Their weights come back with no sync, so they stay in RAM while the engine sleeps.
        self._keeps = {self.by_policy[name] for name, loaded in trained.items() if loaded.frozen}

    def before_learning(self) -> None:
        """Put the engines to sleep if `engine_sleep` is set."""
        self._restarts, self._restarted = self._config.engine_restarts, False
        if self._config.engine_sleep:
            for engine in self._engines.values():
                engine.backend.sleep(1 if engine.adapters or engine in self._keeps else 2)
            self._asleep = True

    def sync(self, probe: bool = True) -> MetricRow:
        """Load the learners' weights; policies without rows in the last step are probed."""
        with self._gates_closed():
            try:
                return self._sync(probe or bool(self._unproved))
            except EngineDeadError as error:
                return self._restart(error)

    def prove(self) -> MetricRow:
        """Check the engines whose weights are unproved."""
        if not self._unproved:
            return {}
        try:
            return self._prove()
        except EngineDeadError as error:
            return self._restart(error)

    def compare(self, gaps: Mapping[str, LogprobGap]) -> None:
        """Raise `SyncError` if the rows were sampled from other weights."""
        if self._rows_prove:
            for name, gap in gaps.items():
                self._check(name, gap, "tokens trained on")
                self._unproved.discard(name)

    def recover(self, error: EngineDeadError) -> None:
        """Restart the dead engine, unless a sync that found it dead has done so."""
        with self._gates_closed():
            alive = all(engine.backend.alive for engine in self._engines.values())
            if not (self._restarted and alive):
                self._restart(error)
            self._restarted = False

    @contextmanager
    def _gates_closed(self) -> Iterator[None]:
        # Batches that are sampled ahead go on afterwards, with the new weights.
        with ExitStack() as gates:
            for engine in self._engines.values():
                if not gates.enter_context(engine.gate.closed(CHANGED_WITHIN_S)):
                    engine.backend.close()  # it neither answers nor dies
            yield

    def _sync(self, probe: bool = True) -> MetricRow:
        started = time.perf_counter()
        if self._asleep:
            for engine in self._engines.values():
                engine.backend.wake(("weights",))
        for name, learner in self._learners.items():
            if learner.weights.is_adapter:
                self.by_policy[name].load_adapter(name, learner.weights.save)
            else:
                self.by_policy[name].load_weights(learner.weights.state())
            self._train_policies[name].version = self._eval_policies[name].version = learner.steps
        if self._asleep:  # caches come last, when nothing of what was sent is held any more
            for engine in self._engines.values():
                engine.backend.wake(("kv_cache",))
            self._asleep = False
        self._unproved = set(self._learners)
        row: MetricRow = {
            f"perf/cache_hits/{name}": self._train_policies[name].stats.cache_hits
            for name in self._learners
        }
        row["time/sync"] = time.perf_counter() - started
        return row | (self._prove() if probe else {"time/sync_check": 0.0})

    def _prove(self) -> MetricRow:
        began = time.perf_counter()
        row: MetricRow = {}
        for name, learner in self._learners.items():
            proof = measure(self._train_policies[name], learner, self._probes)
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
            exact=self._config.resolved_dtype == compute == "float32",
            tolerance=self._config.sync_tolerance,
            tokens=tokens,
        )

    def _restart(self, error: EngineDeadError) -> MetricRow:
        while True:
            out_of_memory = isinstance(error, EngineOutOfMemoryError)
            if self._config.shard == "full" and not out_of_memory:  # no rank has all weights
                error.add_note(
                    "its weights are spread over the ranks, who all end: the same command goes on "
                    "from the last checkpoint"
                )
                raise error
            self.count_restart(error)
            _log.warning("%s; it is started again and the step repeated", error)
            try:
                for engine in self._engines.values():
                    if not engine.backend.alive:
                        engine.restart()
                row = self._sync()
            except EngineDeadError as again:
                error = again
            else:
                self._restarted = True
                return row


def engine_keys(policies: EnginePolicies) -> dict[str, str]:
    """Key of each policy's engine: a policy's name or the path of a base."""
    # Adapters share the engine of their base; frozen policies too, with one another if need be.
    return {
        name: policy.model.path if policy.adapter or policy.frozen else name
        for name, policy in policies.items()
    }


def open_engines(config: TrainConfig, policies: EnginePolicies) -> dict[str, VLLMEngine]:
    """Engines by the names that `engine_keys` gives them."""
    bases: dict[str, list[str]] = {}
    for name, key in engine_keys(policies).items():
        bases.setdefault(key, []).append(name)
    if config.engine_traits.server:
        urls = endpoints(config.endpoint, list(bases))
        return {
            key: connect(policies[names[0]].model.path, urls[key]) for key, names in bases.items()
        }
    engines: dict[str, VLLMEngine] = {}
    try:
        for number, (key, names) in enumerate(bases.items()):
            ranks = [of_policy(config, name).lora_rank for name in names if policies[name].adapter]
            settings = engine_settings(config, len(bases), ranks, number)
            model = policies[names[0]].model
            check = partial(model.check, f"the run in {config.directory}")
            engines[key] = VLLMEngine.local(model.path, settings, check)
    except BaseException:
        for engine in engines.values():
            engine.close()
        raise
    return engines


def endpoints(settings: Sequence[str], keys: Sequence[str]) -> dict[str, str]:
    """The server of every engine: one URL alone, or POLICY=URL for each."""
    if len(settings) == len(keys) == 1 and "=" not in settings[0].split("//")[0]:
        return {keys[0]: settings[0]}
    urls = read_named(settings, keys, "endpoint")
    missing = sorted(set(keys) - set(urls))
    if missing:
        raise UsageError(
            f"each of {', '.join(keys)} needs a server of its own: add "
            f"{' '.join(f'{name}=URL' for name in missing)} to `endpoint`."
        )
    return urls
