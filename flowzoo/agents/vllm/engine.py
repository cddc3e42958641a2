"""A vLLM engine with the state that outlives its process: model files, adapters, version.

It can be restarted after a crash; the trainer then syncs it again, because a fresh engine has the
weights of the model's files.
"""

import asyncio
import itertools
import os
import shutil
import tempfile
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

from flowzoo.agents.identity import ModelTexts, adapter_base, load_texts
from flowzoo.agents.model_files import check_integrity, model_source
from flowzoo.agents.traits import EngineDType, context_of
from flowzoo.agents.vllm.backend import (
    Adapter,
    EngineDeadError,
    GenerationOutput,
    GenerationRequest,
    Tensors,
    VLLMBackend,
    shared_memory,
)
from flowzoo.agents.vllm.settings import CPU_BLOCK, EngineSettings, cache_bytes
from flowzoo.errors import UsageError, unknown


class WeightsGate:
    """Admits requests of any event loop while open; closed, it waits until none is under way.

    Requests that come while it is closed wait until it opens, so that every reply has one version
    of the weights, and the next turn of the same episode may have a newer one.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._closed = False
        self._under_way = 0
        self._waiting: list[Future[None]] = []

    @asynccontextmanager
    async def request(self) -> AsyncIterator[None]:
        """Hold off changes of the weights inside; entering waits for one that goes on."""
        while (opening := self._enter()) is not None:
            await asyncio.wrap_future(opening)
        try:
            yield
        finally:
            with self._changed:
                self._under_way -= 1
                self._changed.notify_all()

    @contextmanager
    def closed(self, within_s: float) -> Iterator[bool]:
        """Let no request begin inside; true if none is under way after `within_s` seconds."""
        with self._changed:
            self._closed = True
            done = self._changed.wait_for(lambda: not self._under_way, within_s)
        try:
            yield done
        finally:
            with self._changed:
                self._closed = False
                waiting, self._waiting = self._waiting, []
            for opening in waiting:
                # A cancelled request does not wait any more.
                if opening.set_running_or_notify_cancel():
                    opening.set_result(None)

    def _enter(self) -> Future[None] | None:
        with self._changed:
            if not self._closed:
                self._under_way += 1
                return None
            opening: Future[None] = Future()
            self._waiting.append(opening)
            return opening


_NUMBERS = itertools.count(1)
"""Numbers of adapters: vLLM needs them unique in an engine, so they are unique in the process."""


def open_backend(path: str, settings: EngineSettings) -> VLLMBackend:
    """The back-end that `settings.placement` names, started."""
    if settings.placement == "split":
        from flowzoo.agents.vllm.async_engine import AsyncLLMBackend

        return AsyncLLMBackend(path, settings)
    from flowzoo.agents.vllm.thread import InProcessBackend

    return InProcessBackend(path, settings)


class VLLMEngine:
    """An engine that any number of `VLLMPolicy` objects may share.

    `version` counts the full-weight loads; `adapters` maps a policy's name to its newest adapter;
    `gate` keeps requests of policies out while weights change.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        open_backend: Callable[[], VLLMBackend],
        *,
        context: int = 0,
        dtype: EngineDType | None = None,
        check: Callable[[], object] | None = None,
    ) -> None:
        """Read tokenizer and end tokens of the model at `path`, and start the back-end.

        `open_backend` is called again by `restart`. `context` 0 is the model's own limit; `dtype`
        None is the number format of a server. `check` refuses files of another model than the
        learner's, whenever a back-end has read them.
        """
        self.path, self.dtype = model_source(path), dtype
        texts = read_texts(self.path)
        self.tokenizer, self.stop_ids = texts.tokenizer, texts.ends
        limit = context_of(texts.config) or 2**62
        self.context = min(context or limit, limit)
        self.version = 0
        self.gate = WeightsGate()
        self.adapters: dict[str, Adapter] = {}
        self._open, self._check = open_backend, check
        self._files = tempfile.TemporaryDirectory(prefix="flowzoo-adapters-", dir=shared_memory())
        self.backend: VLLMBackend = self._start()

    @classmethod
    def local(
        cls,
        path: str | os.PathLike[str],
        settings: EngineSettings | None = None,
        check: Callable[[], object] | None = None,
    ) -> "VLLMEngine":
        """An engine on this machine, started; for `check` see the constructor."""
        chosen = settings or EngineSettings()
        source = model_source(path)
        config = read_texts(source).config
        limit = context_of(config) or chosen.max_context
        context = min(chosen.max_context or limit, limit)
        needed = cache_bytes(config, chosen.dtype, context, CPU_BLOCK)
        chosen = replace(chosen, max_context=context, sequence_bytes=needed)
        return cls(
            source,
            lambda: open_backend(source, chosen),
            context=context,
            dtype=chosen.dtype,
            check=check,
        )

    def submit(self, jobs: Sequence[GenerationRequest]) -> list[Future[GenerationOutput]]:
        """Queue `jobs` together; see `VLLMBackend.submit`."""
        return self.backend.submit(jobs)

    def load_weights(self, tensors: Tensors) -> int:
        """Replace all weights (names as in the model's files) and return the new version."""
        self.backend.load_weights(tensors, self.version + 1)
        self.version += 1
        return self.version

    def load_adapter(self, name: str, save: Callable[[Path], None]) -> Adapter:
        """Replace the adapter `name` by a new version, whose files `save` writes into a folder."""
        number = next(_NUMBERS)
        adapter = Adapter(f"{name}@{number}", number, Path(self._files.name) / f"{name}@{number}")
        adapter.folder.mkdir()
        save(adapter.folder)
        self.backend.load_adapter(adapter)
        old = self.adapters.get(name)
        self.adapters[name] = adapter
        if old is not None:
            self.backend.drop_adapter(old)
            shutil.rmtree(old.folder)
        return adapter

    def adapter(self, name: str) -> Adapter:
        """The newest adapter of a policy."""
        adapter = self.adapters.get(name)
        if adapter is None:
            raise unknown("adapter", name, self.adapters)
        return adapter

    def give_up(self, why: str) -> NoReturn:
        """End a back-end that neither answers nor dies."""
        self.backend.close()
        raise EngineDeadError(f"the vLLM engine died: {why}")

    def restart(self) -> None:
        """Start a fresh back-end in place of a dead one, which has no weights or adapters yet."""
        self.backend.close()
        for adapter in self.adapters.values():
            shutil.rmtree(adapter.folder, ignore_errors=True)
        self.adapters = {}
        self.backend = self._start()

    def close(self) -> None:
        """End the back-end and remove the adapters' files; calling it twice is harmless."""
        self.backend.close()
        self._files.cleanup()

    def _start(self) -> VLLMBackend:
        backend = self._open()
        try:
            if self._check is not None:
                self._check()
        except BaseException:
            backend.close()
            raise
        return backend


def read_texts(path: str) -> ModelTexts:
    """Tokenizer and configurations of the whole model at `path`."""
    if adapter_base(Path(path)) is not None:
        raise UsageError(
            f"{path} holds an adapter, and vLLM needs the whole model: write it with `flowzoo "
            "export RUN --policy NAME --merge --out FOLDER`, or choose --engine transformers."
        )
    check_integrity(Path(path))
    return load_texts(Path(path))
