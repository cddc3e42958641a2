"""Engines that are in rollout workers alone: their driver has names, and nothing that answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from flowzoo.agents import Policy, Request, Sampling
from flowzoo.agents.chat.template import ChatTokenizer, TemplatedPolicy
from flowzoo.agents.chat.thinking import read_thinking
from flowzoo.agents.number_format import EngineDType
from flowzoo.agents.policy import Batching, Completion
from flowzoo.agents.vllm.backend import EngineDeadError
from flowzoo.baselines.backends.sync_proof import LogprobGap
from flowzoo.baselines.engines.hf import LoadedPolicy, MetricRow
from flowzoo.baselines.settings.config import TrainConfig
from flowzoo.errors import FlowzooError


class ElsewherePolicy(TemplatedPolicy):
    """Says how a policy samples that rollout workers have."""

    def __init__(
        self,
        name: str,
        chat: ChatTokenizer,
        sampling: Sampling,
        thinking: bool | None,
        batching: Batching,
        engine_dtype: EngineDType,
    ) -> None:
        """Describe it in the words of the workers' policies."""
        self.name = self.original = name  # `thinking_as` renames a copy
        self.sampling, self.thinking, self._chat = sampling, thinking, chat
        self.template_id, self.batching = chat.template_id, batching
        self.engine_dtype = engine_dtype

    async def generate(self, requests: Sequence[Request]) -> list[Completion]:
        """Refuse: who plays is a worker."""
        raise FlowzooError(f"policy {self.name!r} samples in rollout workers, and not here")

    async def close(self) -> None:
        """Nothing was opened."""


class EnginesElsewhere:
    """See `flowzoo.baselines.engines.hf.Engines`: rollout workers play."""

    def __init__(
        self,
        config: TrainConfig,
        trained: Mapping[str, LoadedPolicy],
        training: Sampling,
        evaluating: Sampling,
    ) -> None:
        """Describe a player and a judge of every policy; whether a model plays, workers try.

        Raises:
            UsageError: `config.thinking` names no policy, or a model has no switch for thoughts.
        """
        switches = read_thinking(config.thinking, trained)
        chats = {
            name: ChatTokenizer(one.tokenizer, {}, switches[name]) for name, one in trained.items()
        }

        modules = config.engine == "transformers"
        batching: Batching = "static" if modules else "stream"
        dtype = config.module_dtype if modules else config.settled_dtype

        def make(sampling: Sampling) -> dict[str, Policy]:
            return {
                name: ElsewherePolicy(name, chats[name], sampling, switches[name], batching, dtype)
                for name in trained
            }

        self.players: Mapping[str, Policy] = make(training)
        self.judges: Mapping[str, Policy] = make(evaluating)

    def before_rollout(self) -> None:
        """Workers do what is to be done."""

    def before_learning(self) -> None:
        """Nothing is held that a learner could use."""

    def sync(self, probe: bool = True) -> MetricRow:
        """The backend publishes the weights."""
        return {}

    def prove(self) -> MetricRow:
        """Whoever loads weights proves it."""
        return {}

    def compare(self, gaps: Mapping[str, LogprobGap]) -> None:
        """Rows may be of older weights."""

    def recover(self, error: EngineDeadError) -> None:
        """Nothing here dies."""
        raise error

    def close(self) -> None:
        """Nothing was opened."""
