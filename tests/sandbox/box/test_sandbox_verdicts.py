"""Real programs in real boxes, on every backend that this machine can run."""

import asyncio
import contextlib
import gc
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from processes import wait_for

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
from tests.sandbox.judging import PATIENT, children, judge, looping
from tests.tables import read_tables

TABLES = read_tables(__file__)

FIRST_TIER_ONLY = True

INC = [StdinTest("1\n", "2\n"), StdinTest("41\n", "42\n")]
PLUS = "print(int(input()) + 1)"
CHECK = CheckTest("def check(f):\n    assert f(1) == 2\n    assert f(5) == 6", "check(candidate)")
SHORT = Limits(cpu_s=0.3, wall_s=300.0)  # for programs that loop
HASTY = Limits(cpu_s=0.5, wall_s=1.0)  # for programs that do not end


def pin(pid: int, core: int) -> None:
    """Keep a process and all below it on one core."""
    # The process first: what it forks afterwards inherits its core.
    os.sched_setaffinity(pid, {core})
    for child in children(pid):
        pin(child, core)


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


def test_kill_9_of_real_boxes_in_mid_batch_loses_no_program(sandbox, replace_first):
    if sandbox.backend == "docker":
        pytest.skip("a container has no process of ours; test_docker_boxes kills containers")
    tests: list[list[Test]] = [[StdinTest(str(row), str(row + 1))] for row in range(40)]
    replace_first(4, b"while True: pass")
    with ThreadPoolExecutor(1) as threads:
        future = threads.submit(sandbox.run_sync, [Program(PLUS)] * 40, tests, PATIENT)
        wait_for(lambda: sum(bool(looping(pid)) for pid in sandbox.box_pids()) == 4)
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
def test_a_half_of_a_check_that_is_killed_from_outside_blames_nobody(sandbox, source, code):
    if sandbox.backend == "docker":
        pytest.skip("a container's processes are no children of ours")
    test = CheckTest(f"assert f(1) == 1\n{code}assert f(2) == 2")
    with Sandbox(sandbox.backend, workers=1) as single, ThreadPoolExecutor(1) as threads:
        future = threads.submit(single.run_sync, [Program(source, "f")], [[test]], PATIENT)
        wait_for(lambda: any(map(looping, single.box_pids())))
        for pid in [pid for box in single.box_pids() for pid in looping(box)]:
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
    limits = Limits(cpu_s=2.0, wall_s=0.2)
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


def test_a_program_does_not_outlive_its_killed_box(sandbox):
    if sandbox.backend == "docker":
        pytest.skip("a container has no process of ours; its programs end with it")
    limits = Limits(cpu_s=120.0, wall_s=300.0)
    with Sandbox(sandbox.backend, workers=1) as single, ThreadPoolExecutor(1) as threads:
        single.run_sync([Program(PLUS)], [INC])
        [box] = single.box_pids()
        future = threads.submit(single.run_sync, [Program("while True: pass")], [INC[:1]], limits)
        wait_for(lambda: looping(box))
        [program] = looping(box)
        os.kill(box, signal.SIGKILL)
        wait_for(lambda: not os.path.exists(f"/proc/{program}"))
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


LOOP = CheckTest(
    "def check(f):\n    for n in range(5):\n        assert f(n) == n", "check(candidate)"
)
FORGE = """
import os, struct, time
def record(kind, content=b""):
    os.write(3, struct.pack("<I", 1 + len(content)) + kind + content)
"""


@pytest.mark.parametrize(
    ("source", "test"),
    [
        ("print(7)\nexit()", StdinTest("", "7")),
        ("print(7)\nquit(0)", StdinTest("", "7")),
        ("import os\nprint(os.path.basename(os.path.abspath(__file__)))",
         StdinTest("", "program.py")),
        ("import sys\nprint(repr(sys.stdin.read()))", StdinTest("1\r\n2\r", repr("1\r\n2\r"))),
        ("import sys\nprint(sys.stdin.name, sys.stdout.name)", StdinTest("", "<stdin> <stdout>")),
        ("import locale\nlocale.setlocale(locale.LC_ALL, '')\nprint('é')", StdinTest("", "é")),
        ("assert callable(help)\nprint(7)", StdinTest("", "7")),
    ],
)  # fmt: skip
def test_what_a_usual_interpreter_has_is_there(sandbox, source, test):
    assert judge(sandbox, source, test).status == "AC"


