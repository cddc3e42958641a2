"""Programs that once got a wrong verdict, or the sandbox into trouble, on every backend here."""

from collections import Counter

import pytest

from flowzoo.errors import UsageError
from flowzoo.sandbox import CallTest, CheckTest, Limits, Program, Sandbox, StdinTest
from flowzoo.sandbox.runner import codec
from tests.sandbox.judging import PATIENT, judge
from tests.tables import read_tables

TABLES = read_tables(__file__)

FIRST_TIER_ONLY = True

SHORT = Limits(cpu_s=0.5, wall_s=1.0)  # for programs that do not end
CHECK = CheckTest(
    "def check(f):\n    for n in range(5):\n        assert f(n) == n", "check(candidate)"
)
FORGE = """
import os, struct, time
def record(kind, content=b""):
    os.write(3, struct.pack("<I", 1 + len(content)) + kind + content)
def text(value):
    return b"S" + struct.pack("<I", len(value)) + value.encode()
def raised(name, message):
    return b"U" + struct.pack("<I", 3) + text("raised") + text(name) + text(message)
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
    test = CallTest((1,), 1) if kind == "call" else CHECK
    verdict = judge(sandbox, source, test, Limits(cpu_s=60.0, wall_s=1.0))
    assert verdict.status == "TLE"
    assert verdict.cases[0].detail.startswith("wall")  # either half's clock may end a check


@pytest.mark.full
def test_answers_that_nobody_asked_for_end_a_check(sandbox):
    source = FORGE + "while True:\n    record(b'Q', b'x' * 60000)"
    verdict = judge(sandbox, source, CHECK, SHORT)
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
    limits = SHORT if status == "TLE" else PATIENT
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


def test_output_that_fits_no_frame_is_not_promised(sandbox):
    with pytest.raises(UsageError, match="output_bytes may be at most"):
        sandbox.run_sync([Program("")], [[StdinTest("", "")]], Limits(output_bytes=10**9))


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


@pytest.mark.parametrize("answers", TABLES["forged"])
def test_forged_answers_are_the_programs_fault(sandbox, answers):
    source = f"{FORGE}\ndef f(n):\n    for answer in ({answers},):\n        record(b'Q', answer)\n"
    assert judge(sandbox, source + "    time.sleep(0.5)", CHECK).status in ("RE", "WA")


def test_tests_themselves_hold_exact_dicts_only():
    with pytest.raises(codec.UnsupportedTypeError):
        codec.encode(Counter("a"))
