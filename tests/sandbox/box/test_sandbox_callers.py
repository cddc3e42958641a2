"""Callers of the sandbox: threads, loops, forks, many at once, cancelled, closed."""

import asyncio
import gc
import multiprocessing
import os
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from processes import is_running

import flowzoo
from flowzoo.errors import UsageError
from flowzoo.sandbox import local
from flowzoo.sandbox.box.engine import ProgramBatch, SandboxEngine, SandboxError
from flowzoo.sandbox.docker import image
from flowzoo.sandbox.program import Program, StdinTest
from flowzoo.sandbox.sandbox import Sandbox, shared_sandbox

FAKE = Path(__file__).with_name("fake_box.py")
ROOT = Path(flowzoo.__file__).parents[1]
PROGRAM = Program("x")
SLOW = Program("slow")


@pytest.fixture(autouse=True)
def _fake_boxes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local, "RUNNER", FAKE)


@pytest.fixture
def sandbox() -> Iterator[Sandbox]:
    with Sandbox("unsafe", workers=3) as sandbox:
        yield sandbox


def echo(word: object) -> list[StdinTest]:
    return [StdinTest(str(word), str(word))]


def ask(sandbox: Sandbox, word: object) -> str:
    return sandbox.run_sync([PROGRAM], [echo(word)])[0].cases[0].stdout


def lines(path: Path) -> int:
    """Number of programs that have left a note."""
    return path.read_text().count("\n") if path.exists() else 0


async def test_1000_concurrent_requests_keep_order_and_lose_none(sandbox):
    answers = await asyncio.gather(*(sandbox.run([PROGRAM], [echo(n)]) for n in range(1000)))
    assert [answer[0].cases[0].stdout for answer in answers] == [str(n) for n in range(1000)]
    assert len(sandbox.box_pids()) <= 3


def test_no_more_boxes_than_programs(sandbox):
    ask(sandbox, "a")
    assert len(sandbox.box_pids()) == 1
    sandbox.run_sync([SLOW] * 2, [echo("b")] * 2)
    assert len(sandbox.box_pids()) == 2
    sandbox.run_sync([SLOW] * 9, [echo("c")] * 9)
    assert len(sandbox.box_pids()) == 3


def test_many_threads_and_their_own_loops(sandbox):
    async def some(base: int) -> list[str]:
        answers = await sandbox.run([PROGRAM] * 5, [echo(base + k) for k in range(5)])
        return [verdict.cases[0].stdout for verdict in answers]

    def worker(base: int) -> list[str]:
        return [*asyncio.run(some(base)), ask(sandbox, base + 5)]

    with ThreadPoolExecutor(8) as threads:
        answers = list(threads.map(worker, range(0, 240, 6)))
    assert [word for answer in answers for word in answer] == [str(n) for n in range(240)]


async def test_run_sync_where_a_loop_is_running(sandbox):
    assert ask(sandbox, "inside") == "inside"


async def test_a_small_batch_need_not_wait_for_a_large_one(sandbox, tmp_path, monkeypatch, soon):
    queued: list[ProgramBatch] = []
    submit = SandboxEngine.submit

    def queue(engine: SandboxEngine, batch: ProgramBatch) -> bool:
        queued.append(batch)
        return submit(engine, batch)

    monkeypatch.setattr(SandboxEngine, "submit", queue)
    first, rest, begun = tmp_path / "first", tmp_path / "rest", tmp_path / "begun"
    # All boxes are taken; once they are free, those of the large batch would keep them for good.
    programs = [Program(f"note:{begun} until:{first}")] * 3 + [Program(f"until:{rest}")] * 20
    large = asyncio.create_task(sandbox.run(programs, [echo("x")] * 23))
    assert await asyncio.to_thread(soon, lambda: lines(begun) == 3)
    small = asyncio.create_task(sandbox.run([PROGRAM] * 2, [echo("y")] * 2))
    while len(queued) < 2:
        await asyncio.sleep(0.01)
    first.touch()
    assert len(await asyncio.wait_for(small, 60)) == 2
    assert not large.done()
    rest.touch()
    assert len(await large) == 23


async def test_cancelling_drops_what_waits(sandbox, tmp_path, soon):
    gate, begun, late = tmp_path / "gate", tmp_path / "begun", tmp_path / "late"
    programs = [Program(f"note:{begun} until:{gate}")] * 3 + [Program(f"note:{late}")] * 20
    task = asyncio.create_task(sandbox.run(programs, [echo("x")] * 23))
    assert await asyncio.to_thread(soon, lambda: lines(begun) == 3)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    gate.touch()
    # As many as were dropped, which would take turns with these.
    assert len(await sandbox.run([PROGRAM] * 23, [echo("y")] * 23)) == 23
    assert lines(late) == 0


async def test_a_cancelled_first_call_does_not_disturb_the_second(sandbox):
    first = asyncio.create_task(sandbox.run([PROGRAM], [echo("a")]))
    second = asyncio.create_task(sandbox.run([PROGRAM], [echo("b")]))
    await asyncio.sleep(0)
    first.cancel()
    assert (await second)[0].status == "AC"


def test_close_leaves_no_process_descriptor_or_thread():
    ask_pids = []
    gc.collect()
    before = set(os.listdir("/proc/self/fd"))
    for _ in range(3):
        with Sandbox("unsafe", workers=2) as sandbox:
            sandbox.run_sync([SLOW] * 4, [echo("a")] * 4)
            ask_pids += sandbox.box_pids()
    assert len(ask_pids) == 6
    assert not any(map(is_running, ask_pids))
    gc.collect()
    assert set(os.listdir("/proc/self/fd")) <= before


