"""Real programs in real boxes, on every backend that this machine can run."""

import asyncio
import contextlib
import gc
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from flowzoo.sandbox import (
    CallTest,
    CheckTest,
    Limits,
    Program,
    Sandbox,
    SandboxError,
    StdinTest,
    Test,
    Verdict,
)
from flowzoo.sandbox.box import run as box_run
from flowzoo.sandbox.box.job import MOST_SOURCE
from tests.sandbox.judging import PATIENT, judge
from tests.tables import read_tables

TABLES = read_tables(__file__)

FIRST_TIER_ONLY = True

INC = [StdinTest("1\n", "2\n"), StdinTest("41\n", "42\n")]
PLUS = "print(int(input()) + 1)"
CHECK = CheckTest("def check(f):\n    assert f(1) == 2\n    assert f(5) == 6", "check(candidate)")
SHORT = Limits(cpu_s=0.3, wall_s=300.0)  # for programs that loop


def children(pid: int) -> list[int]:
    """Process ids of the children, or where a box has its process 1 in between, of that one."""
    with open(f"/proc/{pid}/task/{pid}/children", encoding="ascii") as file:
        pids = [int(child) for child in file.read().split()]
    return [deep for child in pids for deep in children(child)] or pids


def pin(pid: int, core: int) -> None:
    """Keep a process and all below it on one core."""
    # The process first: what it forks afterwards inherits its core.
    os.sched_setaffinity(pid, {core})
    with open(f"/proc/{pid}/task/{pid}/children", encoding="ascii") as file:
        for child in file.read().split():
            pin(int(child), core)


def ticks(pid: int) -> int:
    """CPU time of a process, in hundredths of a second."""
    with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
        user, system = file.read().rpartition(")")[2].split()[11:13]
    return int(user) + int(system)


def loops(box: int) -> bool:
    """True if a program of the box has used so much CPU time that it must loop."""
    with contextlib.suppress(OSError):
        return any(ticks(pid) > 10 for pid in children(box))
    return False


def statuses(verdict: Verdict) -> str:
    return " ".join(case.status for case in verdict.cases)


@pytest.mark.parametrize(
    ("source", "status", "detail"),
    [
        (PLUS, "AC", ""),
        ("print(int(input()) + 2)", "WA", ""),
        ("1 / 0", "RE", "exit code 1: ZeroDivisionError: division by zero"),
        ("import os; os.abort()", "RE", "signal 6"),
        ("x = (", "CE", "SyntaxError"),
        ("\0", "CE", ""),
        ("print('\ud800')", "CE", ""),
        ("#" * (MOST_SOURCE + 1), "CE", "at most"),
        ("while True: pass", "TLE", "cpu"),
        ("x = bytearray(10**10)", "MLE", "memory"),
        ("while True: print('x' * 1000)", "OLE", "output"),
        ("import os; os.write(1, b'2\\n'); os._exit(0)", "AC", ""),
        ("raise SystemExit(0)", "WA", ""),
    ],
)
def test_statuses_of_printing_programs(sandbox, source, status, detail):
    verdict = judge(sandbox, source, INC[:1], limits=SHORT if status == "TLE" else PATIENT)
    assert (verdict.status, verdict.tier, verdict.total) == (status, sandbox.backend, 1)
    case = verdict.cases[0]
    assert min(case.cpu_s, case.wall_s, case.memory_mb) > 0 or status == "CE"
    assert detail in case.detail
    assert verdict.facts == {}


def test_the_clock_on_the_wall(sandbox):
    limits = Limits(cpu_s=60.0, wall_s=1.0)
    begun = time.monotonic()
    verdict = judge(sandbox, "import time; time.sleep(600)", INC, limits=limits, stop=True)
    assert time.monotonic() - begun >= 1.0  # not too early
    assert (statuses(verdict), verdict.cases[0].detail) == ("TLE", "wall")
    assert verdict.cases[0].cpu_s < 0.5  # of which a program that sleeps needs next to none


def test_stop_ends_at_the_first_failure_wherever_it_is_seen(sandbox):
    tests = [*INC, StdinTest("7", "9"), *INC * 20]
    assert statuses(judge(sandbox, PLUS, tests, stop=True)) == "AC AC WA"
    assert statuses(judge(sandbox, PLUS, tests)) == "AC AC WA" + " AC" * 40
    source = "n = int(input())\nprint(n + 1 if n != 7 else 1 / 0)"
    assert statuses(judge(sandbox, source, tests, stop=True)) == "AC AC RE"
    verdict = judge(sandbox, PLUS, tests)
    assert (verdict.passed, verdict.total, verdict.status) == (42, 43, "WA")


@pytest.mark.parametrize(("body", "status", "shown"), TABLES["calls"])
def test_statuses_of_calls(sandbox, body, status, shown):
    tests = [CallTest((1,), [1, (1, 2.5)])]
    limits = SHORT if status == "TLE" else PATIENT
    verdict = judge(sandbox, f"def f(x):\n    {body}", tests, limits)
    assert (verdict.status, verdict.cases[0].stdout) == (status, shown)


