"""The host's side with made-up boxes, which die, hang, lie or do not start, and its callers."""

import asyncio
import gc
import logging
import multiprocessing
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import pytest
from processes import is_running, wait_for

import flowzoo
from flowzoo.errors import UsageError
from flowzoo.sandbox import local
from flowzoo.sandbox import sandbox as api
from flowzoo.sandbox.backends import Backend, BoxError
from flowzoo.sandbox.box import box
from flowzoo.sandbox.box import run as box_run
from flowzoo.sandbox.box.engine import ProgramBatch, SandboxEngine, SandboxError
from flowzoo.sandbox.box.job import MOST_TEST, digest_tests, job_key, make_limits, make_plans
from flowzoo.sandbox.docker import image
from flowzoo.sandbox.judge import CaseOutcome
from flowzoo.sandbox.program import (
    CallTest,
    Case,
    CheckTest,
    Compare,
    Limits,
    Program,
    Status,
    StdinTest,
    Verdict,
)
from flowzoo.sandbox.sandbox import Sandbox, VerdictCache, shared_sandbox

FAKE = Path(__file__).with_name("fake_box.py")
ROOT = Path(flowzoo.__file__).parents[1]
PROGRAM = Program("x")
SLOW = Program("slow")
ECHO = [StdinTest("a", "a"), StdinTest("b", "b")]


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


def judge(sandbox: Sandbox, source: str = "x") -> Verdict:
    """Verdict on a program with two tests."""
    return sandbox.run_sync([Program(source)], [ECHO])[0]


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


async def test_a_small_batch_need_not_wait_for_a_large_one(sandbox, tmp_path, monkeypatch):
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
    await asyncio.to_thread(wait_for, lambda: lines(begun) == 3)
    small = asyncio.create_task(sandbox.run([PROGRAM] * 2, [echo("y")] * 2))
    while len(queued) < 2:
        await asyncio.sleep(0.01)
    first.touch()
    assert len(await asyncio.wait_for(small, 60)) == 2
    assert not large.done()
    rest.touch()
    assert len(await large) == 23


async def test_cancelling_drops_what_waits(sandbox, tmp_path):
    gate, begun, late = tmp_path / "gate", tmp_path / "begun", tmp_path / "late"
    programs = [Program(f"note:{begun} until:{gate}")] * 3 + [Program(f"note:{late}")] * 20
    task = asyncio.create_task(sandbox.run(programs, [echo("x")] * 23))
    await asyncio.to_thread(wait_for, lambda: lines(begun) == 3)
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


def test_closing_ends_what_is_under_way(tmp_path):
    sandbox = Sandbox("unsafe", workers=1)
    programs = [Program(f"note:{tmp_path / 'begun'} hang"), *[PROGRAM] * 99]
    with ThreadPoolExecutor(1) as threads:
        future = threads.submit(sandbox.run_sync, programs, [echo("a")] * 100)
        wait_for((tmp_path / "begun").exists)
        sandbox.close_sync()
        with pytest.raises(SandboxError, match="closed"):
            future.result(60)
    with pytest.raises(UsageError, match="closed"):
        sandbox.run_sync([PROGRAM], [echo("a")])
    sandbox.close_sync()


def test_a_forgotten_sandbox_ends_with_its_last_reference():
    sandbox = Sandbox("unsafe", workers=1)
    ask(sandbox, "a")
    [pid] = sandbox.box_pids()
    del sandbox
    gc.collect()
    wait_for(lambda: not is_running(pid))


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


def test_boxes_end_with_the_process_even_if_it_is_killed():
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
        wait_for(lambda pid=pid: not is_running(pid))


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


@pytest.mark.parametrize(
    "fault", ["die", "garbage", "otherid", "setup", "broken", "short", "killed"]
)
def test_a_box_that_fails_once_costs_nothing(sandbox, tmp_path, fault):
    verdict = judge(sandbox, f"once:{tmp_path / 'done'}:{fault}")
    assert (verdict.status, verdict.passed, verdict.facts) == ("AC", 2, {"retried": True})
    assert judge(sandbox).facts == {}


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("die", "ended with status 3: Fatal: the box was asked to die"),
        ("garbage", "broke the protocol"),
        ("otherid", "another job"),
        ("setup", "could not start the program"),
        ("broken", "the disk is full"),
        ("short", "after 1 of 2 cases"),
    ],
)
def test_a_box_that_fails_twice_is_an_error_after_all_others_are_judged(sandbox, fault, message):
    programs = [Program("x"), Program(fault), Program("y"), Program("z")]
    with pytest.raises(SandboxError, match=r"1 of 4 programs.*programs\[1\]") as caught:
        sandbox.run_sync(programs, [ECHO] * 4)
    assert message in str(caught.value)
    assert "unsafe" in str(caught.value)
    assert [verdict.status for verdict in caught.value.verdicts] == ["AC", "SE", "AC", "AC"]
    verdicts = sandbox.run_sync(programs, [ECHO] * 4, on_error="verdict")
    assert [verdict.status for verdict in verdicts] == ["AC", "SE", "AC", "AC"]
    assert (verdicts[1].fraction, verdicts[1].total) == (0.0, 2)