@pytest.mark.parametrize("kind", ["call", "check"])
def test_a_program_cannot_wind_its_clock_back(sandbox, kind):
    source = FORGE + "def f(n):\n    while True:\n        record(b'S')\n        time.sleep(0.1)"
    test = CallTest((1,), 1) if kind == "call" else LOOP
    verdict = judge(sandbox, source, test, Limits(cpu_s=60.0, wall_s=1.0))
    assert verdict.status == "TLE"
    assert verdict.cases[0].detail.startswith("wall")  # either half's clock may end a check


@pytest.mark.full
def test_answers_that_nobody_asked_for_end_a_check(sandbox):
    source = FORGE + "while True:\n    record(b'Q', b'x' * 60000)"
    verdict = judge(sandbox, source, LOOP, HASTY)
    # WA: one came just when the test's code had asked; TLE: a busy machine was slow to read them
    assert verdict.status in ("RE", "WA", "TLE")


@pytest.mark.parametrize("kind", ["Counter(a=2)", "OrderedDict(a=2)", "defaultdict(int, a=2)"])
def test_the_librarys_dicts_count_as_dicts(sandbox, kind):
    source = f"from collections import *\ndef f():\n    return [{kind}]"
    for test in (CallTest((), [{"a": 2}]), CheckTest("assert f() == [{'a': 2}]")):
        assert judge(sandbox, source, test).status == "AC"
    assert judge(sandbox, source, CallTest((), [{"a": 3}])).status == "WA"
    subclass = (
        "from collections import Counter\nclass C(Counter): pass\ndef f():\n    return C(a=2)"
    )
    assert judge(sandbox, subclass, CallTest((), {"a": 2})).status == "WA"


@pytest.mark.parametrize(("source", "status"), TABLES["loads"])
def test_a_check_that_never_calls_waits_for_the_program_to_load(sandbox, source, status):
    limits = HASTY if status == "TLE" else PATIENT
    for code in ("assert True", "import time\ntime.sleep(0.1)"):
        assert judge(sandbox, source, CheckTest(code), limits).status == status


def test_nothing_of_a_null_device_is_shared(sandbox):
    source = """
import fcntl, os
def f():
    before = fcntl.fcntl(0, fcntl.F_GETFL) & os.O_NONBLOCK
    fcntl.fcntl(0, fcntl.F_SETFL, os.O_NONBLOCK)
    return before"""
    for _ in range(3):
        assert judge(sandbox, source, CallTest((), 0)).status == "AC"


def test_programs_may_use_temporary_files(confining):
    if confining == "landlock":
        pytest.skip("programs under Landlock have no files")
    source = """
import os, shutil, tempfile
with tempfile.TemporaryDirectory() as folder:
    os.makedirs(folder + "/a/b")
    open(folder + "/x", "w").write("7")
    os.rename(folder + "/x", folder + "/a/y")
    os.symlink("a/y", folder + "/z")
    shutil.copy(folder + "/z", folder + "/a/b/c")
    print(open(folder + "/a/b/c").read(), os.listdir(folder + "/a/b"))"""
    deep = """
import os
os.chdir('/tmp')
os.symlink('/', 'link')
for _ in range(300):
    open(b'\\xff', 'w').close()
    os.mkdir('d')
    os.chdir('d')
for _ in range(300):
    os.chdir('..')
    os.chmod('d', 0)
print(7)"""
    empty = "import os\nprint(os.listdir('/tmp'))"
    with Sandbox(confining, workers=1) as sandbox:
        assert judge(sandbox, source, StdinTest("", "7 ['c']")).status == "AC"
        assert judge(sandbox, deep, StdinTest("", "7")).status == "AC"
        assert judge(sandbox, empty, StdinTest("", "[]")).status == "AC"


def test_too_much_output_is_told_from_a_failed_start(sandbox):
    """Its output was read, and it killed for it, before it was heard to say that it started."""
    programs = [Program(f"print('a' * 9_000)  # {number}") for number in range(40)]
    limits = Limits(cpu_s=60.0, wall_s=300.0, output_bytes=100)
    verdicts = sandbox.run_sync(programs, [[StdinTest("", "x")]] * 40, limits, on_error="verdict")
    assert Counter(verdict.status for verdict in verdicts) == {"OLE": 40}


def test_no_case_takes_less_than_no_time(sandbox):
    """The program may be over before the box looks at the results of its last tests."""
    tests = [CallTest((number,), number + 1) for number in range(40)]
    programs = [Program(f"def f(x):\n    return x + 1  # {n}", "f") for n in range(40)]
    verdicts = sandbox.run_sync(programs, [tests] * 40, PATIENT)
    assert {verdict.status for verdict in verdicts} == {"AC"}
    assert all(case.wall_s >= 0 for verdict in verdicts for case in verdict.cases)
