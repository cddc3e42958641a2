"""A vLLM engine inside this process, on a separate thread.

The thread does between two steps what was asked, in order of arrival. Jobs submitted together enter
the engine together, so equal submissions give equal batches, hence equal floats.
"""

import contextlib
import gc
import logging
import queue
import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any, NamedTuple

import torch

from flowzoo.agents.vllm.backend import (
    Adapter,
    EngineDeadError,
    GenerationOutput,
    GenerationRequest,
    Tensors,
    check_idle,
    engine_error,
    fail_all,
)
from flowzoo.agents.vllm.convert import (
    EngineArgs,  # pyright: ignore[reportAttributeAccessIssue] # unknown without vLLM
    LLMEngine,  # pyright: ignore[reportAttributeAccessIssue] # unknown without vLLM
    cannot_start,
    lora_request,
    on_cpu,
    quiet_start,
    read_output,
    sampling_params,
    tokens_prompt,
)
from flowzoo.agents.vllm.settings import EngineSettings, cache_note, engine_fields
from flowzoo.errors import UsageError

_log = logging.getLogger("flowzoo")
_TURN = threading.RLock()
"""Held whenever vLLM computes: the running forward pass and the process groups are globals of its
modules, and two engines at once would read one another's."""

_OPEN: set[int] = set()
"""The engines of this process, by id; only the last one to go may end the process groups."""


class _ThreadTask(NamedTuple):
    """Work between two steps, and the futures that fail if it is never done."""

    do: Callable[[], None]
    futures: Sequence[Future[Any]]


