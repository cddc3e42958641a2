"""The sandbox: many untrusted programs at once, each with its tests, under enforced limits.

    sandbox = shared_sandbox("auto")
    verdicts = await sandbox.run(programs, tests)    # tests[i] belongs to programs[i]
    verdicts = sandbox.run_sync(programs, tests)     # from any thread

A backend asked for by name never falls back.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
import weakref
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module
from typing import Any, Literal

from flowzoo.errors import FlowzooError, UsageError, check_choice
from flowzoo.extras import remedy
from flowzoo.provenance import usable_cores
from flowzoo.sandbox.backends import Backend
from flowzoo.sandbox.box.box import Box, start_box
from flowzoo.sandbox.box.engine import Opener, ProgramBatch, SandboxEngine, SandboxError, follow
from flowzoo.sandbox.box.job import (
    ProgramJob,
    digest,
    digest_tests,
    job_key,
    make_limits,
    make_plans,
)
from flowzoo.sandbox.program import Limits, Program, Test, Verdict, check_packages, package_versions
from flowzoo.sandbox.tier import AUTO, BACKENDS, SandboxName, backend_spec

# Backends that `auto` tries, best first.
PREFERENCE = tuple(spec.name for spec in BACKENDS.values() if spec.auto)
REMEDY = (
    f"Start a Docker engine that this user may use ({remedy('docker')}), or allow user "
    "namespaces or Landlock; `flowzoo doctor` shows what is missing. The backend `unsafe` "
    "runs programs with this user's rights: only for programs you would run yourself."
)

_log = logging.getLogger("flowzoo.sandbox")
_logged: set[str] = set()


def make_backend(
    name: SandboxName, options: Mapping[str, Any], packages: tuple[str, ...] = ()
) -> Backend:
    """Make the backend of this name, whose boxes have these packages."""
    spec = backend_spec(name)
    module, _, attribute = spec.target.partition(":")
    backend_class = getattr(import_module(module), attribute)
    return backend_class(**spec.arguments, **options, packages=packages)


def make_opener(
    name: SandboxName, options: Mapping[str, Any], packages: tuple[str, ...] = ()
) -> Opener:
    """Make the function that opens the backend; it works once a box of it has become ready."""

    async def open_backend(boxes: set[Box]) -> tuple[Backend, Box]:
        refusals = []
        for tier in PREFERENCE if name == AUTO else [name]:
            backend = None
            try:
                backend = make_backend(tier, options, packages)
                box = await start_box(backend, boxes, once=True)
            except BaseException as error:
                if backend is not None:
                    backend.close()
                if isinstance(error, UsageError) or not isinstance(error, FlowzooError):
                    raise
                refusals.append(f"{tier}: {str(error).rstrip('.')}")
                continue
            _log_trust(backend, refusals)
            return backend, box
        raise UsageError(_describe_refusals(name, refusals))

    return open_backend


def _describe_refusals(name: SandboxName, refusals: list[str]) -> str:
    if name != AUTO:
        return (
            f"the sandbox backend {refusals[0]}. It was asked for by name, so no other is taken; "
            "`flowzoo doctor` shows what works here."
        )
    tried = "; ".join(refusals)
    return (
        f"no sandbox works on this machine, so untrusted code is not run. Tried {tried}. {REMEDY}"
    )


def _log_trust(backend: Backend, refusals: list[str]) -> None:
    if backend.tier not in _logged:
        _logged.add(backend.tier)
        spec = backend_spec(backend.tier)
        level = logging.INFO if spec.confines else logging.WARNING
        reason = f" (not taken: {'; '.join(refusals)})" if refusals else ""
        _log.log(level, "sandbox %s%s", backend.trust, reason)


# Boxes per usable core: most wait for a clock, not for a core, once some programs time out.
PER_CORE = 4
RECYCLE_AFTER = 1000

OnError = Literal["raise", "verdict"]


# Statuses that are kept; TLE depends on how busy the machine was, SE on the sandbox.
KEPT = frozenset({"AC", "WA", "RE", "CE", "MLE", "OLE"})


class VerdictCache:
    """The last verdicts by key; safe from any thread."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._known: OrderedDict[bytes, Verdict] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: bytes) -> Verdict | None:
        """Return the verdict for `key`, or None if it was evicted."""
        with self._lock:
            verdict = self._known.get(key)
            if verdict is not None:
                self._known.move_to_end(key)
            return verdict

    def put(self, key: bytes, verdict: Verdict) -> None:
        """Keep a verdict, unless its status depends on more than the program."""
        if verdict.status not in KEPT:
            return
        with self._lock:
            self._known[key] = verdict
            self._known.move_to_end(key)
            while len(self._known) > self._size:
                self._known.popitem(last=False)


