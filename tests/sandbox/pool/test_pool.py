"""The worker pool: every way a job can end, and that the jobs around it do not notice."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from flowzoo.errors import UsageError
from flowzoo.sandbox import PoolError, WorkerPool, shared_pool
from flowzoo.sandbox.pool import channel as pool_channel
from flowzoo.sandbox.pool import dispatch as pool_dispatch
from flowzoo.sandbox.pool.channel import WorkerConnection
from flowzoo.sandbox.pool.dispatch import AHEAD_JOBS, Dispatcher
from flowzoo.sandbox.pool.protocol import HELLO, WorkerReply

pytestmark = pytest.mark.xdist_group("pool")  # one pool for most of its tests

SETUP = "pool_handlers:setup"
DEADLINE = 0.3
"""For jobs that never end."""
PATIENT = 120.0
"""For jobs that must have their answer, however the machine stalls; and CPU time for all, so that
what never ends does so by its deadline alone."""


@pytest.fixture(scope="module", autouse=True)
def _handlers_importable() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(Path(__file__).parent))
        yield


@pytest.fixture(scope="module")
def pool(_handlers_importable: None) -> Iterator[WorkerPool]:
    with WorkerPool(
        SETUP, workers=2, deadline=PATIENT, memory_bytes=2**28, cpu_seconds=600
    ) as pool:
        yield pool


def statuses(pool: WorkerPool, *jobs: bytes) -> list[str]:
    return [result.status for result in pool.submit_batch(jobs)]


@pytest.mark.parametrize(
    ("job", "status"),
    [
        (b"hang", "timeout"),
        (b"regex", "timeout"),
        (b"sleep:600", "timeout"),
        (b"stop", "timeout"),
        (b"fork", "timeout"),
        (b"grow", "memory"),
        (b"hog", "memory"),
        (b"abort", "crashed"),
        (b"segv", "crashed"),
        (b"kill", "crashed"),
        (b"exit:0", "crashed"),
        (b"exit:137", "crashed"),
        (b"sys.exit", "crashed"),
        (b"interrupt", "crashed"),
        (b"raise", "crashed"),
        (b"unprintable", "crashed"),
        (b"recursion", "crashed"),
        (b"str", "crashed"),
        (b"oversize", "crashed"),
        (b"close", "crashed"),
        (b"garbage", "crashed"),
        (b"half", "crashed"),
        (b"forged", "crashed"),
        (b"hello", "crashed"),
        (b"long", "crashed"),
        (b"no such word", "crashed"),
    ],
)
def test_a_bad_job_gets_its_status_and_the_others_their_answers(
    pool: WorkerPool, job: bytes, status: str
) -> None:
    before = [b"echo:before %d" % number for number in range(5)]
    after = [b"echo:after %d" % number for number in range(5)]
    if status == "timeout":  # in a batch of its own: the others may need longer than its deadline
        with ThreadPoolExecutor() as threads:
            first = threads.submit(pool.submit_batch, before)
            bad = threads.submit(pool.submit_batch, [job], DEADLINE)
            results = [*first.result(), *bad.result(), *pool.submit_batch(after)]
    else:
        results = pool.submit_batch([*before, job, *after])
    assert results[5].status == status
    assert results[5].seconds < PATIENT
    others = results[:5] + results[6:]
    assert [result.status for result in others] == ["ok"] * 10
    assert [b"echo:" + result.value for result in others] == before + after


def test_a_timeout_comes_at_the_deadline_and_a_batch_may_set_its_own(pool: WorkerPool) -> None:
    (result,) = pool.submit_batch([b"hang"], deadline=0.15)
    assert result.status == "timeout"
    assert 0.15 <= result.seconds < PATIENT  # not the deadline of the pool
    with WorkerPool(SETUP, workers=1, deadline=0.15) as hasty:
        (result,) = hasty.submit_batch([b"sleep:0.6"], deadline=PATIENT)
        assert result.status == "ok"
        assert result.seconds >= 0.6


def test_waiting_for_a_processor_is_not_charged(monkeypatch: pytest.MonkeyPatch) -> None:
    with WorkerPool(SETUP, workers=1, deadline=0.2, cpu_seconds=600) as pool:
        pool.submit_batch([b"echo:warm"], deadline=PATIENT)
        # All that passes, its worker waits.
        monkeypatch.setattr(pool_channel, "runqueue_wait", lambda pid: time.monotonic())
        monkeypatch.setattr(pool_dispatch, "runqueue_wait", lambda pid: time.monotonic())
        monkeypatch.setattr(pool_channel, "MOST_WAITING", 10 * PATIENT)
        assert statuses(pool, b"sleep:0.6") == ["ok"]
        # What never ends has an end all the same.
        monkeypatch.setattr(pool_channel, "MOST_WAITING", 3)
        (hang,) = pool.submit_batch([b"hang"])
        assert hang.status == "timeout"
        assert hang.seconds >= 3 * 0.2


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only Linux says who waited")
def test_what_waits_for_a_processor_is_seen(soon: Callable[..., bool]) -> None:
    loop = [sys.executable, "-c", "while True: pass"]
    rivals = [subprocess.Popen(loop) for _ in range(2)]
    try:
        assert pool_channel.runqueue_wait(rivals[0].pid) < PATIENT
        for rival in rivals:  # both on one processor
            os.sched_setaffinity(rival.pid, {min(os.sched_getaffinity(0))})
        assert soon(lambda: pool_channel.runqueue_wait(rivals[0].pid) > 0.2)
    finally:
        for rival in rivals:
            rival.kill()
            rival.wait()
    assert pool_channel.runqueue_wait(rivals[0].pid) == 0.0


class Clock:
    """Stands for the module `time`: its seconds pass only when a test says so."""

    now = 0.0
    sleep = staticmethod(time.sleep)

    def monotonic(self) -> float:
        return self.now


def test_waiting_for_a_worker_is_not_charged(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, accept = Clock(), Dispatcher._accept

    def late(dispatcher: Dispatcher, channel: WorkerConnection, reply: WorkerReply) -> bool:
        clock.now += 0.6 * PATIENT * (reply.kind != HELLO)  # what each job took
        return accept(dispatcher, channel, reply)

    monkeypatch.setattr(pool_channel, "time", clock)
    monkeypatch.setattr(pool_dispatch, "time", clock)
    monkeypatch.setattr(Dispatcher, "_accept", late)
    with WorkerPool(SETUP, workers=1, deadline=PATIENT) as pool:
        assert statuses(pool, *[b"echo:x"] * 40) == ["ok"] * 40
    assert clock.now > 20 * PATIENT


def test_a_dispatcher_that_was_held_up_charges_nobody(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, soon: Callable[..., bool]
) -> None:
    gate, clock, watch = tmp_path / "gate", Clock(), Dispatcher._watch
    held_up: list[bool] = []

    def late(dispatcher: Dispatcher) -> None:
        for channel in dispatcher.channels.values():
            if channel.queue and len(held_up) == 1:  # again, until the answer is there
                channel.waited = 0.0
                gate.touch()
                assert soon(channel.has_input)
            if channel.queue and len(held_up) < 2:
                held_up.append(True)
                clock.now += 2 * DEADLINE
        watch(dispatcher)

    monkeypatch.setattr(pool_channel, "time", clock)
    monkeypatch.setattr(pool_dispatch, "time", clock)
    monkeypatch.setattr(pool_channel, "runqueue_wait", lambda pid: 0.0)
    monkeypatch.setattr(pool_dispatch, "STUCK_SECONDS", 0.0)
    monkeypatch.setattr(Dispatcher, "_watch", late)
    with WorkerPool(SETUP, workers=1, deadline=DEADLINE) as pool:
        assert statuses(pool, b"wait:%s" % os.fsencode(gate)) == ["ok"]
    assert len(held_up) == 2


def test_jobs_sent_ahead_do_not_wait_behind_one_that_hangs(
    tmp_path: Path, soon: Callable[..., bool]
) -> None:
    gate, behind = tmp_path / "gate", tmp_path / "behind"
    with WorkerPool(SETUP, workers=2, deadline=PATIENT) as pool, ThreadPoolExecutor() as threads:
        pool.submit_batch([b"echo:fast"] * 500)  # from now on many are sent ahead
        jobs = [b"wait:%s" % os.fsencode(gate), b"touch:%s" % os.fsencode(behind)]
        slow = threads.submit(pool.submit_batch, [*jobs, *[b"echo:x"] * 60])
        try:
            assert soon(behind.exists)  # sent ahead to the worker that waits, and given back
            assert statuses(pool, *[b"echo:y"] * 20) == ["ok"] * 20
            assert not slow.done()
        finally:
            gate.touch()
        assert [result.status for result in slow.result()] == ["ok"] * 62


def test_the_reason_of_an_exception_is_told(pool: WorkerPool) -> None:
    (result,) = pool.submit_batch([b"raise"])
    assert result.value == b"ValueError: the wrong kind of grin"


def test_results_keep_the_order_and_the_throughput_is_shown(
    pool: WorkerPool, record_property: pytest.RecordProperty
) -> None:
    jobs = [b"echo:%d" % number for number in range(10_000)]
    begun = time.perf_counter()
    results = pool.submit_batch(jobs)
    microseconds = (time.perf_counter() - begun) / len(jobs) * 1e6
    assert {result.status for result in results} == {"ok"}
    assert [b"echo:" + result.value for result in results] == jobs
    record_property("microseconds_per_job", microseconds)
    print(f"{microseconds:.1f} µs a job")  # noqa: T201


def test_many_hangs_among_good_jobs(pool: WorkerPool) -> None:
    jobs = [b"echo:%d" % number for number in range(294)]
    with ThreadPoolExecutor() as threads:
        hangs = threads.submit(pool.submit_batch, [b"hang"] * 6, 0.1)
        results = pool.submit_batch(jobs)
        assert {(result.status, result.value) for result in hangs.result()} == {("timeout", b"")}
    assert [(result.status, b"echo:" + result.value) for result in results] == [
        ("ok", job) for job in jobs
    ]


def test_threads_share_a_pool(pool: WorkerPool) -> None:
    answers: dict[int, list[bytes]] = {}

    def use(thread: int) -> None:
        jobs = [b"echo:%d %d" % (thread, number) for number in range(200)]
        answers[thread] = [result.value for result in pool.submit_batch(jobs)]

    threads = [threading.Thread(target=use, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers == {
        thread: [b"%d %d" % (thread, number) for number in range(200)] for thread in range(8)
    }


async def test_a_coroutine_waits_without_blocking_the_loop(
    pool: WorkerPool, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"

    async def beat() -> None:
        for _ in range(10):
            await asyncio.sleep(0.01)
        gate.touch()  # nothing else ends the job that waits

    heart = asyncio.create_task(beat())
    batches = [pool.asubmit_batch([b"echo:%d" % number, b"echo:x"]) for number in range(50)]
    hanging = pool.asubmit_batch([b"hang"], DEADLINE)
    waiting = pool.asubmit_batch([b"wait:%s" % os.fsencode(gate)])
    waited, hung, *quick = await asyncio.gather(waiting, hanging, *batches)
    await heart
    assert (waited[0].status, hung[0].status) == ("ok", "timeout")
    assert [results[0].value for results in quick] == [b"%d" % number for number in range(50)]


async def test_cancelling_drops_the_jobs_that_wait(
    tmp_path: Path, soon: Callable[..., bool]
) -> None:
    gate, marks = tmp_path / "gate", tmp_path / "marks"
    marks.touch()
    with WorkerPool(SETUP, workers=1, deadline=PATIENT) as pool:
        await pool.asubmit_batch([b"echo:warm"])
        jobs = [b"wait:%s" % os.fsencode(gate), *[b"mark:%s" % os.fsencode(marks)] * 500]
        doomed = asyncio.create_task(pool.asubmit_batch(jobs))
        assert await asyncio.to_thread(soon, Path(f"{gate}.waits").exists)
        doomed.cancel()
        with pytest.raises(asyncio.CancelledError):
            await doomed
        gate.touch()
        # More than are left of the cancelled batch, which would take turns with this one.
        await pool.asubmit_batch([b"echo:next"] * 1000)
        assert marks.stat().st_size <= AHEAD_JOBS  # those that the worker had already


def test_big_payloads_and_big_values(pool: WorkerPool) -> None:
    big = bytes(range(256)) * 20_000  # 5 MB
    results = pool.submit_batch([b"echo:" + big, b"size:" + big, b"make:5000000"] * 2)
    values = [result.value for result in results]
    assert values == [big, b"%d" % len(big), b"m" * 5_000_000] * 2


def test_the_resident_memory_can_be_watched(tmp_path: Path, soon: Callable[..., bool]) -> None:
    gate = tmp_path / "gate"
    with WorkerPool(SETUP, workers=1, deadline=PATIENT) as pool, ThreadPoolExecutor() as threads:
        pool.submit_batch([b"echo:warm"])
        before = pool.rss_bytes()
        held = threads.submit(pool.submit_batch, [b"hold:100000000:%s" % os.fsencode(gate)])
        try:
            assert soon(Path(f"{gate}.waits").exists)
            during = pool.rss_bytes()
        finally:
            gate.touch()
        assert held.result()[0].value == b"100000000"
    assert 50e6 < during - before < 200e6


def test_cpu_time_is_a_second_net() -> None:
    jobs = [b"echo:%d" % number for number in range(50)]
    with WorkerPool(SETUP, workers=1, deadline=PATIENT, cpu_seconds=1) as pool:
        results = pool.submit_batch([*jobs, b"hang", *jobs])
    hang = results.pop(50)
    assert hang.status == "timeout"
    assert 1 <= hang.seconds < PATIENT  # not by its deadline
    assert [(result.status, b"echo:" + result.value) for result in results] == [
        ("ok", job) for job in jobs * 2
    ]


def test_workers_are_recycled_and_run_alike() -> None:
    with WorkerPool(SETUP, workers=1, deadline=PATIENT, recycle_after=10) as pool:
        pids = [result.value for result in pool.submit_batch([b"pid"] * 40)]
        assert [pids.count(pid) for pid in dict.fromkeys(pids)] == [10] * 4
        hashes = {result.value for result in pool.submit_batch([b"hash:word"] * 20)}
    with WorkerPool(SETUP, workers=1, deadline=PATIENT) as pool:
        assert {pool.submit_batch([b"hash:word"])[0].value} == hashes


def test_a_worker_sees_no_secret_and_its_noise_is_not_shown(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SOME_TOKEN", "secret")
    with WorkerPool(SETUP, workers=1, deadline=PATIENT, env={"FLOWZOO_TEST": "1"}) as pool:
        names = pool.submit_batch([b"environment", b"print"])[0].value.decode().split()
    assert "SOME_TOKEN" not in names
    assert {"FLOWZOO_TEST", "PYTHONHASHSEED", "OMP_NUM_THREADS"} <= set(names)
    assert "noise" not in "".join(capfd.readouterr())


def test_a_shared_pool_is_one_per_settings() -> None:
    first = shared_pool(SETUP, workers=1, deadline=PATIENT)
    assert shared_pool(SETUP, workers=1, deadline=PATIENT) is first
    assert shared_pool(SETUP, workers=1, deadline=PATIENT + 1) is not first
    assert first.submit_batch([b"echo:x"])[0].value == b"x"
    first.close()
    again = shared_pool(SETUP, workers=1, deadline=PATIENT)
    assert again is not first
    assert again.submit_batch([b"echo:x"])[0].value == b"x"
    again.close()


@pytest.mark.usual(1)
@pytest.mark.parametrize(
    ("setup", "message"),
    [
        ("no_such_module:setup", "ModuleNotFoundError"),
        ("pool_handlers:setup_that_raises", "LookupError: no grammar for this"),
        ("pool_handlers:setup_without_handler", "must return a function"),
    ],
)
def test_a_setup_that_fails_raises_each_time(setup: str, message: str) -> None:
    with WorkerPool(setup) as pool:
        for _ in range(2):
            with pytest.raises(UsageError, match=message):
                pool.submit_batch([b"echo:x"] * 3)


def test_a_setup_that_ends_its_process_raises() -> None:
    with (
        WorkerPool("pool_handlers:setup_that_exits", workers=2) as pool,
        pytest.raises(PoolError, match="status 7"),
    ):
        pool.submit_batch([b"echo:x"])


def test_a_memory_limit_below_the_setup_is_told() -> None:
    with (
        WorkerPool(SETUP, memory_bytes=2**25) as pool,
        pytest.raises(UsageError, match="leaves its workers no room"),
    ):
        pool.submit_batch([b"echo:x"])


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"setup": "os.getcwd()"}, "module:function"),
        ({"setup": SETUP, "workers": 0}, "workers"),
        ({"setup": SETUP, "deadline": 0.0}, "deadline"),
        ({"setup": SETUP, "deadline": float("nan")}, "deadline"),
        ({"setup": SETUP, "deadline": 1e6}, "deadline"),
        ({"setup": SETUP, "memory_bytes": 1024}, "32 MiB"),
        ({"setup": SETUP, "cpu_seconds": 0}, "cpu_seconds"),
        ({"setup": SETUP, "recycle_after": 0}, "recycle_after"),
    ],
)
def test_wrong_settings_raise_at_once(settings: dict[str, object], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        WorkerPool(**settings)  # type: ignore[arg-type]


def test_wrong_jobs_raise_at_once(pool: WorkerPool) -> None:
    with pytest.raises(UsageError, match="not one such object"):
        pool.submit_batch(b"echo:x")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="job 1 is bytes, not str"):
        pool.submit_batch([b"echo:x", "echo:y"])  # type: ignore[list-item]
    with pytest.raises(UsageError, match="at most"):
        pool.submit_batch([bytes(2**26 + 1)])
    assert pool.submit_batch([]) == []


def test_a_closed_pool_says_so() -> None:
    pool = WorkerPool(SETUP, workers=1, name="ajar")
    pool.submit_batch([b"echo:x"])
    pool.close()
    pool.close()
    with pytest.raises(UsageError, match="'ajar' is closed"):
        pool.submit_batch([b"echo:x"])


def test_closing_ends_a_batch_under_way(soon: Callable[..., bool]) -> None:
    pool = WorkerPool(SETUP, workers=1, deadline=600)
    with ThreadPoolExecutor() as threads:
        waiting = threads.submit(pool.submit_batch, [b"hang"] * 3)
        assert soon(pool.worker_pids)
        pool.close()
        with pytest.raises(PoolError, match="closed"):
            waiting.result(60)


def test_nothing_runs_before_the_first_job() -> None:
    pool = WorkerPool(SETUP, name="idle")
    assert pool.worker_pids() == []
    assert pool.rss_bytes() == 0
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("idle")]
    assert pool.settings.workers <= (os.cpu_count() or 1)