def test_only_a_second_kill_is_the_programs_own(sandbox, tmp_path):
    once = f"once:{tmp_path / 'done'}:"
    programs = [Program("killed"), Program(f"{once}die killed")]
    verdicts = sandbox.run_sync(programs, [ECHO] * 2)
    assert [verdict.status for verdict in verdicts] == ["RE"] * 2
    assert {verdict.cases[0].detail for verdict in verdicts} == {"signal 9"}
    assert all(verdict.facts == {"retried": True} for verdict in verdicts)


@pytest.mark.parametrize("kills", [1, 2])
def test_a_first_box_that_is_killed_while_it_opens_is_replaced(monkeypatch, kills):
    start, pids = local.LocalBackend.start, []

    async def start_and_kill(backend: local.LocalBackend) -> local.ProcessConnection:
        connection = await start(backend)
        pids.append(connection.pid)
        if len(pids) <= kills:
            os.kill(connection.pid, signal.SIGKILL)
        return connection

    monkeypatch.setattr(local.LocalBackend, "start", start_and_kill)
    with Sandbox("unsafe", workers=1) as sandbox:
        assert judge(sandbox).status == "AC"
        assert sandbox.box_pids() == pids[kills:]


@pytest.mark.full
def test_a_hung_box_is_killed_and_the_others_go_on(sandbox, monkeypatch):
    monkeypatch.setattr(box_run, "SLACK", 0.3)
    programs = [Program("hang"), *[Program("x")] * 20]
    limits = [Limits(cpu_s=0.1, wall_s=0.2), *[Limits()] * 20]
    verdicts = sandbox.run_sync(programs, [ECHO] * 21, limits, on_error="verdict")
    assert [verdict.status for verdict in verdicts] == ["SE"] + ["AC"] * 20
    assert "did not answer within 2.1 s" in verdicts[0].cases[0].detail


def test_a_box_that_does_not_read_is_killed(sandbox, monkeypatch):
    judge(sandbox)
    [pid] = sandbox.box_pids()
    os.kill(pid, signal.SIGSTOP)
    patient, kill = box.SEND_SECONDS, box.Box.kill

    async def kill_and_be_patient(stopped: box.Box) -> None:
        monkeypatch.setattr(box, "SEND_SECONDS", patient)
        await kill(stopped)

    monkeypatch.setattr(box.Box, "kill", kill_and_be_patient)
    monkeypatch.setattr(box, "SEND_SECONDS", 0.5)
    large = [StdinTest("x" * 4_000_000, "x" * 4_000_000)]
    run = sandbox.run([Program("x")], [large], Limits(output_bytes=2**23))
    [verdict] = asyncio.run(asyncio.wait_for(run, 100))
    assert (verdict.status, verdict.facts) == ("AC", {"retried": True})
    assert pid not in sandbox.box_pids()


def test_an_unclean_box_is_replaced_and_its_verdict_stands(sandbox):
    judge(sandbox)
    before = sandbox.box_pids()
    assert judge(sandbox, "unclean").status == "AC"
    assert judge(sandbox).status == "AC"
    assert not set(before) & set(sandbox.box_pids())


def test_boxes_are_replaced_after_so_many_programs(monkeypatch):
    monkeypatch.setattr(box, "RECYCLE_AFTER", 3)
    with Sandbox("unsafe", workers=1) as sandbox:
        seen = []
        for _ in range(7):
            judge(sandbox)
            seen += [pid for pid in sandbox.box_pids() if pid not in seen]
        assert len(seen) == 3


def test_an_idle_box_that_died_is_replaced_without_a_retry(sandbox):
    judge(sandbox)
    [pid] = sandbox.box_pids()
    [idle] = sandbox._engine.boxes()  # pyright: ignore
    os.kill(pid, signal.SIGKILL)
    wait_for(lambda: not idle.reusable)  # its end has been seen
    assert judge(sandbox).facts == {}
    assert sandbox.box_pids() != [pid]


def test_boxes_that_cannot_be_started_fail_every_program_soon(sandbox, monkeypatch):
    judge(sandbox)
    [pid] = sandbox.box_pids()
    monkeypatch.setattr(local.sys, "executable", "/nowhere/python")
    os.kill(pid, signal.SIGKILL)
    starts = []
    start = local.LocalBackend.start

    async def count(backend: local.LocalBackend) -> local.ProcessConnection:
        starts.append(backend)
        return await start(backend)

    monkeypatch.setattr(local.LocalBackend, "start", count)
    with pytest.raises(SandboxError, match=r"200 of 200.*no unsafe box starts.*No such file"):
        sandbox.run_sync([Program("x")] * 200, [ECHO] * 200)
    assert 0 < len(starts) < 20  # not some for each program, with a pause before each
    monkeypatch.undo()
    monkeypatch.setattr(local, "RUNNER", FAKE)
    assert judge(sandbox).status == "AC"  # it recovers


