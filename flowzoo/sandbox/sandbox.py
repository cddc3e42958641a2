"""The sandbox: many untrusted programs at once, each with its tests, under limits that bite.

    sandbox = shared_sandbox("auto")
    verdicts = await sandbox.run(programs, tests)    # tests[i] belongs to programs[i]
    verdicts = sandbox.run_sync(programs, tests)     # from any thread

| backend | a program runs in | chosen by `auto` |
|---|---|---|
| docker | a warm container | first, where an engine answers |
| namespaces | a process in new namespaces | next |
| landlock | a process under Landlock and seccomp | next |
| unsafe | a process with limits only | never: by name |

Where none of the three works `auto` raises; a backend asked for by name never falls back. Boxes
are started when programs come, kept warm and shared by all callers; programs of several callers
take turns. What a program does is a verdict and raises nothing. A failure of the sandbox itself is
never a verdict about the program: it is tried on a second box, and then `SandboxError` is raised
after all other programs of the batch have been judged.

There is no cache unless asked for: a program may be random, or depend on time, and then two equal
sources deserve two verdicts. `cache=10_000` is worth its memory where groups of samples repeat
themselves and the programs are known to be deterministic.
"""

from __future__ import annotations

import asyncio
import os
import threading
import weakref
from collections.abc import Mapping, Sequence
from typing import Any

from flowzoo.errors import UsageError, check_choice
from flowzoo.provenance import usable_cores
from flowzoo.sandbox.box.batch import ProgramBatch
from flowzoo.sandbox.box.engine import SandboxEngine, follow
from flowzoo.sandbox.box.program_batches import OnError, finish, make_program_jobs, rounds
from flowzoo.sandbox.choose import make_opener
from flowzoo.sandbox.packages import check_packages, package_versions
from flowzoo.sandbox.program import Limits, Program, Test, Verdict
from flowzoo.sandbox.tier import AUTO, BACKENDS, SandboxName, backend_spec
from flowzoo.sandbox.verdict_cache import VerdictCache

PER_CORE = 4
"""Boxes per usable core: most wait for a clock, not for a core, once some programs time out."""
RECYCLE_AFTER = 1000


