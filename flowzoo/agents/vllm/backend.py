"""Back-ends of a vLLM engine: sequences in, tokens out, weights replaced in place.

All answer with `concurrent.futures.Future`: coroutines await replies, and the trainer, which has no
event loop, waits for them. Cancelling a future takes its request out of the engine.
"""

import asyncio
import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from flowzoo.agents.policy import Sampling
from flowzoo.agents.vllm.loop_thread import LoopThread
from flowzoo.envs.script import TokenSpan
from flowzoo.errors import FlowzooError, UsageError

Tensors = Mapping[str, Any]
"""Name, as in the checkpoint's safetensors -> torch tensor."""

CHANGED_WITHIN_S = 600.0
"""Seconds for an engine to load weights or an adapter and to prove it, or to sleep or wake.
"""


class EngineDeadError(FlowzooError, RuntimeError):
    """An engine failed and answers nothing any more. Restarting it may help."""


class EngineOutOfMemoryError(EngineDeadError):
    """An engine ran out of memory; the message says what to lower."""


class Adapter(NamedTuple):
    """A LoRA adapter under a name, number and folder that no other version ever had."""

    # vLLM keys cached prompts by the adapter's name, so a reused name would bring old ones back.

    name: str
    number: int
    folder: Path


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """One sequence to sample: prompt ids, seed of 63 bits, most new tokens, adapter or None."""

    prompt: tuple[int, ...]
    seed: int
    cap: int
    sampling: Sampling
    stop_ids: tuple[int, ...]
    adapter: Adapter | None = None
    shortened: int = 0
    """Tokens that the prompt lost because it was over its budget."""
    writers: Sequence[TokenSpan] = ()
    """Writers of the tokens of the prompt."""
    score: int | None = None
    """A token whose log-prob is returned as well; servers do not support it."""


class GenerationOutput(NamedTuple):
    """Result of a job; `cached` counts prompt tokens that were not read again."""

    tokens: tuple[int, ...]
    logps: tuple[float, ...]
    stopped: bool
    cached: int
    score: float | None = None
    """The log-prob that `GenerationRequest.score` asked for."""


class VLLMBackend(Protocol):
    """A running engine. Methods that change it block until the change is done.

    Weights and adapters may be changed only while no request is under way.
    """

    @property
    def alive(self) -> bool:
        """True if it still answers."""

    def submit(self, jobs: Sequence[GenerationRequest]) -> list[Future[GenerationOutput]]:
        """Queue `jobs` together, in their order."""

    def load_weights(self, tensors: Tensors, version: int) -> None:
        """Replace all weights and forget every cached prompt."""

    def load_adapter(self, adapter: Adapter) -> None:
        """Make an adapter known."""

    def drop_adapter(self, adapter: Adapter) -> None:
        """Forget an adapter."""

    def reset_cache(self) -> None:
        """Forget every cached prompt."""

    def sleep(self, level: int) -> None:
        """Release the GPU memory of cache and weights: 1 keeps the weights in RAM, 2 drops them."""

    def wake(self, what: Sequence[str] | None = None) -> None:
        """Take the memory back: `weights`, `kv_cache`, or both (None)."""

    def close(self) -> None:
        """End the engine and its processes; calling it twice is harmless."""


class LoopBackend:
    """Requests to an engine outside this process, each a coroutine on one more thread."""

    def __init__(self, name: str, max_pending: int) -> None:
        self._loop = LoopThread(name)
        self._slots = asyncio.Semaphore(max_pending)
        self._error: EngineDeadError | None = None
        self._under_way = 0

    @property
    def alive(self) -> bool:
        """See `VLLMBackend`."""
        return self._error is None

    def submit(self, jobs: Sequence[GenerationRequest]) -> list[Future[GenerationOutput]]:
        """See `VLLMBackend`."""
        return [self._loop.start(self._answer(job)) for job in jobs]

    async def _answer(self, job: GenerationRequest) -> GenerationOutput:
        self._check_alive()
        self._under_way += 1
        try:
            async with self._slots:
                return await self._sample(job)
        except asyncio.CancelledError:
            self._check_alive()  # a close cancels requests: report it instead of the cancellation
            raise
        finally:
            self._under_way -= 1

    async def _sample(self, job: GenerationRequest) -> GenerationOutput:
        raise NotImplementedError

    def _check_alive(self) -> None:
        if self._error is not None:
            raise type(self._error)(*self._error.args)


def check_idle(what: str, under_way: int) -> None:
    """Raise `UsageError` if requests are `under_way`, during which `what` cannot change."""
    if under_way:
        raise UsageError(
            f"{what} cannot change while {under_way} requests are under way: await or cancel them "
            "first."
        )


def sampling_fields(job: GenerationRequest) -> dict[str, Any]:
    """A job as the fields that vLLM's `SamplingParams` and its completions endpoint share."""
    sampling = job.sampling
    return {
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "top_k": sampling.top_k,
        "max_tokens": job.cap,
        "seed": job.seed,
        "stop_token_ids": list(job.stop_ids),
        "logprobs": 0,  # none but the sampled token's
    }


def engine_error(error: BaseException) -> EngineDeadError:
    """`error` of an engine as one of ours, with the remedy where it is about memory."""
    message = str(error).lower()
    memory = isinstance(error, MemoryError) or any(
        sign in message for sign in ("out of memory", "can't allocate memory", "cannot allocate")
    )
    text = f"{type(error).__name__}: {str(error).strip() or 'no message'}"
    if not memory:
        return EngineDeadError(f"the vLLM engine died: {text}")
    return EngineOutOfMemoryError(
        f"the vLLM engine ran out of memory ({text}): lower --max-batch, --engine-memory or "
        "--max-tokens, or give it a device of its own (--placement split)."
    )


def fail_all(futures: Sequence[Future[Any]], make: Callable[[], BaseException]) -> None:
    """Fail every pending future with a separate exception."""
    for future in futures:
        if not future.done() and future.set_running_or_notify_cancel():
            future.set_exception(make())


def shared_memory() -> str | None:
    """A folder in memory that the engine's processes see too; None: the usual temporary one."""
    return "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
