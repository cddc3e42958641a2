"""The sandbox: many untrusted programs at once, each with its tests, under enforced limits.

    sandbox = shared_sandbox("auto")
    verdicts = await sandbox.run(programs, tests)    # tests[i] belongs to programs[i]
    verdicts = sandbox.run_sync(programs, tests)     # from any thread

A named backend never falls back to another one.
"""

import asyncio
import logging
import os
import threading
import weakref
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from importlib import import_module
from typing import Any, Literal

from flowzoo.errors import FlowzooError, UsageError, check_choice
from flowzoo.extras import remedy
from flowzoo.provenance import usable_cores
from flowzoo.sandbox.backends import Backend
from flowzoo.sandbox.box.box import Box, start_box
from flowzoo.sandbox.box.engine import ProgramBatch, SandboxEngine, SandboxError, follow
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
    "namespaces or Landlock; `flowzoo doctor` shows what is missing. The backend `unsafe` runs "
    "programs with this user's rights: use it only for trusted programs."
)

_log = logging.getLogger("flowzoo.sandbox")
_logged: set[str] = set()


def make_backend(
    name: SandboxName, options: Mapping[str, object], packages: tuple[str, ...] = ()
) -> Backend:
    """Make the named backend; its boxes have these packages."""
    spec = backend_spec(name)
    module, _, attribute = spec.target.partition(":")
    backend_class = getattr(import_module(module), attribute)
    return backend_class(**spec.arguments, **options, packages=packages)


async def open_backend(
    name: SandboxName, options: Mapping[str, object], packages: tuple[str, ...], boxes: set[Box]
) -> tuple[Backend, Box]:
    """Open the backend; it works when a first box is ready."""
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


