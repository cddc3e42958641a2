"""The worker pool: every end of a job, the jobs around it, and no process that stays behind."""

import gc
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest
from processes import is_running, wait_for

import flowzoo
from flowzoo.errors import UsageError
from flowzoo.sandbox import PoolError, WorkerPool, shared_pool
from flowzoo.sandbox.pool import MOST_WALL

pytestmark = pytest.mark.xdist_group("pool")  # one pool for most of its tests

SETUP = "pool_handlers:setup"
DEADLINE = 0.2  # for jobs that never end
PATIENT = 60.0  # for jobs that must have their answer, however the machine stalls
HERE = Path(__file__).parent
ROOT = Path(flowzoo.__file__).parents[1]


@pytest.fixture(scope="module", autouse=True)
def _handlers_importable() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(HERE))
        yield


@pytest.fixture(scope="module")
def pool(_handlers_importable: None) -> Iterator[WorkerPool]:
    with closing(WorkerPool(SETUP, workers=2, memory_bytes=2**28)) as pool:
        yield pool


def worker_of(pool: WorkerPool) -> int:
    """Process id of a worker."""
    return int(pool.run([b"parent"], PATIENT)[0].value)


def test_a_worker_that_dies_within_a_reply_is_replaced():
    with closing(WorkerPool(SETUP, workers=1)) as pool:
        pool.run([b"echo:a"], PATIENT)
        process = pool._free[0].process
        stream, long = process.stdout, b"x" * 2**20
        assert stream is not None

        class Dying:
            def read(self, size: int) -> bytes:
                if size == len(long):  # the worker waits: a pipe holds less
                    process.kill()
                    process.wait()
                    process.stdout = stream
                return stream.read(size)

        process.stdout = Dying()  # type: ignore[assignment]
        assert [job.value for job in pool.run([b"echo:" + long], PATIENT)] == [long]


BAD = {
    "timeout": ("hang", "regex", "stop", "sleep:600"),
    "memory": ("grow", "hog"),
    "crashed": (
        "abort", "segv", "kill", "die:a value of which half is written", "exit:0", "exit:137",
        "sys.exit", "interrupt", "raise", "unprintable", "recursion", "str", "oversize", "close",
        "worker", "no such word",
    ),
}  # fmt: skip


@pytest.mark.parametrize(
    ("job", "status"), [(job.encode(), status) for status, jobs in BAD.items() for job in jobs]
)
def test_a_bad_job_gets_its_status_and_the_others_their_answers(pool, job, status):
    others = [b"echo:%d" % number for number in range(4)]
    deadline = DEADLINE if status == "timeout" else PATIENT
    with ThreadPoolExecutor() as threads:
        bad = threads.submit(pool.run, [job], deadline)
        results = pool.run(others, PATIENT)
        assert bad.result()[0].status == status
    results += pool.run(others, PATIENT)
    assert [b"echo:" + result.value for result in results] == others * 2


@pytest.mark.parametrize(
    ("job", "status", "deadline", "stays"),
    [
        (b"hang", "timeout", DEADLINE, False),
        (b"sleep:60", "timeout", 0.02, False),
        (b"grow", "memory", PATIENT, True),
        (b"raise", "crashed", PATIENT, True),
        (b"sys.exit", "crashed", PATIENT, True),
        (b"exit:0", "crashed", PATIENT, False),
    ],
)
def test_a_worker_that_answers_itself_ends_at_a_limit(job, status, deadline, stays):
    with closing(WorkerPool(SETUP, workers=1, memory_bytes=2**28, fresh=False)) as pool:
        results = pool.run([b"echo:a", b"echo:b"], PATIENT)
        assert [result.value for result in results] == [b"a", b"b"]
        worker = pool._free[0].process.pid
        assert pool.run([job], deadline)[0].status == status
        assert pool.run([b"echo:c"], PATIENT)[0].value == b"c"
        assert (pool._free[0].process.pid == worker) == stays


def test_the_exception_is_the_value(pool):
    assert pool.run([b"raise"], PATIENT)[0].value == b"ValueError: the wrong kind of grin"


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux reports processor time")
def test_time_without_a_processor_counts_a_tenth(pool):
    assert pool.run([b"sleep:1.2"], 1.0)[0].status == "ok"
    assert pool.run([b"sleep:%f" % (20 * MOST_WALL * 0.05)], 0.05)[0].status == "timeout"


def test_threads_share_a_pool_and_results_keep_their_order(pool):
    batches = [[b"echo:%d %d" % (row, number) for number in range(40)] for row in range(6)]
    batches[0].insert(7, b"echo:" + bytes(range(256)) * 20_000)
    with ThreadPoolExecutor(6) as threads:
        answers = list(threads.map(lambda jobs: pool.run(jobs, PATIENT), batches))
    assert [[b"echo:" + result.value for result in results] for results in answers] == batches


def test_a_worker_sees_no_secret_its_noise_goes_nowhere_and_hashes_repeat(monkeypatch, capfd):
    monkeypatch.setenv("SOME_TOKEN", "secret")
    hashes = set()
    for _ in range(2):
        with closing(WorkerPool(SETUP, workers=1, env={"FLOWZOO_TEST": "1"})) as pool:
            jobs = [b"environment", b"print", b"hash:word"]
            names, noise, number = pool.run(jobs, PATIENT)
        hashes.add(number.value)
        assert b"SOME_TOKEN" not in names.value
        assert {b"FLOWZOO_TEST", b"PYTHONHASHSEED"} <= set(names.value.split())
        assert noise.status == "ok"
    assert len(hashes) == 1
    assert "noise" not in "".join(capfd.readouterr())