@pytest.mark.every_tier
def test_calls_after_one_that_crashed(sandbox):
    source = "import os\ndef f(x):\n    if x == 2:\n        os.abort()\n    return x"
    tests = [CallTest((x,), x) for x in (1, 2, 3)]
    assert statuses(judge(sandbox, source, tests)) == "AC RE AC"
    assert statuses(judge(sandbox, source, tests, stop=True)) == "AC RE"
    assert statuses(judge(sandbox, "def g(): pass", tests, stop=True)) == "RE"


@pytest.mark.every_tier
def test_methods_and_keywords(sandbox):
    source = """class Solution:
    def __init__(self): self.total = 0
    def add(self, x, *, y=0):
        self.total += x
        return self.total + y"""
    calls = [CallTest((1,), 3, {"y": 2}), CallTest((4,), 4)]  # an instance each
    tests = [*calls, CheckTest("assert add(1, y=4) == 5\nassert add(1) == 1")]
    assert statuses(judge(sandbox, source, tests, entry="Solution.add")) == "AC AC AC"


@pytest.mark.parametrize(("body", "status"), TABLES["checks"])
def test_statuses_of_checks(sandbox, body, status):
    limits = SHORT if status == "TLE" else PATIENT
    verdict = judge(sandbox, f"def f(x):\n    {body}", [CHECK], limits)
    if (body, status) == ("raise SystemExit(0)", "RE"):
        assert verdict.status in ("RE", "WA")
    elif body.startswith("return bytearray"):
        assert verdict.status in ("MLE", "RE")
    else:
        assert verdict.status == status, verdict.cases


def test_a_check_may_expect_an_exception(sandbox):
    code = "try:\n    f(0)\nexcept ZeroDivisionError:\n    pass\nelse:\n    assert False"
    source = "def f(x):\n    return 1 / x"
    assert judge(sandbox, source, [CheckTest(code)]).status == "AC"
    assert judge(sandbox, "def f(x): return 0", [CheckTest(code)]).status == "WA"


def test_several_checks_each_with_fresh_boxes(sandbox):
    source = "seen = []\ndef f():\n    seen.append(1)\n    return len(seen)"
    once = CheckTest("assert f() == 1")
    assert statuses(judge(sandbox, source, [once, once, once])) == "AC AC AC"
    wrong = CheckTest("assert f() == 2")
    assert statuses(judge(sandbox, source, [once, wrong, once], stop=True)) == "AC WA"


def test_the_test_code_is_never_in_the_box_of_the_program(sandbox):
    secret = "assert f() == " + repr("needle" * 3)
    source = (
        "import gc\ndef f():\n"
        "    return next((x for x in gc.get_objects() if 'needle' * 3 in repr(x)), None)"
    )
    assert judge(sandbox, source, [CheckTest(secret)]).status == "WA"


async def test_300_mixed_programs_leave_nothing_behind(sandbox):
    kinds: list[tuple[Program, list[Test], str]] = [
        (Program(PLUS), list(INC), "AC"),
        (Program("print(3)"), list(INC), "WA"),
        (Program("1 / 0"), list(INC), "RE"),
        (Program("x = ("), list(INC), "CE"),
        (Program("def f(x): return x + 1", "f"), [CallTest((1,), 2)], "AC"),
        (Program("def f(x): return x + 1", "f"), [CHECK], "AC"),
    ]
    rows = [kinds[row % len(kinds)] for row in range(300)]
    slow = Program("import time\ndef f(x):\n    time.sleep(1)\n    return x + 1", "f")
    await sandbox.run([slow] * 4, [[CHECK]] * 4, PATIENT)
    for _ in range(20):
        if len(sandbox._engine.boxes()) == 8:  # pyright: ignore
            break  # all that there can be: each of four programs has another box for its test
        await sandbox.run([slow] * 4, [[CHECK]] * 4, PATIENT)
    gc.collect()
    files = len(os.listdir("/proc/self/fd"))
    verdicts = await asyncio.gather(
        *(
            sandbox.run([row[0] for row in part], [row[1] for row in part], PATIENT)
            for part in (rows[start : start + 10] for start in range(0, 300, 10))
        )
    )
    flat = [verdict.status for part in verdicts for verdict in part]
    assert flat == [row[2] for row in rows]
    assert len(sandbox.box_pids()) <= 8
    assert len(os.listdir("/proc/self/fd")) <= files