def _describe_refusals(name: SandboxName, refusals: list[str]) -> str:
    if name != AUTO:
        return (
            f"the sandbox backend {refusals[0]}. A named backend has no fallback; `flowzoo doctor` "
            "shows the available ones."
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


# Boxes per usable core: with timeouts, most boxes wait for a clock, not for a core.
PER_CORE = 4

OnError = Literal["raise", "verdict"]


# Cached statuses; TLE depends on the machine's load, SE on the sandbox.
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
        """Store a verdict if its status depends only on the program."""
        if verdict.status not in KEPT:
            return
        with self._lock:
            self._known[key] = verdict
            self._known.move_to_end(key)
            while len(self._known) > self._size:
                self._known.popitem(last=False)


class Sandbox:
    """Runs untrusted programs; starts lazily at the first use.

    Args:
        backend: a name, or `auto`: the first available of docker, namespaces and landlock, else an
            error. A named one never falls back.
        workers: most concurrent programs, each in its own box; None: four per usable core. Checks
            need as many additional boxes for the tests' code.
        cache: most cached verdicts, keyed by program, tests and limits; only for deterministic
            programs, since a random program may get different verdicts.
        options: options of the Docker backend (`image`, `runtime`, `user`, `parent`); only with
            backend="docker".
        packages: packages that programs and tests may import in addition to the standard library;
            see `PACKAGES`.

    Raises:
        UsageError: an unknown backend, a number out of range, options without docker, a package
            that is unknown or not installed.
    """

    def __init__(
        self,
        backend: SandboxName = "auto",
        workers: int | None = None,
        cache: int = 0,
        options: Mapping[str, object] | None = None,
        packages: Sequence[str] = (),
    ) -> None:
        self.packages = check_packages(packages)
        spec = None if backend == AUTO else backend_spec(backend)
        if options and not (spec and spec.options):
            names = ", ".join(
                repr(spec_row.name) for spec_row in BACKENDS.values() if spec_row.options
            )
            raise UsageError(f"options are for backend={names}, not for {backend!r}")
        if (workers is not None and workers < 1) or cache < 0:
            raise UsageError(
                "workers must be at least 1 and cache at least 0; got "
                f"workers={workers}, cache={cache}"
            )
        self.backend: SandboxName = backend
        self.workers = PER_CORE * usable_cores() if workers is None else workers
        self.closed = False
        self._options = dict(options or {})
        self._cache = VerdictCache(cache) if cache else None
        self._engine: SandboxEngine | None = None
        self._finalizer: weakref.finalize | None = None
        self._lock = threading.Lock()
        _sandboxes.add(self)

    @property
    def tier(self) -> str:
        """Isolation of the programs; starts the first box if none has been started.

        Raises:
            UsageError: no isolation is available.
        """
        return self._running().opened.result().tier

    @property
    def trust(self) -> str:
        """Description of the isolation in one line; starts a box like `tier`."""
        return self._running().opened.result().trust

    def describe(self) -> dict[str, Any]:
        """Plain facts for a run's record; starts a box like `tier`."""
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
        """Test programs; returns a verdict per program, in order. Works in any event loop.

        Cancellation drops queued programs; running ones continue to their end.

        Args:
            programs: untrusted.
            tests: `tests[i]` are the tests of `programs[i]`, at least one.
            limits: limits of every run; one for all programs, or one per program.
            stop: skip the tests after the first failed one of a program.
            on_error: handling of programs that the sandbox failed to test twice: `raise`
                SandboxError after all others are tested, or return a `verdict` with the status SE.

        Raises:
            UsageError: invalid arguments, a closed sandbox, no available isolation, or limits that
                the tier cannot enforce.
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
                batch.future.cancel()  # after Ctrl-C, do not start queued programs
                raise
        return finish(programs, verdicts, on_error)

    def box_pids(self) -> list[int]:
        """Process ids of the running boxes on this machine; containers have none here."""
        engine = self._engine
        if engine is None or engine.owner != os.getpid():
            return []
        pids = [getattr(box.wire, "pid", None) for box in engine.boxes()]
        return [pid for pid in pids if pid is not None]

    def close_sync(self) -> None:
        """End all boxes; running batches raise SandboxError. A second call is a no-op."""
        with self._lock:
            self.closed = True
            engine, self._engine = self._engine, None
        if engine is not None:
            engine.close()

    def __enter__(self) -> "Sandbox":
        return self

    def __exit__(self, *exc: object) -> None:
        self.close_sync()

    def _submit(self, batch: ProgramBatch) -> None:
        while not self._running().submit(batch):
            pass

    def _running(self) -> SandboxEngine:
        with self._lock:
            if self.closed:
                raise UsageError("the sandbox is closed: create a new one")
            if self._engine is not None and self._engine.owner != os.getpid():
                self._leave()  # a fork outside Python
            if self._engine is None or self._engine.ended:
                if self._finalizer is not None:
                    self._finalizer.detach()
                opener = partial(open_backend, self.backend, self._options, self.packages)
                self._engine = SandboxEngine(opener, self.workers)
                # Also runs at interpreter exit. It references the engine, not the sandbox.
                self._finalizer = weakref.finalize(self, self._engine.close)
            return self._engine

    def _leave(self) -> None:
        """Forget the parent's boxes after a fork."""
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
    """Check the arguments and make the jobs."""
    plans = make_plans(programs, tests)
    each = make_limits(limits, len(programs))
    for limit in set(each):
        backend.check(limit)
    for row, (plan, limit) in enumerate(zip(plans, each, strict=True)):
        if plan.longest > limit.output_bytes:
            raise UsageError(
                f"tests[{row}] expect {plan.longest} bytes of output, more than output_bytes="
                f"{limit.output_bytes}: raise the limit"
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
    """Yield the batches to run; each needs the verdicts of the previous one."""
    # Without a cache there is one batch. With a cache, equal programs are run once; if the verdict
    # is not cacheable, each of them is run in a second batch.
    if cache is None:
        yield from _batches(works, stop)
        return
    keys = cache_keys(works, tests, stop)
    for once in (True, False):
        for row, key in enumerate(keys):
            if row not in verdicts and (cached := cache.get(key)) is not None:
                verdicts[row] = cached
        todo = [work for work in works if work.row not in verdicts]
        if once:
            todo = list({keys[work.row]: work for work in reversed(todo)}.values())[::-1]
        yield from _batches(todo, stop)
        for work in todo:
            cache.put(keys[work.row], verdicts[work.row])


def finish(
    programs: Sequence[Program], by_index: dict[int, Verdict], on_error: OnError
) -> list[Verdict]:
    """Return the verdicts in order."""
    verdicts = [by_index[row] for row in range(len(programs))]
    lost = [row for row, verdict in enumerate(verdicts) if verdict.status == "SE"]
    if not lost or on_error == "verdict":
        return verdicts
    row, verdict = lost[0], verdicts[lost[0]]
    detail = next(case.detail for case in verdict.cases if case.status == "SE")
    raise SandboxError(
        f"the sandbox ({verdict.tier}) could not judge {len(lost)} of {len(verdicts)} programs; "
        f"the first is programs[{row}] (sha256 {digest(programs[row])}): {detail}. The other "
        "verdicts are in this error's `verdicts`. Run the programs again, use `flowzoo sandbox "
        "check`, or pass on_error='verdict' and do not score such programs",
        tuple(verdicts),
    )


def _batches(works: list[ProgramJob], stop: bool) -> Iterator[ProgramBatch]:
    if works:
        yield ProgramBatch(works, stop)


def cache_keys(
    works: Sequence[ProgramJob], tests: Sequence[Sequence[Test]], stop: bool
) -> list[bytes]:
    """Cache keys of verdicts; a shared tests object is hashed once."""
    by_id = {id(program_tests): program_tests for program_tests in tests}
    digests = {key: digest_tests(program_tests) for key, program_tests in by_id.items()}
    return [
        job_key(work.program, digests[id(tests[work.row])], work.limits, stop) for work in works
    ]


_sandboxes: weakref.WeakSet[Sandbox] = weakref.WeakSet()
_shared: dict[tuple[Any, ...], Sandbox] = {}
_shared_lock = threading.Lock()
# Engines of the parent process: their loops must not be garbage collected here.
_abandoned: list[SandboxEngine] = []


def shared_sandbox(
    backend: SandboxName = "auto",
    workers: int | None = None,
    cache: int = 0,
    packages: Sequence[str] = (),
) -> Sandbox:
    """Return the shared sandbox of this process with these settings, closed at exit."""
    fresh = Sandbox(backend, workers, cache, packages=packages)
    key = backend, fresh.workers, cache, fresh.packages
    with _shared_lock:
        sandbox = _shared.get(key)
        if sandbox is None or sandbox.closed:
            sandbox = _shared[key] = fresh
        return sandbox


def _after_fork() -> None:
    global _shared_lock
    _shared_lock = threading.Lock()
    for sandbox in tuple(_sandboxes):
        sandbox._lock = threading.Lock()  # a thread of the parent may have held the lock
        if sandbox._cache is not None:
            sandbox._cache._lock = threading.Lock()
        sandbox._leave()


os.register_at_fork(after_in_child=_after_fork)
