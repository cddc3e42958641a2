"""Replies from vLLM: continuous batching, prefix caching, one LoRA adapter per policy.

Engines get and give token ids. Each request has its own seed, so its sample does not depend on the
batch, up to the float noise of the logits.
"""

import asyncio
import os
from collections.abc import Sequence
from concurrent.futures import wait
from typing import Any, Self

from flowzoo.agents.chat.prompts import EngineStats, TemplatedPolicy, check_context
from flowzoo.agents.chat.template import ChatTokenizer, TokenizedPrompt
from flowzoo.agents.policy import (
    Batching,
    Completion,
    Request,
    Sampling,
    reply_cap,
)
from flowzoo.agents.traits import dtype_for, vllm_device
from flowzoo.agents.vllm.backend import GenerationOutput, GenerationRequest
from flowzoo.agents.vllm.engine import VLLMEngine
from flowzoo.agents.vllm.settings import EngineSettings
from flowzoo.errors import UsageError
from flowzoo.seeding import key_int

MAX_TEMPERATURE = 2.0
"""Highest temperature that vLLM takes (`SamplingParams`, 0.32)."""


class VLLMPolicy(TemplatedPolicy):
    """A policy behind a vLLM engine, which it may share with others.

    Prompts over their role's budget, or that leave no room for the reply, are shortened
    (`flowzoo.agents.chat.prompts`); `stats.shortened` counts them. `stats.cache_hits` is the prefix
    cache's hit rate.
    """

    batching: Batching = "stream"

    def __init__(
        self,
        engine: VLLMEngine,
        *,
        name: str = "policy",
        sampling: Sampling | None = None,
        adapter: str | None = None,
        thinking: bool | None = None,
        owns_engine: bool = False,
    ) -> None:
        """Use an engine that runs.

        Args:
            engine: shared with the caller.
            name: name of the policy in policy maps and records.
            sampling: temperature and lengths; default `Sampling()`.
            adapter: name under which the engine has this policy's LoRA adapter; None: the engine's
                own weights.
            thinking: switches thoughts on or off; None: the chat template's default.
            owns_engine: `close` ends the engine too.

        Raises:
            UsageError: no chat template, no switch for thoughts, no room for a prompt, or a
                temperature that vLLM refuses.
        """
        self.name = name
        self.engine = engine
        self.sampling = sampling or Sampling()
        if self.sampling.temperature > MAX_TEMPERATURE:
            raise UsageError(
                f"vLLM samples at temperatures up to {MAX_TEMPERATURE:g}, got "
                f"{self.sampling.temperature:g}: lower it, or use the engine transformers."
            )
        self.adapter = adapter
        self.stats = EngineStats()
        self.version: int | None = None
        """Optimizer steps behind the engine's weights, set by each sync."""
        check_context(engine.context, self.sampling)
        self._chat = ChatTokenizer(engine.tokenizer, thinking)
        self.thinking, self.template_id = thinking, self._chat.template_id
        self.engine_dtype = engine.dtype
        self._owns_engine = owns_engine

    @classmethod
    def from_pretrained(
        cls,
        path: str | os.PathLike[str],
        *,
        name: str | None = None,
        settings: EngineSettings | None = None,
        **options: Any,
    ) -> "VLLMPolicy":
        """Start a separate engine for a folder, a GGUF file or a model of the hub.

        Args:
            path: folder in Hugging Face layout (safetensors), GGUF file or hub id.
            name: name of the policy; default the last part of `path`.
            settings: settings of the engine; default `EngineSettings()` with the number format that
                `flowzoo.agents.traits` chooses.
            options: as for the constructor.

        Raises:
            UsageError: nothing loadable at `path`, or vLLM refuses the settings.
            MissingExtraError: vLLM is not installed.
        """
        short = os.path.basename(os.path.normpath(os.fspath(path)))
        settings = settings or EngineSettings(dtype=dtype_for("auto", path, vllm_device()))
        engine = VLLMEngine.local(path, settings)
        return cls(engine, name=name or short, owns_engine=True, **options)

    async def generate(self, requests: Sequence[Request]) -> list[Completion]:
        """Answer `requests`, in their order. Cancelling takes them out of the engine."""
        async with self.engine.gate.request():
            jobs = self.jobs(requests)
            loop = asyncio.get_running_loop()
            waiting = [asyncio.wrap_future(f, loop=loop) for f in self.engine.submit(jobs)]
            try:
                samples = [await sample for sample in waiting]
            except BaseException:
                for sample in waiting:
                    sample.cancel()
                await asyncio.gather(*waiting, return_exceptions=True)
                raise
            return [self._reply(*row) for row in zip(requests, jobs, samples, strict=True)]

    def answer(
        self, requests: Sequence[Request], within_s: float | None = None
    ) -> list[Completion]:
        """`generate` for callers without an event loop; blocks until all are answered.

        Not held up by the engine's gate: for those who have closed it.
        """
        jobs = self.jobs(requests)
        futures = self.engine.submit(jobs)
        if late := wait(futures, within_s).not_done:
            self.engine.give_up(f"it has not answered {len(late)} requests in {within_s:g} s")
        samples = [future.result() for future in futures]
        return [self._reply(*row) for row in zip(requests, jobs, samples, strict=True)]

    def jobs(self, requests: Sequence[Request]) -> list[GenerationRequest]:
        """`requests` as the engine takes them."""
        prompts = self._prompts(requests, self.engine.context)
        adapter = self.engine.adapter(self.adapter) if self.adapter else None
        return [
            GenerationRequest(
                prompt=prompt.ids,
                seed=key_int(*request.key) >> 1,  # vLLM's seeds are signed
                cap=reply_cap(request, self.sampling),
                sampling=self.sampling,
                stop_ids=self.engine.stop_ids,
                adapter=adapter,
                shortened=prompt.shortened,
                writers=prompt.writers,
            )
            for prompt, request in zip(prompts, requests, strict=True)
        ]

    def thinking_as(self, thinking: bool | None) -> Self:
        """The same policy with another switch for thoughts; the engine stays this one's to end."""
        other = super().thinking_as(thinking)
        other._owns_engine = False
        return other

    async def close(self) -> None:
        """End the engine if this policy started it."""
        if self._owns_engine:
            await asyncio.to_thread(self.engine.close)

    def _reply(
        self, request: Request, job: GenerationRequest, sample: GenerationOutput
    ) -> Completion:
        self.stats.read_tokens += len(job.prompt) - sample.cached
        prompt = TokenizedPrompt(job.prompt, tuple(job.writers), job.shortened)
        return self._completion(
            request, prompt, sample.tokens, sample.logps, sample.stopped, self.version
        )