def test_kill_9_of_real_boxes_in_mid_batch_loses_no_program(sandbox, replace_first, soon):
    if sandbox.backend == "docker":
        pytest.skip("a container has no process of ours; test_docker_boxes kills containers")
    tests: list[list[Test]] = [[StdinTest(str(row), str(row + 1))] for row in range(40)]
    replace_first(4, b"while True: pass")
    with ThreadPoolExecutor(1) as threads:
        future = threads.submit(sandbox.run_sync, [Program(PLUS)] * 40, tests, PATIENT)
        assert soon(lambda: sum(map(loops, sandbox.box_pids())) == 4)
        for pid in sandbox.box_pids():
            os.kill(pid, signal.SIGKILL)
        verdicts = future.result(100)
    assert [verdict.status for verdict in verdicts] == ["AC"] * 40
    retried = [row for row, verdict in enumerate(verdicts) if verdict.facts == {"retried": True}]
    assert retried == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("source", "code"),
    [
        ("import time\ndef f(x):\n    while time.process_time() < 1: pass\n    return x", ""),
        ("def f(x): return x", "import time\nwhile time.process_time() < 1: pass\n"),
    ],
)
def test_a_half_of_a_check_that_is_killed_from_outside_blames_nobody(sandbox, soon, source, code):
    if sandbox.backend == "docker":
        pytest.skip("a container's processes are no children of ours")
    test = CheckTest(f"assert f(1) == 1\n{code}assert f(2) == 2")
    with Sandbox(sandbox.backend, workers=1) as single, ThreadPoolExecutor(1) as threads:
        future = threads.submit(single.run_sync, [Program(source, "f")], [[test]], PATIENT)
        assert soon(lambda: any(map(loops, single.box_pids())))
        for pid in [pid for box in single.box_pids() for pid in children(box) if ticks(pid) > 10]:
            os.kill(pid, signal.SIGKILL)
        [verdict] = future.result(60)
    assert (verdict.status, verdict.facts) == ("AC", {"retried": True})


def spin(core: int) -> subprocess.Popen[bytes]:
    """A process that takes what it can get of one core."""
    command = [sys.executable, "-I", "-S", "-c", "while True: pass"]
    process = subprocess.Popen(command, start_new_session=True)
    os.sched_setaffinity(process.pid, {core})
    return process


@pytest.mark.full
@pytest.mark.every_tier
def test_waiting_for_a_processor_takes_no_time_of_a_program(sandbox):
    if sandbox.backend == "docker":
        pytest.skip("a container has no process of ours")
    core = min(os.sched_getaffinity(0))
    limits = Limits(cpu_s=2.0, wall_s=0.05)
    work = "import time\nwhile time.process_time() < 0.1: pass\nprint(2)"
    rest = "import time\ntime.sleep(600)"
    with Sandbox(sandbox.backend, workers=1) as single, contextlib.ExitStack() as stack:
        single.run_sync([Program("print(2)")], [INC[:1]], PATIENT)
        [box] = single.box_pids()
        pin(box, core)
        # Its share of the core is the kernel's matter, so there are more processes until the
        # program takes more time than it may: 16 times its CPU time.
        waits, rounds = False, 0
        while not waits:
            rounds += 1
            assert rounds <= 5, "the program never waited long"
            for _ in range(30):
                process = spin(core)
                stack.callback(process.wait)
                stack.callback(process.kill)
            verdicts = single.run_sync([Program(work), Program(rest)], [INC[:1]] * 2, limits)
            states = [(verdict.status, verdict.cases[0].detail) for verdict in verdicts]
            assert states == [("AC", ""), ("TLE", "wall")]
            case = verdicts[0].cases[0]
            waits = case.wall_s > limits.wall_s + 16 * case.cpu_s


def test_a_program_does_not_outlive_its_killed_box(sandbox, soon):
    if sandbox.backend == "docker":
        pytest.skip("a container has no process of ours; its programs end with it")
    limits = Limits(cpu_s=120.0, wall_s=300.0)
    with Sandbox(sandbox.backend, workers=1) as single, ThreadPoolExecutor(1) as threads:
        single.run_sync([Program(PLUS)], [INC])
        [box] = single.box_pids()
        future = threads.submit(single.run_sync, [Program("while True: pass")], [INC[:1]], limits)
        assert soon(lambda: loops(box))
        [program] = children(box)
        os.kill(box, signal.SIGKILL)
        assert soon(lambda: not os.path.exists(f"/proc/{program}"))
        single.close_sync()
        with pytest.raises(SandboxError):
            future.result(60)


def test_programs_with_time_outs_run_side_by_side(sandbox, monkeypatch):
    run_job, running, seen = box_run.run_job, [], []

    async def watched(box: box_run.Box, *rest: Any) -> list[box_run.CaseOutcome]:
        running.append(box)
        seen.append(len(set(running)))
        try:
            return await run_job(box, *rest)
        finally:
            running.remove(box)

    sandbox.run_sync([Program("import time; time.sleep(0.2)")] * 4, [INC[:1]] * 4)  # starts boxes
    monkeypatch.setattr(box_run, "run_job", watched)
    limits = Limits(cpu_s=60.0, wall_s=0.8)
    sleeps = Program("import time; time.sleep(600)")
    verdicts = sandbox.run_sync([sleeps] * 8, [INC[:1]] * 8, limits)
    assert [verdict.status for verdict in verdicts] == ["TLE"] * 8
    assert max(seen) == 4  # boxes that have a job at the same time
