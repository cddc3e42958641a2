"""Engines in rollout workers only: the driver has their names and cannot sample."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from flowzoo.agents import Policy, Request, Sampling
from flowzoo.agents.chat.template import ChatTokenizer, TemplatedPolicy, read_thinking
from flowzoo.agents.policy import Batching, Completion
from flowzoo.agents.traits import EngineDType
from flowzoo.baselines.engines.hf import LoadedPolicy, NoExternalEngine
from flowzoo.baselines.settings.config import TrainConfig
from flowzoo.errors import FlowzooError


class ElsewherePolicy(TemplatedPolicy):
    """Description of a policy whose engine is in rollout workers."""

    def __init__(
        self,
        name: str,
        chat: ChatTokenizer,
        sampling: Sampling,
        thinking: bool | None,
        batching: Batching,
        engine_dtype: EngineDType,
    ) -> None:
        """Describe the workers' policy."""
        self.name = self.original = name  # `thinking_as` renames a copy
        self.sampling, self.thinking, self._chat = sampling, thinking, chat
        self.template_id, self.batching = chat.template_id, batching
        self.engine_dtype = engine_dtype

    async def generate(self, requests: Sequence[Request]) -> list[Completion]:
        """Raise `FlowzooError`: only rollout workers sample."""
        raise FlowzooError(f"policy {self.name!r} samples in rollout workers, and not here")

    async def close(self) -> None:
        """No-op."""


class EnginesElsewhere(NoExternalEngine):
    """The driver's view of the engines of rollout workers."""

    def __init__(
        self,
        config: TrainConfig,
        trained: Mapping[str, LoadedPolicy],
        training: Sampling,
        evaluating: Sampling,
    ) -> None:
        """Describe the training and evaluation policies; workers check the models.

        Raises:
            UsageError: `config.thinking` names no policy, or a model has no switch for thoughts.
        """
        switches = read_thinking(config.thinking, trained)
        chats = {
            name: ChatTokenizer(loaded.tokenizer, {}, switches[name])
            for name, loaded in trained.items()
        }

        traits = config.engine_traits
        batching: Batching = "stream" if traits.batches_itself else "static"
        dtype = config.settled_dtype if traits.own_weights else config.module_dtype

        def make(sampling: Sampling) -> dict[str, Policy]:
            return {
                name: ElsewherePolicy(name, chats[name], sampling, switches[name], batching, dtype)
                for name in trained
            }

        self.train_policies: Mapping[str, Policy] = make(training)
        self.eval_policies: Mapping[str, Policy] = make(evaluating)