def test_a_backend_asked_for_by_name_never_falls_back():
    with Sandbox("landlock") as sandbox, pytest.raises(UsageError) as caught:
        _ = sandbox.tier
    assert "landlock: it reports: this kernel has no Landlock" in str(caught.value)
    assert "A named backend has no fallback" in str(caught.value)


def test_auto_fails_closed_and_says_why(monkeypatch):
    def refuse(name: str, options: object, packages: object) -> Backend:
        raise BoxError(f"no {name} here.")

    monkeypatch.setattr(api, "make_backend", refuse)
    with Sandbox() as sandbox:
        for _ in range(2):
            with pytest.raises(UsageError, match="untrusted code is not run") as caught:
                judge(sandbox)
            for tier in ("docker", "namespaces", "landlock"):
                assert f"no {tier} here" in str(caught.value)
            assert not re.search(r"\.[.;]", str(caught.value))
            assert "unsafe" in str(caught.value)
            assert "no unsafe here" not in str(caught.value)


def test_auto_takes_the_next_tier(caplog, monkeypatch):
    monkeypatch.setattr(api, "_logged", set())
    caplog.set_level(logging.INFO, "flowzoo.sandbox")
    make = api.make_backend

    def no_docker(name: str, options: object, packages: object) -> Backend:
        if name == "docker":
            raise BoxError("no engine")
        return make(name, {})

    monkeypatch.setattr(api, "make_backend", no_docker)
    with Sandbox() as sandbox:
        assert judge(sandbox).tier == "namespaces"
        assert sandbox.describe()["asked"] == "auto"
    assert "not taken: docker: no engine" in caplog.text


def test_the_trust_level_is_stated_once(caplog, monkeypatch):
    monkeypatch.setattr(api, "_logged", set())
    caplog.set_level(logging.INFO, "flowzoo.sandbox")
    for _ in range(2):
        with Sandbox("unsafe") as sandbox:
            assert sandbox.trust.startswith("unsafe")
    lines = [record for record in caplog.records if record.name == "flowzoo.sandbox"]
    assert [record.levelno for record in lines] == [logging.WARNING]


def test_a_defect_in_judging_loses_no_other_program(sandbox, monkeypatch):
    judge_stdin = box_run.judge_stdin

    def breaks(outcome: CaseOutcome, test: StdinTest) -> Case:
        return judge_stdin(outcome, test) if test.stdin != "c" else [][0]

    monkeypatch.setattr(box_run, "judge_stdin", breaks)
    tests = [ECHO, [StdinTest("c", "c")], ECHO]
    with pytest.raises(SandboxError, match=r"internal error of the sandbox.*IndexError") as caught:
        sandbox.run_sync([Program("x")] * 3, tests)
    assert [verdict.status for verdict in caught.value.verdicts] == ["AC", "SE", "AC"]


def test_limits_that_the_tier_cannot_enforce(sandbox):
    with pytest.raises(UsageError, match=r"memory_mb=1:.*at least"):
        sandbox.run_sync([Program("x")], [ECHO], Limits(memory_mb=1))


PRINT, CALL = Program("print(1)"), Program("def f(x): return x", "f")
STDIN, SAME, CHECK = StdinTest("", "1"), CallTest((1,), 1), CheckTest("assert f(1) == 1")