def test_closing_ends_what_is_under_way(tmp_path, soon):
    sandbox = Sandbox("unsafe", workers=1)
    programs = [Program(f"note:{tmp_path / 'begun'} hang"), *[PROGRAM] * 99]
    with ThreadPoolExecutor(1) as threads:
        future = threads.submit(sandbox.run_sync, programs, [echo("a")] * 100)
        assert soon((tmp_path / "begun").exists)
        sandbox.close_sync()
        with pytest.raises(SandboxError, match="closed"):
            future.result(60)
    with pytest.raises(UsageError, match="closed"):
        sandbox.run_sync([PROGRAM], [echo("a")])
    sandbox.close_sync()


def test_a_forgotten_sandbox_ends_with_its_last_reference(soon):
    sandbox = Sandbox("unsafe", workers=1)
    ask(sandbox, "a")
    [pid] = sandbox.box_pids()
    del sandbox
    gc.collect()
    assert soon(lambda: not is_running(pid))


def _in_fork(sandbox: Sandbox, answers: multiprocessing.SimpleQueue) -> None:  # type: ignore[type-arg]
    answers.put((ask(sandbox, "child"), sandbox.box_pids()))
    sandbox.close_sync()


def test_a_fork_starts_boxes_of_its_own(sandbox):
    ask(sandbox, "parent")
    pids = sandbox.box_pids()
    context = multiprocessing.get_context("fork")
    answers = context.SimpleQueue()
    child = context.Process(target=_in_fork, args=(sandbox, answers))
    child.start()
    word, child_pids = answers.get()
    child.join(60)
    assert child.exitcode == 0
    assert word == "child"
    assert not set(pids) & set(child_pids)
    assert not any(map(is_running, child_pids))
    assert ask(sandbox, "again") == "again"
    assert sandbox.box_pids() == pids


def test_a_fork_does_not_wait_for_locks_of_its_parents_threads():
    with Sandbox("unsafe", workers=1, cache=1) as sandbox:
        assert sandbox._cache is not None
        context = multiprocessing.get_context("fork")
        answers = context.SimpleQueue()
        child = context.Process(target=_in_fork, args=(sandbox, answers))
        with sandbox._cache._lock:
            child.start()
        child.join(60)
        child.kill()
        assert child.exitcode == 0
        assert answers.get()[0] == "child"


def _build_in_fork() -> None:
    os._exit(0 if image._building.acquire(timeout=0) else 1)


def test_a_fork_during_the_build_of_an_image_can_build_one():
    child = multiprocessing.get_context("fork").Process(target=_build_in_fork)
    with image._building:
        child.start()
    child.join(60)
    assert child.exitcode == 0


def test_boxes_end_with_the_process_even_if_it_is_killed(soon):
    script = (
        "import sys; from pathlib import Path; from flowzoo.sandbox import local\n"
        f"local.RUNNER = Path({str(FAKE)!r})\n"
        "from flowzoo.sandbox.sandbox import shared_sandbox\n"
        "from flowzoo.sandbox.program import Program, StdinTest\n"
        "box = shared_sandbox('unsafe', workers=1)\n"
        "box.run_sync([Program('x')], [[StdinTest('a', 'a')]])\n"
        "print(box.box_pids()[0], flush=True)\n"
        "sys.stdin.read()\n"
    )
    for end in ("exit", "kill"):
        with subprocess.Popen(
            [sys.executable, "-c", script],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        ) as process:
            assert process.stdout is not None
            pid = int(process.stdout.readline())
            assert is_running(pid)
            if end == "kill":
                process.kill()
            process.communicate()
            assert process.returncode == (0 if end == "exit" else -9)
        assert soon(lambda pid=pid: not is_running(pid))


def test_one_shared_sandbox_per_settings():
    first = shared_sandbox("unsafe", workers=1)
    assert shared_sandbox("unsafe", workers=1) is first
    assert shared_sandbox("unsafe", workers=2) is not first
    first.close_sync()
    assert shared_sandbox("unsafe", workers=1) is not first
    shared_sandbox("unsafe", workers=1).close_sync()


def test_the_cache_is_off_unless_asked_for(tmp_path):
    once = Program(f"once:{tmp_path / 'a'}:die")
    for size, retried in ((0, False), (2, True)):
        with Sandbox("unsafe", workers=1, cache=size) as sandbox:
            (tmp_path / "a").unlink(missing_ok=True)
            first = sandbox.run_sync([once], [echo("a")])[0]
            second = sandbox.run_sync([once], [echo("a")])[0]
            assert (first.facts != {}, second.facts != {}) == (True, retried)
            other = sandbox.run_sync([once, once], [echo("b"), echo("a")])
            assert [verdict.cases[0].stdout for verdict in other] == ["b", "a"]


def test_with_a_cache_a_group_of_equal_programs_is_run_once(tmp_path):
    once = Program(f"once:{tmp_path / 'a'}:die")
    with Sandbox("unsafe", workers=2, cache=9) as sandbox:
        verdicts = sandbox.run_sync([once, PROGRAM, once, once], [echo("a")] * 4)
        assert [verdict.facts != {} for verdict in verdicts] == [True, False, True, True]
        lost = sandbox.run_sync([Program("die")] * 3, [echo("a")] * 3, on_error="verdict")
        assert [verdict.status for verdict in lost] == ["SE"] * 3
