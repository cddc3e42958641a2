from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from flowzoo.sandbox import local, tier
from flowzoo.sandbox.box import engine as box_engine
from flowzoo.sandbox.box import run as box_run
from flowzoo.sandbox.docker import boxes
from flowzoo.sandbox.program import Limits
from flowzoo.sandbox.sandbox import Sandbox
from flowzoo.sandbox.tier import SandboxName, Tier, probe

PATIENCE = 120.0  # seconds on the wall that any process may be held up by a machine that stalls
FOLDER = Path(__file__).parent


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "every_tier: `make test` runs it on every backend")
    config.addinivalue_line("markers", "of_host: what it shows is no tier's doing; one runs it")


@pytest.fixture(autouse=True, scope="module")
def patient_host() -> Iterator[None]:
    """None of the host's own clocks turns a stall into a failure.

    Programs end by their CPU time, unless a test sets a time on the wall.
    """

    def wall(limits: Limits) -> float:
        return PATIENCE if limits.wall_s is None else limits.wall_s

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Limits, "wall", property(wall))
        patch.setattr(box_run, "SLACK", PATIENCE)
        patch.setattr(box_engine, "CLOSE_SECONDS", PATIENCE)
        patch.setattr(local, "EXIT_STATUS_SECONDS", PATIENCE)
        patch.setattr(local, "END_SECONDS", PATIENCE)
        patch.setattr(boxes, "GONE_SECONDS", PATIENCE)
        yield


@pytest.fixture
def replace_first(monkeypatch: pytest.MonkeyPatch) -> Callable[[int, bytes], list[box_run.Box]]:
    """`replace_first(count, source)`: the first jobs run `source`, whatever their program is.

    Returns the boxes that have got them; more come in as they do.
    """

    def replace(count: int, other: bytes) -> list[box_run.Box]:
        run_job, got = box_run.run_job, []

        async def run(box: box_run.Box, source: bytes, *rest: Any) -> list[box_run.CaseOutcome]:
            if len(got) < count:
                got.append(box)
                source = other
            return await run_job(box, source, *rest)

        monkeypatch.setattr(box_run, "run_job", run)
        return got

    return replace


@cache
def machine() -> Tier:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tier, "PING_TIMEOUT", 60)  # a stalled engine is no reason to skip its tests
        return probe()


def refusal(backend: str) -> str:
    """Why this machine cannot run a backend of the sandbox; empty if it can."""
    checks = machine().checks
    check = checks[backend] if backend in checks else tier.BACKENDS[backend].check()
    return "" if check.ok else f"{backend}: {check.detail}"


@cache
def first_tier() -> str:
    """The backend whose tables `make test` runs whole: the fastest here that confines programs."""
    return next(name for name in (*CONFINING, "unsafe") if not refusal(name))


# Backends that confine programs, the fastest first.
CONFINING = ("namespaces", "landlock", "docker")


# Fixtures whose parameter is a backend, or a box of one.
OF_BACKENDS = ("backend", "confining", "box", "walled")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """The tests of a file and a backend run in one process: they share its sandbox.

    What is marked `of_host` runs on the first backend alone. Where the file says
    `FIRST_TIER_ONLY = True`, what runs on several backends is run by `make test` on the first one,
    and on the others only what is marked `every_tier`.
    """
    elsewhere = []
    for item in items:
        if FOLDER not in item.path.parents or not isinstance(item, pytest.Function):
            continue
        chosen = getattr(item, "callspec", None)
        params = chosen.params if chosen is not None else {}
        backend = next((params[name] for name in OF_BACKENDS if name in params), None)
        if backend is None:
            continue
        if not item.get_closest_marker("xdist_group"):
            item.add_marker(pytest.mark.xdist_group(f"{item.path.stem}-{backend}"))
        if item.get_closest_marker("of_host") and backend != first_tier():
            elsewhere.append(item)
        whole = not getattr(item.module, "FIRST_TIER_ONLY", False)
        if not (whole or item.get_closest_marker("every_tier") or backend == first_tier()):
            item.add_marker(pytest.mark.full)
    if elsewhere:
        config.hook.pytest_deselected(items=elsewhere)
        items[:] = [item for item in items if item not in elsewhere]


def need(backend: str) -> str:
    """The backend; skips the test with the reason where this machine cannot run it."""
    reason = refusal(backend)
    if reason:
        pytest.skip(reason)
    return backend


@pytest.fixture(scope="module", params=["docker", "namespaces", "landlock", "unsafe"])
def backend(request: pytest.FixtureRequest) -> str:
    """Each backend of the sandbox that this machine can run."""
    return need(request.param)


@pytest.fixture(scope="session")
def sandbox_of() -> Iterator[Callable[[SandboxName], Sandbox]]:
    """One sandbox for each backend, with at most four programs at once; started when asked for."""
    with ExitStack() as stack:
        yield cache(lambda backend: stack.enter_context(Sandbox(backend, workers=4)))


@pytest.fixture(scope="module")
def sandbox(backend: SandboxName, sandbox_of: Callable[[SandboxName], Sandbox]) -> Sandbox:
    """The sandbox of a backend that the tests of a process share."""
    return sandbox_of(backend)


@pytest.fixture(scope="module")
def is_first(backend: str) -> bool:
    """True if it is the backend that meets whole tables."""
    return backend == first_tier()


@pytest.fixture(scope="module", params=["docker", "namespaces", "landlock"])
def confining(request: pytest.FixtureRequest) -> str:
    """Each backend that this machine can run and that confines programs."""
    return need(request.param)


@pytest.fixture(scope="module")
def docker() -> str:
    """The Docker backend, where an engine answers."""
    return need("docker")