@pytest.mark.parametrize(
    ("setup", "message"),
    [
        ("no_such_module:setup", "ModuleNotFoundError"),
        ("pool_handlers:setup_that_raises", "LookupError: no grammar for this"),
        ("pool_handlers:setup_that_exits", "the process died"),
    ],
)
def test_a_setup_that_fails_raises_each_time(setup, message):
    with closing(WorkerPool(setup)) as pool:
        for _ in range(2):
            with pytest.raises(PoolError, match=message):
                pool.run([b"echo:x"] * 3, PATIENT)


def test_invalid_arguments_raise_at_once(pool):
    for deadline in (0.0, float("nan"), 1e6):
        with pytest.raises(UsageError, match="`deadline` must be in"):
            pool.run([b"echo:x"], deadline)
    for jobs in (["echo:x"], [bytes(2**26 + 1)], b"echo:x"):
        with pytest.raises(UsageError, match="`jobs` must be bytes objects"):
            pool.run(jobs, PATIENT)  # type: ignore[arg-type]
    assert pool.run([], PATIENT) == []


def test_a_shared_pool_is_one_per_settings_and_starts_nothing():
    first = shared_pool(SETUP, name="a")
    assert shared_pool(SETUP, name="a") is first
    assert shared_pool(SETUP, name="b") is not first
    script = "import flowzoo.sandbox, subprocess; print(len(subprocess._active))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("0\n", "")


def test_close_leaves_no_process_and_no_descriptor():
    gc.collect()
    before = len(os.listdir("/dev/fd"))
    for _ in range(2):
        with closing(WorkerPool(SETUP, workers=1)) as pool:
            pool.run([b"hang", b"exit", b"echo:x"], DEADLINE)
            worker = worker_of(pool)
            assert is_running(worker)
        assert not is_running(worker)
    pool = WorkerPool(SETUP, workers=1)
    worker = worker_of(pool)
    del pool
    gc.collect()
    wait_for(lambda: not is_running(worker))
    assert len(os.listdir("/dev/fd")) <= before


def test_a_process_that_a_job_forked_dies_with_it(pool, tmp_path):
    path = tmp_path / "pid"
    (result,) = pool.run([b"fork:" + os.fsencode(path)], DEADLINE)
    assert result.status == "timeout"
    wait_for(lambda: not is_running(int(path.read_text())))


def test_a_worker_killed_from_outside_costs_no_job_its_answer(tmp_path):
    gate = tmp_path / "gate"
    with closing(WorkerPool(SETUP, workers=1)) as pool, ThreadPoolExecutor() as threads:
        worker = worker_of(pool)
        results = threads.submit(pool.run, [b"wait:" + os.fsencode(gate)], PATIENT)
        try:
            wait_for(Path(f"{gate}.waits").exists)
            os.kill(worker, signal.SIGKILL)
        finally:
            gate.touch()
        assert results.result()[0].status == "ok"
        assert worker_of(pool) != worker


def test_a_fork_of_the_caller_starts_its_own():
    with closing(WorkerPool(SETUP, workers=1)) as pool:
        worker = worker_of(pool)
        read, write = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                os.write(write, b"%d" % worker_of(pool))
            finally:
                os._exit(0)
        os.close(write)
        with open(read, "rb") as stream:
            other = int(stream.read())
        assert os.waitpid(child, 0)[1] == 0
        assert other != worker
        wait_for(lambda: not is_running(other))  # though the child closed nothing
        assert worker_of(pool) == worker


SCRIPT = """
import os, sys, threading, time
from flowzoo.sandbox import WorkerPool

pool = WorkerPool("pool_handlers:setup", workers=1)
worker = pool.run([b"parent"], 60)[0].value.decode()
if sys.argv[1] == "hang":
    threading.Thread(target=pool.run, args=([b"hang"], 600), daemon=True).start()
    survivor = os.fork()  # it inherits our descriptors, and outlives us
    if survivor == 0:
        time.sleep(600)
    print(survivor, end=" ")
print(worker, flush=True)
if sys.argv[1] == "hang":
    time.sleep(600)
"""


def test_no_worker_outlives_its_caller():
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(HERE)])}
    command = [sys.executable, "-c", SCRIPT]
    done = subprocess.run(
        [*command, "leave"], capture_output=True, text=True, env=environment, timeout=120
    )
    assert (done.returncode, done.stderr) == (0, "")
    wait_for(lambda: not is_running(int(done.stdout)))
    with subprocess.Popen(
        [*command, "hang"], stdout=subprocess.PIPE, text=True, env=environment
    ) as caller:
        assert caller.stdout is not None
        survivor, worker = [int(part) for part in caller.stdout.readline().split()]
        try:
            assert is_running(worker)
            caller.kill()
            caller.wait()
            wait_for(lambda: not is_running(worker))
            assert is_running(survivor)
        finally:
            os.kill(survivor, signal.SIGKILL)
