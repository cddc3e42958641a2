"""An engine without a model: each reply is a word of the last message, drawn by the key."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from flowzoo.agents.engines import Engine, EngineTraits
from flowzoo.agents.policy import Batching, Completion, Request, Sampling
from flowzoo.agents.traits import ModelTraits
from flowzoo.errors import UsageError
from flowzoo.seeding import key_rng

MODELS = ("first", "any")


class EchoPolicy:
    """Repeats a word of the last message: the first one, or any."""

    batching: Batching = "stream"

    def __init__(self, model: str, name: str, sampling: Sampling | None) -> None:
        self.name, self._model = name, model
        self._greedy = (sampling or Sampling()).temperature == 0

    async def generate(self, requests: Sequence[Request]) -> list[Completion]:
        return [Completion(self._reply(request)) for request in requests]

    async def close(self) -> None:
        pass

    def _reply(self, request: Request) -> str:
        args = request.messages[-1]["content"].split()
        if self._model == "first" or self._greedy:
            return args[0]
        return key_rng("echo", *request.key).choice(args)


class EchoEngine(Engine):
    """Repeats words of its prompt."""

    name: ClassVar[str] = "echo"
    traits: ClassVar[EngineTraits] = EngineTraits(returns_ids=False)

    def check(self, model: str) -> None:
        if model not in MODELS:
            raise UsageError(f"expected echo:first or echo:any, got echo:{model}")

    def dtype(self, choice: str, model: str) -> None:
        return None

    def model_traits(self, model: str) -> ModelTraits:
        return ModelTraits()

    def open(
        self, model: str, *, name: str, sampling: Sampling | None = None, **options: Any
    ) -> EchoPolicy:
        return EchoPolicy(model, name, sampling)
