"""Values that cross between a program and a test that is code: as Python has them."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from flowzoo.sandbox import (
    CallTest,
    CheckTest,
    Compare,
    Limits,
    Program,
    Sandbox,
    SandboxError,
    SandboxName,
    StdinTest,
)
from flowzoo.sandbox.runner import codec
from tests.sandbox.judging import PATIENT

FIRST_TIER_ONLY = True
PAIR = "class Pair:\n    def __init__(self, a, b=0):\n        self.a, self.b = a, b\n"
TUPLE = "from collections import namedtuple\nT = namedtuple('T', 'a b')\n"
FRACTION, DECIMAL = "from fractions import Fraction\n", "from decimal import Decimal\n"
DEQUE = "from collections import deque\n"
NUMBER = Compare("number")


@pytest.mark.parametrize(
    ("source", "code", "status"),
    [
        (PAIR + "def f(x):\n    return x.a", "assert f(Pair(3)) == 3", "AC"),
        (PAIR + "def f(xs):\n    return [x.b for x in xs]",
         "assert f([Pair(1, b=2)]) == [2]", "AC"),
        (PAIR + "def f(x):\n    return x.a.a", "assert f(Pair(Pair(3))) == 3", "AC"),
        (PAIR + "root = Pair(7)\ndef f(x):\n    return x.a", "assert f(root) == 7", "AC"),
        (PAIR + "def f(x):\n    return x.a", "assert f(Pair(3)) == 4", "WA"),
        ("def f(x):\n    return x", "assert f(Pair(3)) == 3", "RE"),
        (PAIR + "def f(x):\n    return x.c", "assert f(Pair(3)) == 3", "RE"),
        ("def f(xs, t):\n    return [x for x in xs if type(x) is t]",
         "assert f([1, 'a'], int) == [1]", "AC"),
        ("def f(xs, t):\n    return [x for x in xs if isinstance(x, t)]",
         "assert f([1, 'a'], str) == ['a']", "AC"),
        ("def f(x):\n    return type(x)", "assert f(1) == int and f('') is str", "AC"),
        ("def f(x):\n    return type(x)", "assert f(1) == str", "WA"),
        ("import re\ndef f(x):\n    return re.search('a', x)",
         "assert f('cab')\nassert not f('b')", "AC"),
        ("import re\ndef f(x):\n    return re.search('a', x)", "assert f('b')", "WA"),
        ("import re\ndef f(x):\n    return re.search('a', x)", "assert f('a') == True", "WA"),
        ("class A:\n    def __eq__(s, o): return True\ndef f(x):\n    return A()",
         "assert f(1) == 1", "WA"),
        ("class A:\n    def __bool__(s): raise ValueError\ndef f(x):\n    return A()",
         "assert f(1)", "RE"),
        ("class A:\n    __len__ = lambda s: 0\ndef f(x):\n    return A()", "assert not f(1)", "AC"),
        ("def f(x):\n    return x == 1", "assert f(1) == 1\nassert f(2) == 0", "AC"),
        ("def f(x):\n    return float(x)", "assert f(1) == 1", "AC"),
        (FRACTION + "def f(x):\n    return Fraction(x, 2)", "assert f(3) == 1.5", "AC"),
        (FRACTION + "def f(x):\n    return Fraction(x, 3)",
         FRACTION + "assert f(2) == Fraction(2, 3)", "AC"),
        (DECIMAL + "def f(x):\n    return Decimal(x)", "assert f(3) == 3", "AC"),
        (DECIMAL + "def f(x):\n    return Decimal(x) / 10", "assert f(3) == 0.3", "WA"),
        ("from decimal import *\ndef f(x):\n    return Decimal(x)",
         "assert f('0.3') * 2 < 0.7", "AC"),
        (DEQUE + "def f(x):\n    return deque([x])",
         DEQUE + "assert f(3) == deque([3])\nassert f(3) != [3]", "AC"),
        (TUPLE + "P = T\ndef f(x):\n    return P(x, 2)", "assert f(3) == (3, 2)", "AC"),
        (TUPLE + "P = T\ndef f(x):\n    return P(x, 2)", "assert f(3) == (3, 3)", "WA"),
        (TUPLE + "class P(T):\n    def __eq__(s, o): return True\ndef f(x):\n    return P(x, 2)",
         "assert f(3) == (4, 2)", "WA"),
        ("def f(x):\n    return sum(x)", DEQUE + "assert f(deque([1, 2])) == 3", "AC"),
        ("def f(x):\n    return x / 2",
         FRACTION + "assert f(Fraction(1, 3)) == Fraction(1, 6)", "AC"),
        ("def f(x):\n    return x + x",
         DECIMAL + "assert f(Decimal('0.1')) == Decimal('0.2')", "AC"),
        ("import sys\ndef f(x):\n    return sys.getsizeof(x)",
         "assert f((1, 2)) == sys.getsizeof((1, 2))", "AC"),
        ("import math\ndef f(x):\n    return math.sqrt(x)", "assert f(4) == math.sqrt(4)", "AC"),
        ("def f(x):\n    return x", "assert f(3) == nowhere", "WA"),
    ],
)  # fmt: skip
def test_values_in_a_test_that_is_code(
    sandbox: Sandbox, source: str, code: str, status: str
) -> None:
    verdict = sandbox.run_sync([Program(source, "f")], [[CheckTest(code)]], PATIENT)[0]
    assert verdict.status == status, verdict.cases


@pytest.mark.parametrize(
    ("body", "expected", "status"),
    [
        ("return True", 1, "AC"),
        ("return [1, 0]", [True, False], "AC"),
        ("return True", 2, "WA"),
        ("from fractions import Fraction; return Fraction(1, 2)", 0.5, "AC"),
        ("from fractions import Fraction; return Fraction(1, 3)", 0.5, "WA"),
        ("from decimal import Decimal; return Decimal('2.50')", 2.5, "AC"),
        ("from decimal import Decimal; return Decimal('1e400')", 2.5, "WA"),
        ("from decimal import Decimal; return Decimal('sNaN')", 2.5, "RE"),
        ("from collections import deque; return deque([1])", [1], "WA"),
        ("from collections import namedtuple; return namedtuple('P', 'a')(1)", (1,), "AC"),
        ("return 10.0**12 + 500", 10**12, "WA"),
        ("return 1e9", 1000000007, "WA"),
        ("return 1000000007.0", 1000000007, "AC"),
    ],
)
def test_values_of_calls(sandbox: Sandbox, body: str, expected: object, status: str) -> None:
    tests = [CallTest((), expected, {}, NUMBER)]
    verdict = sandbox.run_sync([Program(f"def f():\n    {body}", "f")], [tests], PATIENT)[0]
    assert verdict.status == status, verdict.cases


READS = {
    "open": "print(open('/dev/stdin').read())",
    "path": "import pathlib\nprint(pathlib.Path('/dev/stdin').read_text())",
    "descriptor": "import os\nprint(os.read(os.open('/dev/stdin', os.O_RDONLY), 9).decode())",
    "fileinput": "import fileinput\nprint(sum(map(int, fileinput.input('/dev/stdin'))))",
    "number": "print(open(0).read())",
    "stdout": "open('/dev/stdout', 'w').write('41')",
    "source of a function": "import inspect\ndef f():\n    return 41\n"
    "print(inspect.getsource(f).split()[-1])",
    "own file": "print(open(__file__).read().count('open') + 39)",
    "own file in bytes": "with open(__file__, 'rb') as file: print(len(file.readlines()) + 40)",
    "zone": "import datetime as d, zoneinfo\n"
    "print(d.datetime(2024, 7, 1, tzinfo=zoneinfo.ZoneInfo('UTC')).utcoffset().seconds + 41)",
}


@pytest.mark.every_tier
def test_what_a_program_reads_is_there_on_every_tier(sandbox: Sandbox) -> None:
    programs = [Program(source) for source in READS.values()]
    verdicts = sandbox.run_sync(programs, [[StdinTest("41", "41")]] * len(programs), PATIENT)
    bad = [(n, v.cases) for n, v in zip(READS, verdicts, strict=True) if v.status != "AC"]
    assert not bad


def test_other_files_are_opened_as_ever(sandbox: Sandbox) -> None:
    source = "try:\n    open('/no/such')\nexcept FileNotFoundError as error:\n    print(error)"
    expected = "[Errno 2] No such file or directory: '/no/such'"
    verdict = sandbox.run_sync([Program(source)], [[StdinTest("", expected)]], PATIENT)[0]
    assert verdict.status == "AC", verdict.cases


def test_all_tests_of_a_program_have_one_budget(sandbox: Sandbox) -> None:
    limits = Limits(cpu_s=0.2, wall_s=300.0, total_s=0.5)
    tests = [StdinTest("", "x")] * 30
    verdict = sandbox.run_sync([Program("while True: pass")], [tests], limits)[0]
    assert (verdict.status, len(verdict.cases), verdict.total) == ("TLE", 30, 30)
    ran = [case for case in verdict.cases if case.cpu_s > 0]
    assert 1 < len(ran) < 10
    assert verdict.cases[-1].detail.startswith("total: ")
    assert sandbox.run_sync([Program("print('x')")], [tests], limits)[0].status == "AC"


@pytest.mark.full
@pytest.mark.of_host
def test_each_call_of_a_check_has_its_own_clock(sandbox: Sandbox) -> None:
    source = "import time\ndef f(x):\n    end = time.process_time() + 0.1\n" \
             "    while time.process_time() < end: pass\n    return x"  # fmt: skip
    code = "for n in range(5):\n    assert f(n) == n"
    limits = Limits(cpu_s=0.3, wall_s=300.0)
    assert sandbox.run_sync([Program(source, "f")], [[CheckTest(code)]], limits)[0].status == "AC"
    many = CheckTest(code.replace("5", "60"))
    assert sandbox.run_sync([Program(source, "f")], [[many]], limits)[0].status == "TLE"


@pytest.mark.every_tier
def test_numpy_is_there_if_it_is_asked_for(backend: SandboxName) -> None:
    source = "import numpy as np\ndef f(x):\n    return float(np.arange(x).sum())"
    test = CheckTest(
        "import numpy as np\nfor n in range(9):\n    assert np.isclose(f(n), sum(range(n)))"
    )
    with Sandbox(backend, workers=1, packages=["numpy"]) as sandbox:
        verdict = sandbox.run_sync([Program(source, "f")], [[test]], PATIENT)[0]
        assert verdict.status == "AC", verdict.cases
        other = Program("import numpy.fft, threading\nprint(threading.active_count())\nimport yaml")
        case = sandbox.run_sync([other], [[StdinTest("", "1")]], PATIENT)[0].cases[0]
        assert (case.status, case.stdout) == ("RE", "1\n")
        assert "No module named 'yaml'" in case.stderr
        assert set(sandbox.describe()["packages"]) == {"numpy"}
    with Sandbox(backend, workers=1) as sandbox:
        verdict = sandbox.run_sync([Program("import numpy")], [[StdinTest("", "")]], PATIENT)[0]
        assert "No module named 'numpy'" in verdict.cases[0].stderr


@pytest.mark.skipif(os.name != "posix", reason="folders of programs under `unsafe`")
def test_a_killed_box_without_isolation_leaves_no_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, soon: Callable[..., bool]
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    source = "open('x', 'w').write('y')\nwhile True: pass"
    with Sandbox("unsafe", workers=1) as sandbox, ThreadPoolExecutor(1) as threads:
        future = threads.submit(
            sandbox.run_sync, [Program(source)], [[StdinTest("", "")]], PATIENT, on_error="verdict"
        )
        assert soon(lambda: list(tmp_path.rglob("x")))
        sandbox.close_sync()
        with pytest.raises(SandboxError):
            future.result(60)
    assert list(tmp_path.iterdir()) == []


def test_what_the_machine_kills_for_want_of_memory_is_told_from_other_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(Path(codec.__file__).parent))
    from workspace import OomKills  # pyright: ignore[reportMissingImports]

    counter = tmp_path / "vmstat"
    counter.write_text("nr_free_pages 5\noom_kill 3\n")
    folder = os.open(tmp_path, os.O_RDONLY)
    kills = OomKills(("absent", "vmstat"), folder)
    os.close(folder)
    assert not kills.more()
    counter.write_text("nr_free_pages 5\noom_kill 4\n")
    assert kills.more()
    assert not kills.more()
    assert not OomKills(("absent",)).more()