class InProcessBackend:
    """An engine of this process; see `flowzoo.agents.vllm.backend.VLLMBackend`."""

    def __init__(self, path: str, settings: EngineSettings) -> None:
        self._path, self._settings = path, settings
        self._inbox: queue.SimpleQueue[_ThreadTask | None] = queue.SimpleQueue()
        self._backlog: deque[tuple[GenerationRequest, Future[GenerationOutput]]] = deque()
        self._active: dict[str, Future[GenerationOutput]] = {}
        self._count = 0
        self._engine: Any = None
        self._error: BaseException | None = None
        self._lock = threading.Lock()  # nothing enters the inbox after its last reading
        started: Future[None] = Future()
        self._thread = threading.Thread(
            target=self._run, args=(started,), name="flowzoo-vllm", daemon=True
        )
        self._thread.start()
        started.result()

    @property
    def alive(self) -> bool:
        """See `VLLMBackend`."""
        return self._error is None

    def submit(self, jobs: Sequence[GenerationRequest]) -> list[Future[GenerationOutput]]:
        """See `VLLMBackend`."""
        futures: list[Future[GenerationOutput]] = [Future() for _ in jobs]
        for future in futures:
            future.add_done_callback(self._on_done)
        batch = list(zip(jobs, futures, strict=True))
        self._post(lambda: self._backlog.extend(batch), futures)
        return futures

    def load_weights(self, tensors: Tensors, version: int) -> None:
        """See `VLLMBackend`."""

        def load() -> None:
            self._check_idle("weights")
            self._engine.collective_rpc("start_weight_update")
            self._engine.collective_rpc("update_weights", args=({"tensors": tensors},))
            self._engine.collective_rpc("finish_weight_update")
            self._forget_prompts()
            self._engine.set_weight_version(str(version))

        self._call(load)

    def load_adapter(self, adapter: Adapter) -> None:
        """See `VLLMBackend`."""
        self._call(lambda: self._engine.add_lora(lora_request(adapter)))

    def drop_adapter(self, adapter: Adapter) -> None:
        """See `VLLMBackend`."""
        self._call(lambda: self._engine.remove_lora(adapter.number))

    def reset_cache(self) -> None:
        """See `VLLMBackend`."""
        self._call(self._forget_prompts)

    def sleep(self, level: int) -> None:
        """See `VLLMBackend`."""

        def rest() -> None:
            self._check_idle("memory")
            self._engine.sleep(level)

        self._call(rest)

    def wake(self, what: Sequence[str] | None = None) -> None:
        """See `VLLMBackend`."""
        self._call(lambda: self._engine.wake_up(list(what) if what else None))

    def close(self) -> None:
        """See `VLLMBackend`."""
        with self._lock:
            if self._error is None:
                self._error = EngineDeadError("the vLLM engine was closed")
                self._inbox.put(None)
        self._thread.join()

    # -- any thread ----------------------------------------------------------------------------

    def _post(self, work: Callable[[], None], futures: Sequence[Future[Any]]) -> None:
        with self._lock:
            if self._error is None:
                self._inbox.put(_ThreadTask(work, futures))
                return
        fail_all(futures, self._failure)

    def _call(self, work: Callable[[], None]) -> None:
        done: Future[None] = Future()

        def run() -> None:
            try:
                work()
            except UsageError as error:
                done.set_exception(error)
            except BaseException as error:
                done.set_exception(engine_error(error))
                raise
            else:
                done.set_result(None)

        self._post(run, [done])
        done.result()

    def _on_done(self, future: Future[GenerationOutput]) -> None:
        if future.cancelled():
            self._post(lambda: self._abort(future), [])

    def _failure(self) -> EngineDeadError:
        error = self._error
        if isinstance(error, EngineDeadError):
            return type(error)(*error.args)
        return engine_error(error or RuntimeError("it was closed"))

    # -- the engine's thread -------------------------------------------------------------------

    def _run(self, started: Future[None]) -> None:
        try:
            fields = engine_fields(self._path, self._settings, cpu=on_cpu())
            if note := cache_note(fields, self._settings):
                _log.warning("%s", note)
            with _TURN, quiet_start():
                self._engine = LLMEngine.from_engine_args(EngineArgs(**fields))
                _OPEN.add(id(self))
        except BaseException as error:  # passed on to the caller, who waits for it
            self._error = error
            started.set_exception(cannot_start(self._path, error))
            return
        started.set_result(None)
        try:
            while self._read_inbox():
                with _TURN:
                    self._step()
        except BaseException as error:  # fail all requests, so that no caller waits for ever
            with self._lock:
                self._error = engine_error(error)
        with self._lock:
            while not self._inbox.empty():
                unread = self._inbox.get()
                fail_all(unread.futures if unread else (), self._failure)
        fail_all([future for _, future in self._backlog], self._failure)
        fail_all(list(self._active.values()), self._failure)
        self._backlog.clear()
        self._active.clear()
        self._release()

    def _read_inbox(self) -> bool:
        # Waits while there is nothing to compute. False: the end.
        while True:
            if self._inbox.empty() and (self._active or self._backlog):
                return True
            work = self._inbox.get()
            if work is None:
                return False
            with _TURN:
                work.do()

    def _step(self) -> None:
        room = self._settings.max_pending - len(self._active)
        while self._backlog and room > 0:
            room -= self._enter(*self._backlog[0])
            self._backlog.popleft()  # after it entered: what vLLM refuses must still fail
        for output in self._engine.step() if self._active else ():
            future = self._active.pop(output.request_id, None)
            if future is not None and future.set_running_or_notify_cancel():
                future.set_result(read_output(output))

    def _enter(self, job: GenerationRequest, future: Future[GenerationOutput]) -> int:
        if future.cancelled():
            return 0
        self._count += 1
        key, adapter = str(self._count), lora_request(job.adapter) if job.adapter else None
        self._engine.add_request(
            key, tokens_prompt(job), sampling_params(job), lora_request=adapter
        )
        self._active[key] = future
        return 1

    def _abort(self, future: Future[GenerationOutput]) -> None:
        for key in [key for key, other in self._active.items() if other is future]:
            self._engine.abort_request([key])
            del self._active[key]

    def _check_idle(self, what: str) -> None:
        check_idle(f"the engine's {what}", len(self._active) + len(self._backlog))

    def _forget_prompts(self) -> None:
        if not self._engine.reset_prefix_cache():
            raise UsageError("the prefix cache is in use: await or cancel all requests first.")

    def _release(self) -> None:
        # Before anything else is started, the memory is given back.
        engine, self._engine = self._engine, None
        with _TURN:
            _OPEN.discard(id(self))
            with contextlib.suppress(Exception):
                if _OPEN:
                    # Its own end of life would take the process groups from the other engines.
                    engine.engine_core._finalizer.detach()
                    engine.model_executor.shutdown()
                    engine.engine_core.engine_core.scheduler.shutdown()
                else:
                    engine.engine_core.shutdown()
            del engine
            gc.collect()
            if torch.cuda.is_available():
                torch.cuda.empty_cache()