class Sandbox:
    """Runs untrusted programs; nothing is started before the first use.

    Args:
        backend: which isolation; see the module.
        workers: most programs in flight, each in its own box; None: four per usable core. Checks
            take as many boxes again for the tests' code.
        cache: most verdicts to keep for equal program, tests and limits; see the module.
        recycle_after: programs after which a box is replaced.
        options: of the Docker backend (`image`, `runtime`, `user`, `parent`); only with
            backend="docker".
        packages: that programs and tests may import besides the standard library; see `packages`.

    Raises:
        UsageError: an unknown backend, a number out of range, options without docker, a package
            that is unknown or not installed.
    """

    def __init__(
        self,
        backend: SandboxName = "auto",
        workers: int | None = None,
        cache: int = 0,
        recycle_after: int = RECYCLE_AFTER,
        options: Mapping[str, Any] | None = None,
        packages: Sequence[str] = (),
    ) -> None:
        self.packages = check_packages(packages)
        spec = None if backend == AUTO else backend_spec(backend)
        if options and not (spec and spec.options):
            names = ", ".join(
                repr(spec_row.name) for spec_row in BACKENDS.values() if spec_row.options
            )
            raise UsageError(f"options are for backend={names}, not for {backend!r}")
        if (workers is not None and workers < 1) or recycle_after < 1 or cache < 0:
            raise UsageError(
                "workers and recycle_after must be at least 1 and cache at least 0; got "
                f"workers={workers}, recycle_after={recycle_after}, cache={cache}"
            )
        self.backend: SandboxName = backend
        self.workers = PER_CORE * usable_cores() if workers is None else workers
        self.closed = False
        self._options = dict(options or {})
        self._recycle_after = recycle_after
        self._cache = VerdictCache(cache) if cache else None
        self._engine: SandboxEngine | None = None
        self._finalizer: weakref.finalize | None = None
        self._lock = threading.Lock()
        _sandboxes.add(self)

    @property
    def tier(self) -> str:
        """The isolation that programs run under; starts the first box where none has run yet.

        Raises:
            UsageError: none works here.
        """
        return self._running().opened.result().tier

    @property
    def trust(self) -> str:
        """One line about how far a program is confined; as `tier`."""
        return self._running().opened.result().trust

    def describe(self) -> dict[str, Any]:
        """Plain facts for a run's record; as `tier`."""
        backend = self._running().opened.result()
        facts: dict[str, Any] = {
            "asked": self.backend,
            "tier": backend.tier,
            "trust": backend.trust,
        }
        if self.packages:
            facts["packages"] = package_versions(self.packages)
        return {**facts, "workers": self.workers, **backend.describe()}

    async def run(
        self,
        programs: Sequence[Program],
        tests: Sequence[Sequence[Test]],
        limits: Limits | Sequence[Limits] = Limits(),  # noqa: B008 - frozen
        stop: bool = False,
        on_error: OnError = "raise",
    ) -> list[Verdict]:
        """Judge programs; a verdict each, in their order. From any event loop.

        Cancelling drops the programs that still wait; those in a box run to their end there.

        Args:
            programs: untrusted.
            tests: `tests[i]` belongs to `programs[i]`, at least one.
            limits: for every run of a program; one for all, or one per program.
            stop: leave out a program's tests after its first failing one.
            on_error: what becomes of programs that the sandbox failed to judge twice: `raise`
                SandboxError when all others are judged, or a `verdict` with the status SE.

        Raises:
            UsageError: wrong arguments, a closed sandbox, no isolation on this machine, or limits
                that the tier cannot enforce.
            SandboxError: the sandbox failed; its `verdicts` are for the whole batch.
        """
        _check_on_error(on_error)
        backend = await asyncio.wrap_future(follow(self._running().opened))
        works = make_program_jobs(backend, programs, tests, limits)
        verdicts: dict[int, Verdict] = {}
        for batch in rounds(self._cache, works, tests, stop, verdicts):
            self._submit(batch)
            verdicts |= await asyncio.wrap_future(batch.future)
        return finish(programs, verdicts, on_error)

    def run_sync(
        self,
        programs: Sequence[Program],
        tests: Sequence[Sequence[Test]],
        limits: Limits | Sequence[Limits] = Limits(),  # noqa: B008 - frozen
        stop: bool = False,
        on_error: OnError = "raise",
    ) -> list[Verdict]:
        """As `run`, blocking this thread, in which a loop may be running."""
        _check_on_error(on_error)
        backend = self._running().opened.result()
        works = make_program_jobs(backend, programs, tests, limits)
        verdicts: dict[int, Verdict] = {}
        for batch in rounds(self._cache, works, tests, stop, verdicts):
            self._submit(batch)
            try:
                verdicts |= batch.future.result()
            except BaseException:
                batch.future.cancel()  # after a Ctrl-C, do not start the programs that still wait
                raise
        return finish(programs, verdicts, on_error)

    def box_pids(self) -> list[int]:
        """Process ids of the boxes that run now on this machine; a container has none here."""
        engine = self._engine
        if engine is None or engine.owner != os.getpid():
            return []
        pids = [getattr(box.wire, "pid", None) for box in engine.boxes()]
        return [pid for pid in pids if pid is not None]

    async def close(self) -> None:
        """End all boxes; what is under way raises SandboxError. A second call does nothing."""
        await asyncio.to_thread(self.close_sync)

    def close_sync(self) -> None:
        """As `close`, blocking this thread."""
        with self._lock:
            self.closed = True
            engine, self._engine = self._engine, None
        if engine is not None:
            engine.close()

    def __enter__(self) -> Sandbox:
        """The sandbox itself."""
        return self

    def __exit__(self, *exc: object) -> None:
        """Close it."""
        self.close_sync()

    async def __aenter__(self) -> Sandbox:
        """The sandbox itself."""
        return self

    async def __aexit__(self, *exc: object) -> None:
        """Close it."""
        await self.close()

    def _submit(self, batch: ProgramBatch) -> None:
        while not self._running().submit(batch):
            with self._lock:
                self._engine = None

    def _running(self) -> SandboxEngine:
        """The engine of this process, started where there is none."""
        with self._lock:
            if self.closed:
                raise UsageError("the sandbox is closed: make another one")
            if self._engine is not None and self._engine.owner != os.getpid():
                self._leave()  # a fork that Python did not see
            if self._engine is None or self._engine.ended:
                if self._finalizer is not None:
                    self._finalizer.detach()
                opener = make_opener(self.backend, self._options, self.packages)
                self._engine = SandboxEngine(opener, self.workers, self._recycle_after)
                # Also runs when the interpreter ends. It holds the engine, not the sandbox.
                self._finalizer = weakref.finalize(self, self._engine.close)
            return self._engine

    def _leave(self) -> None:
        """In a fork: forget the boxes of the parent."""
        if self._engine is not None:
            self._engine.forget()
            _abandoned.append(self._engine)
            self._engine = None
        if self._finalizer is not None:
            self._finalizer.detach()
            self._finalizer = None


def _check_on_error(on_error: OnError) -> None:
    check_choice("on_error", on_error, OnError)


_sandboxes: weakref.WeakSet[Sandbox] = weakref.WeakSet()
_shared: dict[tuple[Any, ...], Sandbox] = {}
_shared_lock = threading.Lock()
_abandoned: list[SandboxEngine] = []
"""Engines of the process this one was forked from: their loops must not be collected here."""


def shared_sandbox(
    backend: SandboxName = "auto",
    workers: int | None = None,
    cache: int = 0,
    recycle_after: int = RECYCLE_AFTER,
    options: Mapping[str, Any] | None = None,
    packages: Sequence[str] = (),
) -> Sandbox:
    """The sandbox of this process with these settings: one for all callers, closed at its end."""
    fresh = Sandbox(backend, workers, cache, recycle_after, options, packages)
    given = repr(sorted((options or {}).items()))
    key = backend, fresh.workers, cache, recycle_after, given, fresh.packages
    with _shared_lock:
        sandbox = _shared.get(key)
        if sandbox is None or sandbox.closed:
            sandbox = _shared[key] = fresh
        return sandbox


def _after_fork() -> None:
    global _shared_lock
    _shared_lock = threading.Lock()
    for sandbox in tuple(_sandboxes):
        sandbox._lock = threading.Lock()  # another thread of the parent may have held it
        sandbox._leave()


os.register_at_fork(after_in_child=_after_fork)