@pytest.mark.parametrize(
    ("programs", "tests", "message"),
    [
        ("print(1)", [[STDIN]], "`programs` must be a list, got str"),
        (PRINT, [[STDIN]], "`programs` must be a list, got Program"),
        ([PRINT], STDIN, "`tests` must be a list, got StdinTest"),
        ([PRINT], [STDIN], r"tests\[0\] must be a list of tests, got StdinTest"),
        ([PRINT, PRINT], [[STDIN]], "got 2 programs and 1 lists of tests"),
        ([PRINT, PRINT], [[STDIN], []], r"tests\[1\] is empty"),
        (["print(1)"], [[STDIN]], r"programs\[0\] must be a Program, got str: wrap"),
        ([Program(b"1")], [[STDIN]], r"programs\[0\].source must be a str"),  # type: ignore[arg-type]
        ([Program("", "f()")], [[SAME]], r"programs\[0\].entry must be the name of a function"),
        ([PRINT], [[SAME]], r"tests\[0\]\[0\] is a CallTest, .* this one has none"),
        ([CALL], [[SAME, STDIN]], r"tests\[0\]\[1\] is a StdinTest, .* has the entry 'f'"),
        ([PRINT], [["1"]], r"tests\[0\]\[0\] must be a StdinTest, CallTest or CheckTest, got str"),
        (
            [CALL],
            [[CallTest((print,), 1)]],
            r"tests\[0\]\[0\] must contain only plain data .* built",
        ),
        ([CALL], [[CallTest((1,), iter([]))]], r"must contain only plain data .* list_iterator"),
        ([CALL], [[CallTest(1, 1)]], r"tests\[0\]\[0\] has a field of a wrong type"),  # type: ignore[arg-type]
        ([PRINT], [[StdinTest(1, "1")]], "has a field of a wrong type"),  # type: ignore[arg-type]
        ([PRINT], [[StdinTest("\ud800", "1")]], "not UTF-8"),
        ([PRINT], [[StdinTest("", "\ud800")]], "not UTF-8"),
        ([PRINT], [[StdinTest("x" * (MOST_TEST + 1), "1")]], f"at most {MOST_TEST} are allowed"),
    ],
)
def test_mistakes_name_their_place_and_the_remedy(programs, tests, message):
    with pytest.raises(UsageError, match=message):
        make_plans(programs, tests)


def test_tests_ride_together_where_they_can():
    [plan] = make_plans([CALL], [[SAME, SAME, CHECK, CHECK, SAME]])
    steps = [(step.style, len(step.tests)) for step in plan.steps]
    assert steps == [("call", 2), ("check", 1), ("check", 1), ("call", 1)]
    assert plan.total == 5
    large = StdinTest("x" * (MOST_TEST - 1), "")
    [plan] = make_plans([PRINT], [[STDIN, large, large]])
    assert [len(step.tests) for step in plan.steps] == [2, 1]


def test_a_group_shares_its_plan():
    tests = [SAME] * 3
    plans = make_plans([CALL, CALL, Program("", "g")], [tests] * 3)
    assert plans[0] is plans[1]
    assert plans[2].entry == "g"


def test_limits_are_one_or_one_each():
    assert make_limits(Limits(), 2) == [Limits(), Limits()]
    with pytest.raises(UsageError, match="got 1 for 2"):
        make_limits([Limits()], 2)
    with pytest.raises(UsageError, match="class Limits, got int"):
        make_limits([1], 1)  # type: ignore[list-item]
    with pytest.raises(UsageError, match="output_bytes may be at most"):
        make_limits(Limits(output_bytes=10**9), 1)


def test_keys_of_the_cache_tell_types_apart():
    def key(value: Any, stop: bool = False) -> bytes:
        return job_key(CALL, digest_tests([CallTest((value,), 1)]), Limits(), stop)

    values = (1, True, 1.0, "1", b"1", [1], (1,), "\ud800", float("nan"))
    assert len({key(value) for value in values}) == len(values)
    assert key(1) == key(1)
    assert key(1) != key(1, stop=True)
    long = CallTest((1,), 10**5000)  # more digits than an int is converted to text
    changes = ({"args": (2,)}, {"expected": 10**5000 + 1}, {"kwargs": {"base": 2}})
    others = [replace(long, **change) for change in (*changes, {"compare": Compare("number")})]
    assert len({digest_tests([test]) for test in (long, replace(long), *others)}) == 5


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"backend": "dokcer"}, "unknown sandbox backend 'dokcer'. Did you mean 'docker'"),
        ({"backend": "none"}, "unknown sandbox backend"),
        ({"workers": 0}, "workers must be at least 1"),
        ({"cache": -1}, "cache at least 0"),
        ({"options": {"runtime": "runsc"}}, "options are for backend='docker'"),
    ],
)
def test_settings_are_checked(settings, message):
    with pytest.raises(UsageError, match=message):
        Sandbox(**settings)


def test_on_error_is_checked():
    with Sandbox("unsafe") as sandbox, pytest.raises(UsageError, match="unknown on_error 'ignore'"):
        sandbox.run_sync([], [], on_error="ignore")  # type: ignore[arg-type]


@pytest.mark.parametrize("status", get_args(Status))
def test_what_depends_on_the_machine_is_not_kept(status):
    cache, verdict = VerdictCache(2), Verdict(status, (), 1)
    cache.put(b"key", verdict)
    assert cache.get(b"key") == (None if status in ("TLE", "SE") else verdict)


def test_the_verdict_that_was_not_asked_for_longest_is_forgotten():
    cache, verdict = VerdictCache(2), Verdict("AC", (), 1)
    for key in (b"a", b"b"):
        cache.put(key, verdict)
    cache.get(b"a")
    cache.put(b"c", verdict)
    assert [cache.get(key) for key in (b"a", b"b", b"c")] == [verdict, None, verdict]