class Sandbox:
    """Runs untrusted programs; nothing is started before the first use.

    Args:
        backend: a name, or `auto`: the first of docker, namespaces and landlock that works, else an
            error. A named one never falls back.
        workers: most programs in flight, each in its own box; None: four per usable core. Checks
            take as many boxes again for the tests' code.
        cache: most verdicts to keep for equal program, tests and limits; only for deterministic
            programs, since two equal sources that draw at random deserve two verdicts.
        recycle_after: programs after which a box is replaced.
        options: of the Docker backend (`image`, `runtime`, `user`, `parent`); only with
            backend="docker".
        packages: that programs and tests may import besides the standard library; see `PACKAGES`.

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
        check_choice("on_error", on_error, OnError)
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
        """Blocking version of `run`, for threads with or without an event loop."""
        check_choice("on_error", on_error, OnError)
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
        """Blocking version of `close`."""
        with self._lock:
            self.closed = True
            engine, self._engine = self._engine, None
        if engine is not None:
            engine.close()

    def __enter__(self) -> Sandbox:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close_sync()

    async def __aenter__(self) -> Sandbox:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    def _submit(self, batch: ProgramBatch) -> None:
        while not self._running().submit(batch):
            with self._lock:
                self._engine = None

    def _running(self) -> SandboxEngine:
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
        """Forget the boxes of the parent process after a fork."""
        if self._engine is not None:
            self._engine.forget()
            _abandoned.append(self._engine)
            self._engine = None
        if self._finalizer is not None:
            self._finalizer.detach()
            self._finalizer = None


def make_program_jobs(
    backend: Backend,
    programs: Sequence[Program],
    tests: Sequence[Sequence[Test]],
    limits: Limits | Sequence[Limits],
) -> list[ProgramJob]:
    """Programs to run, checked."""
    plans = make_plans(programs, tests)
    each = make_limits(limits, len(programs))
    for limit in set(each):
        backend.check(limit)
    for row, (plan, limit) in enumerate(zip(plans, each, strict=True)):
        if plan.longest > limit.output_bytes:
            raise UsageError(
                f"tests[{row}] expect {plan.longest} bytes of output, and output_bytes="
                f"{limit.output_bytes} lets no program print them: allow as many"
            )
    rows = zip(programs, plans, each, strict=True)
    return [ProgramJob(row, *rest) for row, rest in enumerate(rows)]


def rounds(
    cache: VerdictCache | None,
    works: list[ProgramJob],
    tests: Sequence[Sequence[Test]],
    stop: bool,
    verdicts: dict[int, Verdict],
) -> Iterator[ProgramBatch]:
    """The batches to run, one after the other, each once the one before is in `verdicts`."""
    # Without a cache it is one batch. With one, equal programs are run once, and what the cache
    # does not keep is run for each of them in a second batch.
    if cache is None:
        yield from _batches(works, stop)
        return
    keys = cache_keys(works, tests, stop)
    for once in (True, False):
        _recall(cache, keys, verdicts)
        todo = [work for work in works if work.row not in verdicts]
        if once:
            todo = list({keys[work.row]: work for work in reversed(todo)}.values())[::-1]
        yield from _batches(todo, stop)
        for work in todo:
            cache.put(keys[work.row], verdicts[work.row])


def finish(
    programs: Sequence[Program], by_index: dict[int, Verdict], on_error: OnError
) -> list[Verdict]:
    """The verdicts in order."""
    verdicts = [by_index[row] for row in range(len(programs))]
    lost = [row for row, verdict in enumerate(verdicts) if verdict.status == "SE"]
    if not lost or on_error == "verdict":
        return verdicts
    row, verdict = lost[0], verdicts[lost[0]]
    detail = next(case.detail for case in verdict.cases if case.status == "SE")
    raise SandboxError(
        f"the sandbox ({verdict.tier}) could not judge {len(lost)} of {len(verdicts)} programs; "
        f"the first is programs[{row}] (sha256 {digest(programs[row])}): {detail}. The other "
        "verdicts are in this error's `verdicts`. Run the programs again, look at `flowzoo sandbox "
        "check`, or pass on_error='verdict' and give such programs no score",
        tuple(verdicts),
    )


def _recall(cache: VerdictCache, keys: list[bytes], verdicts: dict[int, Verdict]) -> None:
    for row, key in enumerate(keys):
        if row not in verdicts and (cached := cache.get(key)) is not None:
            verdicts[row] = cached


def _batches(works: list[ProgramJob], stop: bool) -> Iterator[ProgramBatch]:
    if works:
        yield ProgramBatch(works, stop)


def cache_keys(
    works: Sequence[ProgramJob], tests: Sequence[Sequence[Test]], stop: bool
) -> list[bytes]:
    """Keys under which a cache keeps verdicts; a tests object that is shared is read once."""
    by_id = {id(program_tests): program_tests for program_tests in tests}
    digests = {key: digest_tests(program_tests) for key, program_tests in by_id.items()}
    return [
        job_key(work.program, digests[id(tests[work.row])], work.limits, stop) for work in works
    ]


_sandboxes: weakref.WeakSet[Sandbox] = weakref.WeakSet()
_shared: dict[tuple[Any, ...], Sandbox] = {}
_shared_lock = threading.Lock()
# Engines of the process this one was forked from: their loops must not be collected here.
_abandoned: list[SandboxEngine] = []


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
