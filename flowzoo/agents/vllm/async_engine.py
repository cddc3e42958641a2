"""A vLLM engine in separate processes: `AsyncLLM`, on an event loop of this process.

For split placement, where the engine has other GPUs than the learner.
"""

import contextlib
import logging
import os
import time
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from concurrent.futures import Future, wait
from typing import Any, TypeVar

import torch

from flowzoo.agents.vllm.backend import (
    CHANGED_WITHIN_S,
    Adapter,
    EngineDeadError,
    GenerationOutput,
    GenerationRequest,
    LoopBackend,
    Tensors,
    check_idle,
    engine_error,
)
from flowzoo.agents.vllm.convert import (
    AsyncEngineArgs,  # pyright: ignore[reportAttributeAccessIssue] # unknown without vLLM
    AsyncLLM,  # pyright: ignore[reportAttributeAccessIssue] # unknown without vLLM
    cannot_start,
    lora_request,
    on_cpu,
    quiet_start,
    read_output,
    sampling_params,
    tokens_prompt,
)
from flowzoo.agents.vllm.send import EngineCalls, WeightSender
from flowzoo.agents.vllm.settings import EngineSettings, cache_note, engine_fields
from flowzoo.errors import UsageError

T = TypeVar("T")

_log = logging.getLogger("flowzoo")
_LOOK_S = 1.0
_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


class AsyncLLMBackend(LoopBackend):
    """An engine in separate processes; see `flowzoo.agents.vllm.backend.VLLMBackend`."""

    def __init__(self, path: str, settings: EngineSettings) -> None:
        super().__init__("flowzoo-vllm-async", settings.max_pending)
        self._count = 0
        fields = engine_fields(path, settings, cpu=on_cpu())
        if note := cache_note(fields, settings):
            _log.warning("%s", note)
        try:
            with visible_devices(settings.devices), quiet_start():
                self._engine: AsyncLLM = self._loop.wait(_start(fields))
        except Exception as error:
            self._loop.close()
            raise cannot_start(path, error) from error
        self._sender = WeightSender(
            settings.weight_transfer,
            EngineCalls(self._engine, self._call),
            _DTYPES[settings.dtype],
        )
        owner = os.getpid()
        self._call(lambda: self._engine.collective_rpc("flowzoo_end_with", args=(owner,)))

    @property
    def alive(self) -> bool:
        """See `VLLMBackend`."""
        return super().alive and not self._engine.errored

    def load_weights(self, tensors: Tensors, version: int) -> None:
        """See `VLLMBackend`. They are sent in the engine's number format."""
        check_idle("the engine's weights", self._under_way)
        self._check_alive()
        try:
            self._await(self._sender.send(tensors))
        except EngineDeadError:
            self._sender.close()
            raise
        self.reset_cache()
        self._call(lambda: self._engine.update_weight_version(str(version)))

    def load_adapter(self, adapter: Adapter) -> None:
        """See `VLLMBackend`."""
        self._call(lambda: self._engine.add_lora(lora_request(adapter)))

    def drop_adapter(self, adapter: Adapter) -> None:
        """See `VLLMBackend`."""
        self._call(lambda: self._engine.remove_lora(adapter.number))

    def reset_cache(self) -> None:
        """See `VLLMBackend`."""
        if not self._call(lambda: self._engine.reset_prefix_cache()):
            raise UsageError("the prefix cache is in use: await or cancel all requests first.")

    def sleep(self, level: int) -> None:
        """See `VLLMBackend`."""
        check_idle("the engine's memory", self._under_way)
        self._call(lambda: self._engine.sleep(level))

    def wake(self, what: Sequence[str] | None = None) -> None:
        """See `VLLMBackend`."""
        self._call(lambda: self._engine.wake_up(list(what) if what else None))

    def close(self) -> None:
        """See `VLLMBackend`."""
        if self._error is None:
            self._error = EngineDeadError("the vLLM engine was closed")
        self._sender.close()
        with contextlib.suppress(Exception):
            self._engine.shutdown()
        self._loop.close()
        self.__dict__.pop("_engine", None)  # its finalizer fails when the interpreter ends

    def _call(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        self._check_alive()
        return self._await(self._loop.start(work()))

    def _await(self, future: Future[T]) -> T:
        # vLLM leaves such calls unanswered if the engine's process dies.
        deadline = time.monotonic() + CHANGED_WITHIN_S
        while not wait([future], _LOOK_S).done:
            late = time.monotonic() > deadline
            if self.alive and not late:
                continue
            future.cancel()
            if self._error is None:
                why = f"it has not answered in {CHANGED_WITHIN_S:g} s" if late else "it is gone"
                self._error = EngineDeadError(f"the vLLM engine died: {why}")
            self._check_alive()
        try:
            return future.result()
        except EngineDeadError:
            raise
        except Exception as error:
            self._error = engine_error(error)
            raise self._error from error

    async def _sample(self, job: GenerationRequest) -> GenerationOutput:
        self._count += 1
        adapter = lora_request(job.adapter) if job.adapter else None
        try:
            async for output in self._engine.generate(
                tokens_prompt(job), sampling_params(job), str(self._count), lora_request=adapter
            ):
                if output.finished:
                    return read_output(output)
            raise EngineDeadError("the vLLM engine ended a reply early")
        except EngineDeadError:
            raise
        except Exception as error:
            self._error = engine_error(error)
            raise self._error from error


async def _start(fields: Mapping[str, object]) -> AsyncLLM:
    return AsyncLLM.from_engine_args(AsyncEngineArgs(**fields))


@contextlib.contextmanager
def visible_devices(devices: str) -> Iterator[None]:
    """Let processes started inside see the GPUs `devices` only; empty: no change."""
    before = os.environ.get("CUDA_VISIBLE_DEVICES")
    if devices:
        os.environ["CUDA_VISIBLE_DEVICES"] = devices
    try:
        yield
    finally:
        if devices and before is None:
            del os.environ["CUDA_VISIBLE_DEVICES"]
        elif devices and before is not None:
            os.environ["CUDA_VISIBLE_DEVICES"] = before
