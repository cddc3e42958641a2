"""vLLM engines of a rollout worker, which has no learner."""

import copy
import logging
from collections.abc import Mapping, Sequence
from concurrent.futures import wait
from functools import partial

from torch import Tensor

from flowzoo.agents import Request, Sampling
from flowzoo.agents.chat.prompts import EngineStats
from flowzoo.agents.policy import Completion
from flowzoo.agents.vllm.backend import CHANGED_WITHIN_S, EngineDeadError, GenerationRequest
from flowzoo.agents.vllm.engine import VLLMEngine
from flowzoo.baselines.backends.sync_check import probe_messages
from flowzoo.baselines.engines.hf import PolicyModel
from flowzoo.baselines.engines.vllm import PolicyEngines
from flowzoo.baselines.learner.lora import lora_config, save_adapter
from flowzoo.baselines.settings.config import TrainConfig
from flowzoo.envs import Problem

SCORED = 8  # most tokens at the end of every text whose log-probs are compared
_PLAIN = Sampling(temperature=1.0, max_tokens=1)

_log = logging.getLogger("flowzoo")


class ReplicaEngines(PolicyEngines):
    """Engines whose weights come from elsewhere."""

    # An engine that dies takes its weights with it. It is started again when the next ones come;
    # until then `lost` names the policies that have none.

    def __init__(
        self,
        config: TrainConfig,
        policies: Mapping[str, PolicyModel],
        training: Mapping[str, Sampling],
        evaluating: Mapping[str, Sampling],
        problems: Sequence[Problem],
    ) -> None:
        super().__init__(config, policies, training, evaluating)
        self._config, self._policies = config, policies
        self._texts = probe_messages(problems)
        self._held: set[str] = set()
        """Policies whose weights were loaded into the engine that runs now."""
        self._death: EngineDeadError | None = None

    def probes(self) -> dict[str, list[Completion]]:
        """The texts of every trained policy as rows: the last tokens of each stand as its reply."""
        return {
            name: self._rows(name) for name, model in self._policies.items() if not model.frozen
        }

    def take(self, policy: str, version: int, tensors: Mapping[str, Tensor]) -> list[list[float]]:
        """Load weights; the log-probs of the probes' replies under them."""
        # An engine that is dead, or dies of it, is started again first.
        engine = self.by_policy[policy]
        while True:
            if not engine.backend.alive:
                self._restart(engine)
            try:
                self._load(engine, policy, tensors)
                logps = self._score(policy)
                break
            except EngineDeadError as error:
                self._death = error
        self._held.add(policy)
        self._train_policies[policy].version = self._eval_policies[policy].version = version
        return logps

    def lost(self) -> list[str]:
        """Trained policies that have no weights: their engine has died since they were loaded."""
        return [
            name
            for name, model in self._policies.items()
            if not model.frozen and not (name in self._held and self.by_policy[name].backend.alive)
        ]

    def played(self) -> None:
        """Something was played: from now on engines may die again."""
        self._restarts, self._death = self._config.engine_restarts, None

    def recover(self, error: EngineDeadError) -> None:
        """Restart an engine whose weights are in its files, or raise `error`."""
        self._death = error
        if self.lost():
            raise error
        for engine in self._engines.values():
            if not engine.backend.alive:
                self._restart(engine)

    def _restart(self, engine: VLLMEngine) -> None:
        error = self._death or EngineDeadError("the vLLM engine died between two requests")
        self.count_restart(error)
        self._death = None
        _log.warning("%s; it is started again", error)
        self._held -= {name for name, other in self.by_policy.items() if other is engine}
        engine.restart()

    def _load(self, engine: VLLMEngine, policy: str, tensors: Mapping[str, Tensor]) -> None:
        model = self._policies[policy]
        if model.lora is None:
            engine.load_weights(tensors)
            return
        names = (name.removeprefix("base_model.model.") for name in tensors)
        adapted = sorted({name.partition(".lora_")[0] for name in names})
        described = lora_config(model.lora, model.model.path, adapted)
        engine.load_adapter(policy, partial(save_adapter, tensors, described))

    def _rows(self, policy: str) -> list[Completion]:
        asker = copy.copy(self._train_policies[policy])
        asker.adapter, asker.stats = None, EngineStats()
        requests = [
            Request(("probe", number), policy, policy, chat, max_tokens=1)
            for number, chat in enumerate(self._texts)
        ]
        return [_row(job.prompt) for job in asker.jobs(requests)]

    def _score(self, policy: str) -> list[list[float]]:
        # Each token is asked for as the next of a prompt, since vLLM 0.32 has no log-probs of
        # prompts where an engine has adapters. All texts grow by a token at a time, so that the
        # prefix cache is used, and seen if it is stale.
        engine, rows = self.by_policy[policy], self._rows(policy)
        adapter = engine.adapter(policy) if self._policies[policy].adapter else None
        logps: list[list[float]] = [[] for _ in rows]
        for position in range(max(len(row.output_ids) for row in rows)):
            those = [number for number, row in enumerate(rows) if position < len(row.output_ids)]
            jobs = [
                GenerationRequest(
                    (*rows[number].prompt_ids, *rows[number].output_ids[:position]),
                    0, 1, _PLAIN, (),
                    adapter, score=rows[number].output_ids[position],
                )
                for number in those
            ]  # fmt: skip
            for number, future in zip(those, engine.submit(jobs), strict=True):
                if wait([future], CHANGED_WITHIN_S).not_done:
                    engine.give_up(f"it has not read a prompt in {CHANGED_WITHIN_S:g} s")
                score = future.result().score
                assert score is not None
                logps[number].append(score)
        return logps


def _row(ids: Sequence[int]) -> Completion:
    count = min(SCORED, len(ids) - 1)
    return Completion("", tuple(ids[:-count]), tuple(ids[-count:]), (0.0,) * count)
