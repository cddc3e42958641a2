"""The worker pool and its processes: none is left behind, and any may be killed."""

from __future__ import annotations

import gc
import multiprocessing
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import flowzoo
from flowzoo.sandbox import WorkerPool

SETUP = "pool_handlers:setup"
PATIENT = 120.0
"""For jobs that must have their answer, however the machine stalls."""
HERE = Path(__file__).parent
ROOT = Path(flowzoo.__file__).parents[1]


@pytest.fixture(scope="module", autouse=True)
def _handlers_importable() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(HERE))
        yield


@pytest.fixture
def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(HERE)])}


def runs(pid: int) -> bool:
    """Whether the process exists and is no zombie."""
    done = subprocess.run(["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True)
    return bool(done.stdout.strip()) and not done.stdout.strip().startswith("Z")


def open_files() -> int:
    return len(os.listdir("/dev/fd"))


def processes_of(pool: WorkerPool) -> list[int]:
    """The workers and their zygote."""
    zygote = int(pool.submit_batch([b"parent"])[0].value)
    return [zygote, *pool.worker_pids()]


def test_close_leaves_no_process_and_no_descriptor(soon: Callable[..., bool]) -> None:
    gc.collect()
    before = open_files()
    for _ in range(3):
        with WorkerPool(SETUP, workers=2, deadline=PATIENT) as pool:
            pool.submit_batch([b"hang", b"exit", b"echo:x"], deadline=0.2)
            pids = processes_of(pool)
            assert len(pids) >= 2
            assert all(map(runs, pids))
        assert not runs(pids[0])  # at once: close waits
        assert soon(lambda pids=pids: not any(map(runs, pids)))  # killed, if not yet dead
    assert open_files() <= before


def test_a_forgotten_pool_ends_with_its_last_reference(soon: Callable[..., bool]) -> None:
    pool = WorkerPool(SETUP, workers=1, deadline=PATIENT)
    pids = processes_of(pool)
    del pool
    gc.collect()
    assert soon(lambda: not any(map(runs, pids)))


def test_killed_workers_leave_no_zombies(soon: Callable[..., bool]) -> None:
    with WorkerPool(SETUP, workers=1, deadline=PATIENT) as pool:
        zygote = processes_of(pool)[0]
        pids = []
        for _ in range(5):
            pids += pool.worker_pids()
            pool.submit_batch([b"exit", b"echo:x"])

        def has_exited() -> bool:
            listing = subprocess.run(
                ["ps", "-o", "pid=", "-p", ",".join(map(str, pids))], capture_output=True, text=True
            )
            return not listing.stdout.split()

        assert len(set(pids)) == 5
        assert soon(has_exited)
        assert runs(zygote)


def test_what_a_worker_forked_dies_with_it(soon: Callable[..., bool]) -> None:
    with WorkerPool(SETUP, workers=1, deadline=PATIENT) as pool:
        child = int(pool.submit_batch([b"child"])[0].value)
        assert runs(child)
        assert pool.submit_batch([b"hang"], deadline=0.2)[0].status == "timeout"
        assert soon(lambda: not runs(child))


def test_a_killed_idle_worker_is_replaced(soon: Callable[..., bool]) -> None:
    with WorkerPool(SETUP, workers=1, deadline=PATIENT) as pool:
        pids = processes_of(pool)
        os.kill(pids[1], signal.SIGKILL)
        assert soon(lambda: pool.worker_pids() not in ([], pids[1:]))  # without waiting for a job
        assert [result.status for result in pool.submit_batch([b"echo:x"] * 3)] == ["ok"] * 3
        assert processes_of(pool)[1] != pids[1]


def test_a_killed_zygote_is_replaced_and_costs_no_job_its_answer(
    tmp_path: Path, soon: Callable[..., bool]
) -> None:
    gates = tmp_path / "1", tmp_path / "2"
    jobs = [b"wait:%s" % os.fsencode(gate) for gate in gates]
    with WorkerPool(SETUP, workers=2, deadline=PATIENT) as pool:
        zygote = processes_of(pool)[0]
        with ThreadPoolExecutor() as threads:
            results = threads.submit(pool.submit_batch, [*jobs, b"echo:x"])
            try:
                assert soon(lambda: all(Path(f"{gate}.waits").exists() for gate in gates))
                old = [zygote, *pool.worker_pids()]
                assert len(old) == 3
                os.kill(zygote, signal.SIGKILL)
                assert soon(lambda: not any(map(runs, old)))
            finally:
                for gate in gates:
                    gate.touch()
            assert [result.status for result in results.result()] == ["ok"] * 3
        assert not set(processes_of(pool)) & set(old)


def test_a_job_that_kills_the_zygote_is_charged_the_second_time() -> None:
    # One worker: of several, another's job may be charged too where it stalls both times.
    with WorkerPool(SETUP, workers=1, deadline=PATIENT) as pool:
        results = pool.submit_batch([b"zygote", b"echo:a", b"echo:b"])
        assert [result.status for result in results] == ["crashed", "ok", "ok"]


def test_a_stopped_zygote_does_not_stop_the_workers_that_run() -> None:
    with WorkerPool(SETUP, workers=1, deadline=PATIENT) as pool:
        zygote = processes_of(pool)[0]
        os.kill(zygote, signal.SIGSTOP)
        assert pool.submit_batch([b"echo:x"])[0].status == "ok"
    assert not runs(zygote)


def test_a_fork_of_the_caller_starts_its_own(soon: Callable[..., bool]) -> None:
    with WorkerPool(SETUP, workers=1, deadline=PATIENT) as pool:
        ours = processes_of(pool)
        read, write = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                theirs = processes_of(pool)
                os.write(write, b"%d %d" % (theirs[0], theirs[1]))
            finally:
                os._exit(0)
        os.close(write)
        with open(read, "rb") as stream:
            theirs = [int(word) for word in stream.read().split()]
        assert os.waitpid(child, 0)[1] == 0
        assert len(theirs) == 2
        assert not set(theirs) & set(ours)
        assert soon(lambda: not any(map(runs, theirs)))  # though it ended without a word
        assert processes_of(pool) == ours


def test_inside_a_daemonic_process() -> None:
    context = multiprocessing.get_context("spawn")
    from pool_handlers import use_in_daemon  # type: ignore[import-not-found]

    answers = context.Queue()
    process = context.Process(target=use_in_daemon, args=(answers,), daemon=True)
    process.start()
    assert answers.get(timeout=120) == [("timeout", b""), ("ok", b"from a daemon")]
    process.join(120)
    assert process.exitcode == 0


SCRIPT = """
import os, sys, threading, time
from flowzoo.sandbox import WorkerPool

pool = WorkerPool("pool_handlers:setup", workers=2, deadline=600)
zygote = pool.submit_batch([b"parent"])[0].value.decode()
if sys.argv[1] == "hang":
    threading.Thread(target=pool.submit_batch, args=([b"hang"] * 4,), daemon=True).start()
    while len(pool.worker_pids()) < 2:
        time.sleep(0.01)
    survivor = os.fork()  # it inherits our descriptors, and outlives us
    if survivor == 0:
        time.sleep(600)
    print(survivor, end=" ")
print(zygote, *pool.worker_pids(), flush=True)
if sys.argv[1] == "hang":
    time.sleep(600)
"""


def test_nothing_outlives_the_interpreter(
    environment: dict[str, str], soon: Callable[..., bool]
) -> None:
    command = [sys.executable, "-c", SCRIPT, "leave"]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=120)
    assert (done.returncode, done.stderr) == (0, "")
    zygote, *workers = [int(word) for word in done.stdout.split()]
    assert workers
    assert not runs(zygote)
    assert soon(lambda: not any(map(runs, workers)))


def test_nothing_outlives_a_killed_parent(
    environment: dict[str, str], soon: Callable[..., bool]
) -> None:
    command = [sys.executable, "-c", SCRIPT, "hang"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as parent:
        assert parent.stdout is not None
        survivor, *pids = [int(word) for word in parent.stdout.readline().split()]
        try:
            assert len(pids) == 3
            assert all(map(runs, pids))
            parent.kill()
            parent.wait()
            assert soon(lambda: not any(map(runs, pids)))
            assert runs(survivor)
        finally:
            os.kill(survivor, signal.SIGKILL)


INNER_TESTS = """
import pytest
from flowzoo.sandbox import shared_pool

@pytest.mark.parametrize("number", range(4))
def test_pool(number):
    pool = shared_pool("pool_handlers:setup", workers=1, deadline=60)
    [hang] = pool.submit_batch([b"hang"], deadline=0.3)
    [echo] = pool.submit_batch([b"echo:%d" % number])
    assert (hang.status, echo.value) == ("timeout", b"%d" % number)
"""


@pytest.mark.full
def test_under_xdist(tmp_path: Path, environment: dict[str, str]) -> None:
    (tmp_path / "test_inner.py").write_text(INNER_TESTS)
    environment["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"  # the others only cost time here
    command = [sys.executable, "-m", "pytest", "-q", "-p", "xdist.plugin", "-n", "2", "."]
    done = subprocess.run(
        command, capture_output=True, text=True, env=environment, cwd=tmp_path, timeout=300
    )
    assert "4 passed" in done.stdout, done.stdout + done.stderr
